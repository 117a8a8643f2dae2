"""The law of a keeper: a cohort is answered whole, and never with one of its owners more or less."""

import sqlite3
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moerge.errors import MoergeError
from moerge.masks.keeper import JOURNAL, Keeper, KeeperError
from moerge_proto.digests import sha256_hex
from moerge_proto.masks import MaskedPart, MasksRequest
from support.masked import MaskedOwner, keeper_of

OWNERS = [MaskedOwner(domain) for domain in ("art", "code", "law", "music", "trade", "wine")]


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return keeper_of(tmp_path, OWNERS)


def request(parts: list[MaskedPart]) -> MasksRequest:
    return MasksRequest(parts=parts)


def test_a_cohort_is_answered_again_and_no_other_set_of_its_owners(keeper: Keeper, tmp_path: Path) -> None:
    parts = [owner.part([keeper.public_key]) for owner in OWNERS]
    seeds = keeper.seeds(request(parts[:4]))
    for count in range(3, 7):
        for some in combinations(parts, count):
            if set(map(id, some)) != set(map(id, parts[:4])):
                with pytest.raises(KeeperError, match="is in cohort 1,"):
                    keeper.seeds(request(list(some)))
    again = Keeper(tmp_path)  # after a kill
    assert again.seeds(request(parts[3::-1])) == seeds[::-1]
    assert [item.parts for item in again.cohorts()] == [
        [f"{name}-owner/{name}" for name in ("art", "code", "law", "music")]
    ]


def test_fewer_owners_than_one_asks_for_are_refused(keeper: Keeper) -> None:
    parts = [owner.part([keeper.public_key], owners=5 if owner.domain == "law" else 3) for owner in OWNERS]
    with pytest.raises(KeeperError, match=r"2 owners; .* at least 3"):
        keeper.seeds(request(parts[:2]))
    with pytest.raises(KeeperError, match="4 owners; law-owner asks for at least 5"):
        keeper.seeds(request(parts[:4]))
    twice = [OWNERS[0].part([keeper.public_key], contribution=digit * 64) for digit in "12345"]
    with pytest.raises(KeeperError, match="1 owners"):
        keeper.seeds(request(twice))


def test_whole_further_cohorts_and_other_bodies_are_answered(keeper: Keeper) -> None:
    parts = [owner.part([keeper.public_key]) for owner in OWNERS]
    keeper.seeds(request(parts[:3]))
    keeper.seeds(request(parts[3:]))
    keeper.seeds(request([owner.part([keeper.public_key], body="8" * 64) for owner in OWNERS[1:]]))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sets=st.lists(st.sets(st.sampled_from(range(6)), min_size=2), max_size=5), body=st.uuids())
def test_no_combination_of_answers_has_less_than_a_cohort(keeper: Keeper, sets: list[set[int]], body: UUID) -> None:
    """Answered sets are equal or disjoint, so every combination of them has whole cohorts only."""
    parts = [owner.part([keeper.public_key], body=sha256_hex(body.bytes)) for owner in OWNERS]
    answered = list[set[int]]()
    for chosen in sets:
        with suppress(KeeperError):
            keeper.seeds(request([parts[place] for place in sorted(chosen)]))
            answered.append(chosen)
    assert all(len(item) >= 3 for item in answered)
    assert all(one == other or one.isdisjoint(other) for one in answered for other in answered)


def test_only_parts_of_approved_owners_count(keeper: Keeper) -> None:
    parts = [owner.part([keeper.public_key]) for owner in OWNERS[:2]]
    stranger = MaskedOwner("sea")
    with pytest.raises(KeeperError, match="not signed by an approved key of 'sea-owner'"):
        keeper.seeds(request([*parts, stranger.part([keeper.public_key])]))
    part = OWNERS[2].part([keeper.public_key])
    known = stranger.part([keeper.public_key]).seals.sealed  # by the coordinator in place of the owner
    forged = part.seals.model_copy(update={"sealed": known})
    with pytest.raises(KeeperError, match="not signed by an approved key of 'law-owner'"):
        keeper.seeds(request([*parts, part.model_copy(update={"seals": forged})]))
    with pytest.raises(KeeperError, match="no seed of this part is sealed for this keeper"):
        keeper.seeds(request([*parts, OWNERS[2].part(["3" * 64])]))
    assert keeper.cohorts() == []


def test_an_owner_can_not_stand_in_for_others_of_a_cohort(keeper: Keeper) -> None:
    parts = [owner.part([keeper.public_key]) for owner in OWNERS[:3]]
    keeper.seeds(request(parts))
    colluding = [OWNERS[1].part([keeper.public_key], contribution=part.contribution) for part in parts[1:]]
    with pytest.raises(KeeperError, match="2 owners"):
        keeper.seeds(request([parts[0], *colluding]))


def test_a_key_is_replaced_on_request_only(keeper: Keeper) -> None:
    new = MaskedOwner("art")
    with pytest.raises(MoergeError, match="art-owner has another key"):
        keeper.approve(new.request, replace=False)
    keeper.approve(new.request, replace=True)
    keeper.approve(new.request, replace=False)
    parts = [owner.part([keeper.public_key]) for owner in OWNERS[:3]]
    with pytest.raises(KeeperError, match="not signed by an approved key of 'art-owner'"):
        keeper.seeds(request(parts))
    keeper.seeds(request([new.part([keeper.public_key]), *parts[1:]]))


def test_rows_of_the_journal_stay(keeper: Keeper, tmp_path: Path) -> None:
    keeper.seeds(request([owner.part([keeper.public_key]) for owner in OWNERS]))
    database = sqlite3.connect(tmp_path / JOURNAL)
    for table in ("owners", "cohorts", "members"):
        with pytest.raises(sqlite3.IntegrityError, match="rows stay"):
            database.execute(f"DELETE FROM {table}")  # noqa: S608  # one of these
    database.close()
