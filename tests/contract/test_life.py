"""Withdrawing and purging experts: what goes, what stays, and who is told."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from moerge.cli.common import wait
from moerge.client.register import register
from moerge.errors import CoordinatorError, MoergeError
from moerge.models.expert_folder import file_digests
from moerge_proto.contributions import NewContribution
from moerge_proto.experts import ExpertState, NewExpert
from moerge_proto.options import RECOMMENDED
from moerge_proto.trunks import Trunk
from moerge_proto.versions import NewVersion, Version
from support.fleet import SILENT, Member, files_below, honest, honest_trunk, join, joined, merge, send, send_trunk
from support.models import expert
from support.processes import Coordinator, coordinator, moerge
from support.statistics import written


@dataclass
class Fleet:
    server: Coordinator
    members: dict[str, Member]
    folder: Path

    def expert(self, domain: str) -> str:
        return next(row.digest for row in self.members[domain].client.experts() if row.domain == domain)

    def contribute(self, domain: str, trunk: Trunk) -> None:
        member = self.members[domain]
        send(member, written(self.folder / "contribution", *honest(self.server, member, trunk)))

    def solve(self, new: NewVersion | None = None) -> Version:
        with self.server.client() as operator:
            return operator.version(int(wait(operator, operator.solve_version(new or NewVersion()))))

    def current(self) -> Trunk:
        with self.server.client() as operator:
            trunk = operator.current_trunk()
        assert trunk is not None
        return trunk

    def operator(self, *arguments: object) -> str:
        return moerge(*arguments, **self.server.environment())

    def get(self, path: str) -> httpx.Response:
        return httpx.get(
            f"{self.server.url}/v1{path}", headers={"Authorization": f"Bearer {self.server.operator_token}"}
        )


def furnished(server: Coordinator, folder: Path, *domains: str) -> Fleet:
    """A fleet of these domains' experts; each has the same weights and statistics wherever it is made."""
    seeds = {"law": 1, "art": 2, "code": 3}
    return Fleet(server, {domain: joined(server, domain, folder, seeds[domain]) for domain in domains}, folder)


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets, each on a coordinator of its own."""
    made: list[Fleet] = []
    running = []

    def make(*domains: str) -> Fleet:
        folder = tmp_path / f"fleet-{len(made)}"
        server = coordinator(folder / "home")
        running.append(server)
        made.append(furnished(server.__enter__(), folder, *domains))
        return made[-1]

    yield make
    for fleet in made:
        for member in fleet.members.values():
            member.client.close()
    for server in running:
        server.__exit__(None, None, None)


def solved(fleet: Fleet, *trunk: str) -> Version:
    """A version of all members on a trunk of those named."""
    made = merge(fleet.server, [fleet.expert(domain) for domain in trunk])
    for domain in fleet.members:
        fleet.contribute(domain, made)
    return fleet.solve()


def test_an_operator_can_withhold_the_versions_that_contain_a_withdrawn_expert(fleets: Callable[..., Fleet]) -> None:
    fleet = fleets("law", "art")
    solved(fleet, "law", "art")
    fleet.operator("version", "promote", 1)
    said = fleet.operator("expert", "withdraw", "law", "--withhold")
    assert "law is withdrawn" in said
    assert "(withheld)" in said
    refused = fleet.get("/versions/1/files/config.json")
    assert (refused.status_code, refused.json()["type"]) == (410, "urn:moerge:problem:gone")
    fleet.contribute("art", fleet.current())
    assert fleet.solve().number == 2
    assert fleet.get("/versions/2/files/config.json").status_code == 200


def test_purging_removes_the_files_and_names_the_versions_that_need_them(fleets: Callable[..., Fleet]) -> None:
    fleet, fresh = fleets("law", "art"), fleets("art")
    solved(fleet, "law", "art")
    law = fleet.members["law"].client
    digest = fleet.expert("law")
    with pytest.raises(CoordinatorError, match="the expert is ready"):
        law.purge_expert(digest)
    done = law.withdraw_expert(digest)
    assert done.remerge is not None
    with fleet.server.client() as operator:
        wait(operator, done.remerge)
        first = law.purge_expert(digest)
        assert (first.versions, law.expert(digest).purged is not None) == ([1], True)
        assert first.removed > 0
        assert fleet.get("/versions/1/files/model-expert-00000.safetensors").status_code == 200
        with pytest.raises(CoordinatorError, match="an operator retires versions"):
            law.purge_expert(digest, retire=True)
        operator.promote("champion", 1)
        with pytest.raises(CoordinatorError, match="the alias 'champion' points to version 1"):
            operator.purge_expert(digest, retire=True)
        operator.remove_alias("champion")
        assert operator.purge_expert(digest, retire=True).versions == []
        assert operator.version(1).retired is not None
    assert fleet.get("/versions/1/files/config.json").status_code == 410
    fleet.contribute("art", fleet.current())
    fleet.solve()
    solved(fresh, "art")
    left, alone = (
        {Path(path).name for path in files_below(each.server) if path.startswith("blobs")} for each in (fleet, fresh)
    )
    old = {row.digest for row in fleet.members["art"].client.contributions() if row.trunk != fleet.current().digest}
    assert left - alone == old


def test_a_withdrawn_domain_takes_another_expert_and_the_same_one_may_come_back(fleets: Callable[..., Fleet]) -> None:
    fleet = fleets("law", "art")
    law, first = fleet.members["law"], fleet.expert("law")
    law.client.withdraw_expert(first)
    other = joined_again(fleet, "law", seed=9)
    assert other != first
    assert [row.state for row in law.client.experts()] == [ExpertState.WITHDRAWN, ExpertState.READY]
    law.client.withdraw_expert(other)
    law.folder = fleet.folder / "law"
    assert law.register().digest == first
    assert law.client.expert(first).withdrawn is None


def joined_again(fleet: Fleet, domain: str, seed: int) -> str:
    member = fleet.members[domain]
    member.folder = expert(fleet.folder / f"{domain}-{seed}", seed)
    return member.register().digest


def test_a_newcomer_can_ask_for_a_remerge_in_the_same_call(fleets: Callable[..., Fleet]) -> None:
    fleet = fleets("law")
    old = merge(fleet.server)
    art = join(fleet.server, "art", expert(fleet.folder / "art", 2))
    command = ["expert", "add", art.folder, "--domain", "art", "--trunk", "remerge"]
    digest = moerge(*command, **fleet.server.environment(art.token))
    fleet.members["art"] = art
    assert digest == fleet.expert("art")
    while fleet.current().digest == old.digest:
        assert art.client.expert(fleet.expert("art")).state is not ExpertState.REFUSED
    assert fleet.current().experts == [fleet.expert("law"), fleet.expert("art")]


def test_what_was_withdrawn_joins_again_only_when_that_is_asked(fleets: Callable[..., Fleet]) -> None:
    fleet = fleets("law")
    law = fleet.members["law"]
    digest = fleet.expert("law")
    law.client.withdraw_expert(digest)
    again = NewExpert(domain="law", files=file_digests(law.folder))
    with pytest.raises(MoergeError, match="was withdrawn") as caught:  # a worker that starts again
        register(law.client, law.folder, again, SILENT)
    assert "moerge expert add" in caught.value.todo
    assert moerge("expert", "add", law.folder, "--domain", "law", **fleet.server.environment(law.token)) == digest
    assert register(law.client, law.folder, again, SILENT).state is ExpertState.READY


def test_withdrawing_a_trunk_contribution_retires_the_trunk_that_was_solved_from_it(
    fleets: Callable[..., Fleet],
) -> None:
    fleet = fleets("law", "art")
    sent = {
        domain: send_trunk(member, written(fleet.folder / f"{domain}-trunk", *honest_trunk(member)))
        for domain, member in fleet.members.items()
    }
    trunk = merge(fleet.server, method="regmean")
    fleet.members["law"].client.withdraw_contribution(sent["law"].digest)
    while (now := fleet.current()).digest == trunk.digest:
        pass
    assert now.experts == [fleet.expert("art")]
    with fleet.server.client() as operator:
        assert operator.trunk(trunk.digest).retired is not None
        with pytest.raises(CoordinatorError, match="was retired"):
            operator.solve_version(NewVersion(trunk=trunk.digest))


def test_solving_again_with_other_options_needs_nobody(fleets: Callable[..., Fleet]) -> None:
    fleet = fleets("law", "art")
    solved(fleet, "law", "art")
    others = {"ridge_lambda": 10.0, "top_k": 2, "domain_weights": {"law": 2.0}}
    again = fleet.solve(NewVersion.model_validate({"options": others}))
    assert again.number == 2
    with fleet.server.client() as operator:
        found = operator.compare_versions(1, 2)
    assert found.options == {name: (getattr(RECOMMENDED.solve, name), value) for name, value in others.items()}
    assert found.same_trunk
    assert (found.experts_added, found.experts_removed, found.contributions_added) == ([], [], [])
    router = next(file for file in again.files if file.name == "model-router.safetensors")
    assert router.size < found.fetch < again.bytes_total / 2


def test_a_contribution_of_a_withdrawn_expert_is_refused(fleets: Callable[..., Fleet]) -> None:
    fleet = fleets("law", "art")
    trunk = merge(fleet.server, [fleet.expert("art")])
    law = fleet.members["law"]
    path = written(fleet.folder / "late", *honest(fleet.server, law, trunk))
    stored = law.client.upload(path, SILENT, title="late")
    law.client.withdraw_expert(fleet.expert("law"))
    with pytest.raises(CoordinatorError) as caught:
        law.client.contribute(NewContribution(sha256=stored.sha256))
    assert caught.value.where == "manifest.expert"
