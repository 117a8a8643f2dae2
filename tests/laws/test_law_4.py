"""Law 4: everything counts exactly once, whatever is sent again. tests/unit/workers has what a worker does for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from moerge.errors import CoordinatorError
from moerge_proto.trunks import Trunk
from support.federation import Member, honest, honest_trunk, joined, merge, registered, send, send_trunk
from support.models import expert
from support.processes import Coordinator, coordinator
from support.statistics import written


@dataclass
class Fleet:
    server: Coordinator
    law: Member
    art: Member
    trunk: Trunk


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with coordinator(folder / "home") as server:
        law, art = (joined(server, domain, folder, seed) for seed, domain in enumerate(("law", "art"), start=1))
        yield Fleet(server, law, art, merge(server))
        law.client.close()
        art.client.close()


def test_law_4_a_contribution_sent_twice_counts_once_and_a_shard_too(fleet: Fleet, tmp_path: Path) -> None:
    first = written(tmp_path / "first", *honest(fleet.server, fleet.art, fleet.trunk, shards=2))
    accepted = send(fleet.art, first)
    assert send(fleet.art, first) == accepted
    assert [each.digest for each in fleet.art.client.contributions()] == [accepted.digest]

    again = written(tmp_path / "again", *honest(fleet.server, fleet.art, fleet.trunk, shards=2, first=1))
    with pytest.raises(CoordinatorError) as caught:
        send(fleet.art, again)
    assert (caught.value.type, caught.value.where) == ("urn:moerge:problem:duplicate-shard", "manifest.shards")
    assert accepted.digest in caught.value.what
    with pytest.raises(CoordinatorError) as caught:
        send(fleet.art, again, "0" * 64)
    assert caught.value.where == "supersedes"

    replaced = send(fleet.art, again, accepted.digest)
    active = {each.digest: each.active for each in fleet.art.client.contributions()}
    assert active == {accepted.digest: False, replaced.digest: True}


def test_law_4_one_contribution_takes_the_place_of_several_or_of_none(fleet: Fleet, tmp_path: Path) -> None:
    files = [written(tmp_path / str(n), *honest(fleet.server, fleet.art, fleet.trunk, first=500 + n)) for n in range(2)]
    old = [send(fleet.art, file).digest for file in files]
    whole = written(tmp_path / "whole", *honest(fleet.server, fleet.art, fleet.trunk, shards=3, first=500))

    def active() -> set[str]:
        return {each.digest for each in fleet.art.client.contributions() if each.active}

    before = active()
    with pytest.raises(CoordinatorError) as caught:
        send(fleet.art, whole, *old, "0" * 64)
    assert caught.value.where == "supersedes"
    assert active() == before
    new = send(fleet.art, whole, *old, *old)
    assert send(fleet.art, whole, *old) == new  # the answer was lost, and it is sent again
    assert active() == before - set(old) | {new.digest}


def test_law_4_another_owner_can_supersede_nothing_of_others(fleet: Fleet, tmp_path: Path) -> None:
    mine = send(fleet.law, written(tmp_path / "mine", *honest(fleet.server, fleet.law, fleet.trunk, first=50)))
    theirs = written(tmp_path / "theirs", *honest(fleet.server, fleet.art, fleet.trunk, first=60))
    with pytest.raises(CoordinatorError) as caught:
        send(fleet.art, theirs, mine.digest)
    assert caught.value.where == "supersedes"
    assert {each.digest: each.active for each in fleet.law.client.contributions()}[mine.digest]


def test_law_4_an_expert_has_one_trunk_contribution_and_another_must_supersede_it(fleet: Fleet, tmp_path: Path) -> None:
    own = written(tmp_path / "own", *honest_trunk(fleet.law))
    first = send_trunk(fleet.law, own)
    assert send_trunk(fleet.law, own) == first
    other = written(tmp_path / "other", *honest_trunk(fleet.law, [[1, 2, 3]]))
    with pytest.raises(CoordinatorError, match="active trunk contribution is"):
        send_trunk(fleet.law, other)
    second = send_trunk(fleet.law, other, first.digest)
    assert [row.active for row in fleet.law.client.contributions("trunk")] == [False, True]
    assert second.tokens == 3


def test_law_4_registering_again_changes_nothing_and_another_expert_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    known, own = registered(fleet.law), fleet.law.folder
    assert fleet.law.register() == known
    fleet.law.folder = expert(tmp_path / "other", seed=9)
    with pytest.raises(CoordinatorError) as caught:
        fleet.law.register()
    fleet.law.folder = own
    assert caught.value.where == "domain"
    assert list(fleet.law.client.experts()) == [known]
