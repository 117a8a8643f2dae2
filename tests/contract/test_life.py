"""Withdrawing and purging experts: what goes, what stays, and who is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moerge.cli.common import wait
from moerge.client.register import register
from moerge.errors import CoordinatorError, MoergeError
from moerge.models.expert_folder import file_digests
from moerge_proto.experts import ExpertState, NewExpert
from moerge_proto.options import RECOMMENDED
from moerge_proto.versions import Version
from support.federation import (
    SILENT,
    Federation,
    Member,
    eventually,
    federation_of,
    files_below,
    honest_trunk,
    registered,
    send_trunk,
)
from support.models import expert
from support.processes import moerge
from support.statistics import written


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Every test merges the experts of members of its own."""
    with federation_of(tmp_path_factory.mktemp("life")) as made:
        yield made


def newcomers(federation: Federation, count: int) -> list[Member]:
    return [federation.add(f"domain-{len(federation.members)}") for _ in range(count)]


def digests(*members: Member) -> list[str]:
    return [registered(member).digest for member in members]


def solved(federation: Federation, *members: Member) -> Version:
    """A version of these on their trunk."""
    domains = [member.domain for member in members]
    federation.contribute(federation.merge(*domains), *domains)
    return federation.solve()


def routers(federation: Federation, version: Version) -> bytes:
    return (federation.version(version.number) / "model-router.safetensors").read_bytes()


def test_an_operator_can_withhold_the_versions_that_contain_a_withdrawn_expert(federation: Federation) -> None:
    law, art = newcomers(federation, 2)
    first = solved(federation, law, art)
    federation.moerge("version", "promote", first.number, "--alias", "withheld")
    withdraw = ("expert", "withdraw", law.domain, "--withhold")
    with pytest.raises(AssertionError, match="merged again without it, and every owner contributes again") as told:
        federation.moerge(*withdraw)
    assert f"Versions that contain it are withheld: {first.number}." in str(told.value)
    assert registered(law).withdrawn is None
    said = federation.moerge(*withdraw, "--yes")
    assert f"{law.domain} is withdrawn" in said
    assert "(withheld)" in said
    refused = federation.get(f"/versions/{first.number}/files/config.json")
    assert (refused.status_code, refused.json()["type"]) == (410, "urn:moerge:problem:gone")
    federation.contribute(federation.trunk(), art.domain)
    second = federation.solve()
    assert second.number > first.number
    assert federation.get(f"/versions/{second.number}/files/config.json").status_code == 200


def test_purging_removes_the_files_and_names_the_versions_that_need_them(tmp_path: Path) -> None:
    with federation_of(tmp_path / "whole", "law", "art") as federation, federation_of(tmp_path / "fresh") as fresh:
        law, art = federation.members.values()
        solved(federation, law, art)
        [digest] = digests(law)
        with pytest.raises(CoordinatorError, match="the expert is ready"):
            law.client.purge_expert(digest)
        done = law.client.withdraw_expert(digest)
        assert done.remerge is not None
        operator = federation.operator
        wait(operator, done.remerge)
        first = law.client.purge_expert(digest)
        assert (first.versions, law.client.expert(digest).purged is not None) == ([1], True)
        assert first.removed > 0
        assert federation.get("/versions/1/files/model-expert-00000.safetensors").status_code == 200
        with pytest.raises(CoordinatorError, match="only an operator may retire versions"):
            law.client.purge_expert(digest, retire=True)
        operator.promote("champion", 1)
        with pytest.raises(CoordinatorError, match="the alias 'champion' points to version 1"):
            operator.purge_expert(digest, retire=True)
        operator.remove_alias("champion")
        purge = ("expert", "purge", digest, "--retire")
        with pytest.raises(AssertionError, match="are removed permanently, and versions that contain it are retired"):
            federation.moerge(*purge)
        assert "Versions" not in federation.moerge(*purge, "--yes")
        assert operator.version(1).retired is not None
        assert federation.get("/versions/1/files/config.json").status_code == 410
        trunk = federation.trunk()
        federation.contribute(trunk, "art")
        federation.solve()
        solved(fresh, fresh.add("art", seed=2))
        left, alone = (
            {Path(path).name for path in files_below(each.server) if path.startswith("blobs")}
            for each in (federation, fresh)
        )
        old = {row.digest for row in art.client.contributions() if row.trunk != trunk.digest}
        assert left - alone == old


def test_a_newcomer_can_ask_for_a_remerge_in_the_same_call(federation: Federation) -> None:
    [law] = newcomers(federation, 1)
    old = federation.merge(law.domain)
    art = federation.join("newcomer", expert(federation.folder / "newcomer", seed=1001))
    command = ["expert", "add", art.folder, "--domain", art.domain, "--trunk", "remerge"]
    digest = moerge(*command, **federation.server.environment(art.token))
    assert [digest] == digests(art)
    eventually(lambda: federation.trunk().digest != old.digest)
    assert federation.trunk().experts == digests(law, art)


def test_what_was_withdrawn_joins_again_only_when_that_is_asked(federation: Federation) -> None:
    [law] = newcomers(federation, 1)
    [digest] = digests(law)
    law.client.withdraw_expert(digest)
    again = NewExpert(domain=law.domain, files=file_digests(law.folder))
    with pytest.raises(MoergeError, match="was withdrawn") as caught:  # a worker that starts again
        register(law.client, law.folder, again, SILENT)
    assert "moerge expert add" in caught.value.todo
    command = ["expert", "add", law.folder, "--domain", law.domain]
    assert moerge(*command, **federation.server.environment(law.token)) == digest
    assert register(law.client, law.folder, again, SILENT).state is ExpertState.READY


def test_withdrawing_a_trunk_contribution_retires_the_trunk_that_was_solved_from_it(federation: Federation) -> None:
    law, art = newcomers(federation, 2)
    sent, _ = (send_trunk(each, written(federation.folder / "trunk", *honest_trunk(each))) for each in (law, art))
    trunk = federation.merge(law.domain, art.domain, method="regmean")
    withdraw = ("contribution", "withdraw")
    for digits, told in ((7, "expected at least 8 digits"), (8, "trunks solved from it are retired")):
        with pytest.raises(AssertionError, match=told):
            federation.moerge(*withdraw, sent.digest[:digits])
    federation.moerge(*withdraw, sent.digest[:8], "--yes")
    eventually(lambda: federation.trunk().digest != trunk.digest)
    assert federation.trunk().experts == digests(art)
    assert federation.operator.trunk(trunk.digest).retired is not None
    with pytest.raises(CoordinatorError, match="was retired"):
        federation.solve(trunk=trunk.digest)


def test_solving_again_with_other_options_needs_nobody(federation: Federation) -> None:
    law, art = newcomers(federation, 2)
    first = solved(federation, law, art)
    others = {"ridge_lambda": 10.0, "top_k": 2, "domain_weights": {law.domain: 2.0}}
    again = federation.solve(options=others)
    assert again.number > first.number
    found = federation.operator.compare_versions(first.number, again.number)
    assert found.options == {name: (getattr(RECOMMENDED.solve, name), value) for name, value in others.items()}
    assert found.same_trunk
    assert (found.experts_added, found.experts_removed, found.contributions_added) == ([], [], [])
    router = next(file for file in again.files if file.name == "model-router.safetensors")
    assert router.size < found.fetch < again.bytes_total / 2
