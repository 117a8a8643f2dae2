"""Withdrawn and purged experts and contributions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moerge.client.register import register
from moerge.errors import CoordinatorError, MoergeError
from moerge.files import file_sha256
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import file_digests
from moerge_proto.experts import ExpertState
from moerge_proto.version_signatures import PROVENANCE_FILE, SIGNATURE_FILE
from moerge_proto.versions import Version
from support.federation import SILENT, Federation, Member, federation_of, files_below, registered


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Every test adds its own members."""
    with federation_of(tmp_path_factory.mktemp("life")) as federation:
        yield federation


def newcomers(federation: Federation, count: int) -> list[Member]:
    return [federation.add(f"domain-{len(federation.members)}") for _ in range(count)]


def digests(*members: Member) -> list[str]:
    return [registered(member).digest for member in members]


def solved(federation: Federation, *members: Member) -> Version:
    """A version of these alone."""
    federation.contribute(federation.body(), *(member.domain for member in members))
    return federation.solve(experts=digests(*members))


def test_versions_of_a_withdrawn_expert_can_be_withheld(federation: Federation) -> None:
    law, art = newcomers(federation, 2)
    first = solved(federation, law, art)
    federation.moerge("version", "promote", first.number, "--alias", "withheld")
    withdraw = ("expert", "withdraw", law.domain, "--withhold")
    with pytest.raises(AssertionError, match=f"Versions that contain it are withheld: {first.number}."):
        federation.moerge(*withdraw)
    assert registered(law).withdrawn is None
    assert "(withheld)" in federation.moerge(*withdraw, "--yes")
    refused = federation.get(f"/versions/{first.number}/files/config.json")
    assert (refused.status_code, refused.json()["type"]) == (410, "urn:moerge:problem:gone")
    assert federation.get(f"/versions/{solved(federation, art).number}/files/config.json").status_code == 200


def test_purging_removes_the_files_of_an_expert(tmp_path: Path) -> None:
    with federation_of(tmp_path / "whole", "law", "art") as federation, federation_of(tmp_path / "fresh") as fresh:
        law, art = federation.members.values()
        solved(federation, law, art)
        [digest] = digests(law)
        law.client.withdraw_expert(digest)
        first = law.client.purge_expert(digest)
        assert (first.versions, first.removed > 0) == ([1], True)
        assert federation.get("/versions/1/files/model-expert-00000.safetensors").status_code == 200
        with pytest.raises(CoordinatorError, match="only an operator may retire versions"):
            law.client.purge_expert(digest, retire=True)
        purge = ("expert", "purge", digest, "--retire")
        with pytest.raises(AssertionError, match="are removed permanently, and versions that contain it are retired"):
            federation.moerge(*purge)
        assert "Versions" not in federation.moerge(*purge, "--yes")
        assert federation.get("/versions/1/files/config.json").status_code == 410
        federation.solve()
        solved(fresh, fresh.add("art", seed=2))
        left, alone = (
            {Path(path).name for path in files_below(item.server) if path.startswith("blobs")}
            for item in (federation, fresh)
        )
        signed = [federation.server.home / "versions" / "2" / name for name in (SIGNATURE_FILE, PROVENANCE_FILE)]
        assert left - alone == {file_sha256(path) for path in signed}, "ECDSA is randomised"


def test_a_withdrawn_expert_joins_again_only_if_its_owner_says_so(federation: Federation) -> None:
    [law] = newcomers(federation, 1)
    [digest] = digests(law)
    law.client.withdraw_expert(digest)
    parts = DenseFiles(law.place)
    with pytest.raises(MoergeError, match="was withdrawn"):  # a worker that starts again
        register(law.client, parts, law.new(file_digests(parts)), SILENT)
    assert register(law.client, parts, law.new(file_digests(parts)), SILENT, again=True).state is ExpertState.READY


def test_a_contribution_is_withdrawn_by_the_start_of_its_digest(federation: Federation) -> None:
    [law] = newcomers(federation, 1)
    [sent] = federation.contribute(federation.body(), law.domain)
    withdraw = ("contribution", "withdraw")
    for digits, message in ((7, "expected at least 8 digits"), (8, "not confirmed: Withdraw router contribution")):
        with pytest.raises(AssertionError, match=message):
            federation.moerge(*withdraw, sent.digest[:digits])
    assert "later versions exclude it" in federation.moerge(*withdraw, sent.digest[:8], "--yes")
    assert [row.active for row in law.client.contributions()] == [False]
