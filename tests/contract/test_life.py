"""Withdrawn and purged experts and contributions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moerge.cli.common import wait
from moerge.client.register import register
from moerge.errors import CoordinatorError, MoergeError
from moerge.files import file_sha256
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import file_digests
from moerge_proto.experts import ExpertState, NewExpert
from moerge_proto.version_signatures import PROVENANCE_FILE, SIGNATURE_FILE
from moerge_proto.versions import Version
from support.federation import (
    SILENT,
    Federation,
    Member,
    eventually,
    federation_of,
    files_below,
    honest_body,
    registered,
    send,
)
from support.models import expert
from support.processes import moerge
from support.statistics import written


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
    """A version of these on their body."""
    domains = [member.domain for member in members]
    federation.contribute(federation.merge(*domains), *domains)
    return federation.solve()


def test_versions_of_a_withdrawn_expert_can_be_withheld(federation: Federation) -> None:
    law, art = newcomers(federation, 2)
    first = solved(federation, law, art)
    federation.moerge("version", "promote", first.number, "--alias", "withheld")
    withdraw = ("expert", "withdraw", law.domain, "--withhold")
    with pytest.raises(AssertionError, match="merged again without it, and every owner contributes again") as shown:
        federation.moerge(*withdraw)
    assert f"Versions that contain it are withheld: {first.number}." in str(shown.value)
    assert registered(law).withdrawn is None
    assert "(withheld)" in federation.moerge(*withdraw, "--yes")
    refused = federation.get(f"/versions/{first.number}/files/config.json")
    assert (refused.status_code, refused.json()["type"]) == (410, "urn:moerge:problem:gone")
    federation.contribute(federation.body(), art.domain)
    assert federation.get(f"/versions/{federation.solve().number}/files/config.json").status_code == 200


def test_purging_removes_the_files_of_an_expert(tmp_path: Path) -> None:
    with federation_of(tmp_path / "whole", "law", "art") as federation, federation_of(tmp_path / "fresh") as fresh:
        law, art = federation.members.values()
        solved(federation, law, art)
        [digest] = digests(law)
        done = law.client.withdraw_expert(digest)
        assert done.remerge is not None
        wait(federation.operator, done.remerge)
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
        body = federation.body()
        federation.contribute(body, "art")
        federation.solve()
        solved(fresh, fresh.add("art", seed=2))
        left, alone = (
            {Path(path).name for path in files_below(item.server) if path.startswith("blobs")}
            for item in (federation, fresh)
        )
        old = {row.digest for row in art.client.contributions() if row.body != body.digest}
        assert old <= left
        signed = [federation.server.home / "versions" / "2" / name for name in (SIGNATURE_FILE, PROVENANCE_FILE)]
        assert left - alone - old == {file_sha256(path) for path in signed}, "ECDSA is randomised"


def test_a_newcomer_can_ask_for_a_remerge_in_the_same_call(federation: Federation) -> None:
    [law] = newcomers(federation, 1)
    old = federation.merge(law.domain)
    art = federation.join("newcomer", expert(federation.folder / "newcomer", seed=1001))
    command = ["expert", "add", art.folder, "--domain", art.domain, "--body", "remerge"]
    digest = moerge(*command, **federation.server.environment(art.token))
    assert [digest] == digests(art)
    eventually(lambda: federation.body().digest != old.digest)
    assert federation.body().experts == digests(law, art)


def test_a_withdrawn_expert_joins_again_by_command_only(federation: Federation) -> None:
    [law] = newcomers(federation, 1)
    [digest] = digests(law)
    law.client.withdraw_expert(digest)
    again = NewExpert(domain=law.domain, files=file_digests(DenseFiles(law.folder)))
    with pytest.raises(MoergeError, match="was withdrawn") as caught:  # a worker that starts again
        register(law.client, DenseFiles(law.folder), again, SILENT)
    assert "moerge expert add" in caught.value.todo
    command = ["expert", "add", law.folder, "--domain", law.domain]
    assert moerge(*command, **federation.server.environment(law.token)) == digest
    assert register(law.client, DenseFiles(law.folder), again, SILENT).state is ExpertState.READY


def test_withdrawing_a_body_contribution_retires_its_body(federation: Federation) -> None:
    law, art = newcomers(federation, 2)
    sent, _ = (send(item, written(federation.folder / "body", *honest_body(item))) for item in (law, art))
    body = federation.merge(law.domain, art.domain, method="regmean")
    withdraw = ("contribution", "withdraw")
    for digits, message in ((7, "expected at least 8 digits"), (8, "Bodies that were solved with it are retired")):
        with pytest.raises(AssertionError, match=message):
            federation.moerge(*withdraw, sent.digest[:digits])
    federation.moerge(*withdraw, sent.digest[:8], "--yes")
    eventually(lambda: federation.body().digest != body.digest)
    assert federation.body().experts == digests(art)
