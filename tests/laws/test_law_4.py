"""Law 4: everything counts exactly once, despite repeated requests. tests/unit/workers covers the worker's part."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moerge.errors import CoordinatorError
from moerge.fits.parts import write_parts
from moerge.models.dense_files import DenseFiles
from support.federation import (
    Owners,
    honest,
    honest_head,
    owners_in,
    registered,
    send,
)
from support.models import expert
from support.statistics import written


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owners]:
    with owners_in(tmp_path_factory.mktemp("law-4")) as made:
        yield made


def test_law_4_repeated_contribution_or_shard_counts_once(owners: Owners, tmp_path: Path) -> None:
    first = written(tmp_path / "first", *honest(owners.server, owners.art, owners.body, shards=2))
    accepted = send(owners.art, first)
    assert send(owners.art, first) == accepted
    assert [contribution.digest for contribution in owners.art.client.contributions()] == [accepted.digest]

    again = written(tmp_path / "again", *honest(owners.server, owners.art, owners.body, shards=2, first=1))
    with pytest.raises(CoordinatorError) as caught:
        send(owners.art, again)
    assert (caught.value.type, caught.value.where) == ("urn:moerge:problem:duplicate-shard", "manifest.shards")
    assert accepted.digest in caught.value.what
    with pytest.raises(CoordinatorError) as caught:
        send(owners.art, again, "0" * 64)
    assert caught.value.where == "supersedes"

    replaced = send(owners.art, again, accepted.digest)
    active = {contribution.digest: contribution.active for contribution in owners.art.client.contributions()}
    assert active == {accepted.digest: False, replaced.digest: True}


def test_law_4_contribution_supersedes_all_listed_or_none(owners: Owners, tmp_path: Path) -> None:
    files = [
        written(tmp_path / str(n), *honest(owners.server, owners.art, owners.body, first=500 + n)) for n in range(2)
    ]
    old = [send(owners.art, file).digest for file in files]
    whole = written(tmp_path / "whole", *honest(owners.server, owners.art, owners.body, shards=3, first=500))

    def active() -> set[str]:
        return {contribution.digest for contribution in owners.art.client.contributions() if contribution.active}

    before = active()
    with pytest.raises(CoordinatorError) as caught:
        send(owners.art, whole, *old, "0" * 64)
    assert caught.value.where == "supersedes"
    assert active() == before
    new = send(owners.art, whole, *old, *old)
    assert send(owners.art, whole, *old) == new  # the answer was lost, and it is sent again
    assert active() == before - set(old) | {new.digest}


def test_law_4_another_owner_can_supersede_nothing_of_others(owners: Owners, tmp_path: Path) -> None:
    mine = send(owners.law, written(tmp_path / "mine", *honest(owners.server, owners.law, owners.body, first=50)))
    theirs = written(tmp_path / "theirs", *honest(owners.server, owners.art, owners.body, first=60))
    with pytest.raises(CoordinatorError) as caught:
        send(owners.art, theirs, mine.digest)
    assert caught.value.where == "supersedes"
    assert {contribution.digest: contribution.active for contribution in owners.law.client.contributions()}[mine.digest]


def test_law_4_second_head_contribution_must_supersede_first(owners: Owners, tmp_path: Path) -> None:
    own = written(tmp_path / "own", *honest_head(owners.law))
    first = send(owners.law, own)
    assert send(owners.law, own) == first
    other = written(tmp_path / "other", *honest_head(owners.law, [[1, 2, 3]]))
    with pytest.raises(CoordinatorError, match="active head contribution is"):
        send(owners.law, other)
    second = send(owners.law, other, first.digest)
    assert [row.active for row in owners.law.client.contributions("head")] == [False, True]
    assert second.tokens != first.tokens


def test_law_4_repeated_registration_is_idempotent(owners: Owners, tmp_path: Path) -> None:
    known, own = registered(owners.law), owners.law.at
    assert owners.law.register() == known
    owners.law.at = write_parts(DenseFiles(expert(tmp_path / "other", seed=9)), tmp_path / "parts")
    with pytest.raises(CoordinatorError) as caught:
        owners.law.register()
    owners.law.at = own
    assert caught.value.where == "domain"
    assert list(owners.law.client.experts()) == [known]
