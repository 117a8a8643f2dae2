"""Law 2: grams add up under one trunk only."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from moerge.cli.common import wait
from moerge.errors import CoordinatorError
from moerge_proto.trunks import Trunk
from moerge_proto.versions import NewVersion, Version
from support.federation import Member, files_below, honest, joined, merge, registered, send
from support.processes import Coordinator, coordinator
from support.statistics import written


@dataclass
class Trunks:
    """Two owners on a coordinator, and two trunks of their experts; the second is the current one."""

    server: Coordinator
    law: Member
    art: Member
    first: Trunk
    second: Trunk

    def solve(self) -> Version:
        with self.server.client() as operator:
            return operator.version(int(wait(operator, operator.solve_version(NewVersion()))))


@pytest.fixture(scope="module")
def trunks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trunks]:
    folder = tmp_path_factory.mktemp("trunks")
    with coordinator(folder / "home") as server:
        law, art = (joined(server, domain, folder, seed) for seed, domain in enumerate(("law", "art"), 1))
        yield Trunks(server, law, art, merge(server), merge(server, [registered(art).digest]))
        law.client.close()
        art.client.close()


def test_law_2_a_contribution_under_any_trunk_but_the_current_one_is_refused_and_not_kept(
    trunks: Trunks, tmp_path: Path
) -> None:
    before, (manifest, sums) = files_below(trunks.server), honest(trunks.server, trunks.law, trunks.first)
    for trunk in (trunks.first.digest, "0" * 64):
        path = written(tmp_path / "file", manifest.model_copy(update={"trunk": trunk}), sums)
        with pytest.raises(CoordinatorError) as caught:
            send(trunks.law, path)
        assert (caught.value.type, caught.value.where) == ("urn:moerge:problem:wrong-trunk", "manifest.trunk")
    assert files_below(trunks.server) == before
    assert not list(trunks.law.client.contributions())


def test_law_2_a_version_is_made_of_its_own_trunk_s_contributions(trunks: Trunks, tmp_path: Path) -> None:
    """Those under the second trunk don't count under the first, and count again when the second is current again."""
    second = [
        send(member, written(tmp_path / "file", *honest(trunks.server, member, trunks.second)))
        for member in (trunks.law, trunks.art)
    ]
    assert merge(trunks.server) == trunks.first
    with pytest.raises(CoordinatorError, match="at least one expert with a contribution"):
        trunks.solve()
    first = send(trunks.art, written(tmp_path / "file", *honest(trunks.server, trunks.art, trunks.first)))
    version = trunks.solve()
    assert (version.lineage.domains, version.lineage.contributions) == (["art"], [first.digest])
    assert merge(trunks.server, trunks.second.experts) == trunks.second
    assert set(trunks.solve().lineage.contributions) == {each.digest for each in second}
