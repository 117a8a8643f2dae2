"""Law 5: removal is exact. The next version is as if what was withdrawn had never been there."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.cli.common import wait
from moerge.errors import CoordinatorError
from moerge_proto.experts import ExpertState
from moerge_proto.options import PAPER
from moerge_proto.trunks import Trunk
from moerge_proto.versions import NewVersion, Version
from support.federation import Member, honest, joined, merge, registered, send
from support.lineages import DOMAINS, Group, groupings, solved
from support.processes import Coordinator, coordinator, moerge
from support.statistics import written

SEEDS = {"law": 1, "art": 2, "code": 3}


@dataclass
class Fleet:
    """Owners on a coordinator; each has the same weights and statistics wherever it is made."""

    server: Coordinator
    members: dict[str, Member]
    folder: Path

    def expert(self, domain: str) -> str:
        return registered(self.members[domain]).digest

    def contribute(self, trunk: Trunk, *domains: str) -> None:
        for member in (self.members[domain] for domain in domains or self.members):
            send(member, written(self.folder / "contribution", *honest(self.server, member, trunk)))

    def solve(self, new: NewVersion | None = None) -> Version:
        with self.server.client() as operator:
            return operator.version(int(wait(operator, operator.solve_version(new or NewVersion()))))

    def routers(self, version: Version) -> str:
        """Their digest."""
        return next(file.sha256 for file in version.files if file.name == "model-router.safetensors")

    def card(self, number: int) -> str:
        token = {"Authorization": f"Bearer {self.server.operator_token}"}
        return httpx.get(f"{self.server.url}/v1/versions/{number}/card", headers=token).raise_for_status().text


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets, each on a coordinator of its own."""
    with ExitStack() as stack:

        def make(name: str, *domains: str) -> Fleet:
            folder = tmp_path / name
            server = stack.enter_context(coordinator(folder / "home"))
            members = {domain: joined(server, domain, folder, SEEDS[domain]) for domain in domains}
            for member in members.values():
                stack.callback(member.client.close)
            return Fleet(server, members, folder)

        yield make


def test_law_5_a_withdrawn_expert_is_gone_from_the_next_version(fleets: Callable[..., Fleet]) -> None:
    """Its trunk is retired and merged anew; then all is as on a coordinator that never had it."""
    fleet, fresh = fleets("fleet", "law", "art", "code"), fleets("fresh", "law", "art")
    fleet.contribute(merge(fleet.server))
    first = fleet.solve()
    done = fleet.members["code"].client.withdraw_expert(fleet.expert("code"))
    assert (done.expert.state, done.trunks, done.versions) == (ExpertState.WITHDRAWN, [first.lineage.trunk], [1])
    assert done.remerge is not None
    with fleet.server.client() as operator:
        wait(operator, done.remerge)
        assert operator.trunk(first.lineage.trunk).retired is not None
        assert operator.version(1).contains_withdrawn == [fleet.expert("code")]
        trunk = operator.current_trunk()
    assert trunk is not None
    fleet.contribute(trunk, "law", "art")
    fresh.contribute(merge(fresh.server))
    second, alone = fleet.solve(), fresh.solve()
    assert second.lineage.domains == ["law", "art"]
    assert (second.lineage, second.contains_withdrawn) == (alone.lineage, [])
    assert {file.name: file.sha256 for file in second.files} == {file.name: file.sha256 for file in alone.files}


def test_law_5_a_withdrawn_contribution_leaves_no_trace_and_may_come_again(fleets: Callable[..., Fleet]) -> None:
    """Domains count as they contributed, so that half of a domain's statistics makes other routers."""
    fleet, new = fleets("fleet", "law", "art"), NewVersion(options=PAPER.solve)
    trunk = merge(fleet.server)
    fleet.contribute(trunk)
    without = fleet.routers(fleet.solve(new))
    law = fleet.members["law"]
    further = written(fleet.folder / "further", *honest(fleet.server, law, trunk, first=10))
    sent = send(law, further)
    both = fleet.routers(fleet.solve(new))
    with pytest.raises(CoordinatorError, match="no contribution"):
        fleet.members["art"].client.withdraw_contribution(sent.digest)
    assert law.client.withdraw_contribution(sent.digest).active is False
    assert law.client.withdraw_contribution(sent.digest).withdrawn is not None
    assert fleet.routers(fleet.solve(new)) == without != both
    again = send(law, further)
    assert (again.digest, again.active, again.withdrawn) == (sent.digest, True, None)
    assert fleet.routers(fleet.solve(new)) == both


def test_law_5_until_the_trunk_is_merged_anew_every_card_says_what_it_still_contains(
    fleets: Callable[..., Fleet],
) -> None:
    """No trunk can be made of what is left, so the old one stays, and says so."""
    fleet = fleets("fleet", "law", "art")
    law = fleet.expert("law")
    fleet.contribute(merge(fleet.server, method="base", options={"base": law}))
    fleet.solve()
    assert "withdrawn" not in fleet.card(1)
    with fleet.server.client() as operator:
        assert operator.withdraw_expert(law).remerge is None
    version = fleet.solve()
    assert version.lineage.domains == ["art"]
    assert version.lineage.withdrawn == version.contains_withdrawn == [law]
    told = f"The trunk still contains parameters of experts that were withdrawn: law (`{law}`)"
    folder = fleet.server.home / "versions" / str(version.number)
    assert told in (folder / "README.md").read_text()
    assert f"law (`{law}`)" in fleet.card(1)
    assert "Contains what is withdrawn: law" in moerge("version", "show", 1, **fleet.server.environment())


@settings(max_examples=20, deadline=None)
@given(groups=groupings(), gone=st.sampled_from(DOMAINS))
def test_law_5_a_domain_that_is_left_out_leaves_no_trace(
    tmp_path_factory: pytest.TempPathFactory, groups: list[Group], gone: str
) -> None:
    """Leaving a domain out of the sums equals a fresh coordinator that never had it."""
    folder = tmp_path_factory.mktemp("left-out")
    left = [domain for domain in DOMAINS if domain != gone]
    remaining = [group for group in groups if group[0] != gone]
    fresh: list[Group] = [(domain, range(4)) for domain in left]
    assert solved(folder, remaining, left) == solved(folder, fresh, left)
