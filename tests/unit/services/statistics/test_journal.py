"""Law 4 at home: the journal counts a shard once, and its bytes don't tell how the work went."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.errors import MoergeError
from moerge.statistics.journal import Journal
from moerge_proto.digests import sha256_hex
from moerge_proto.statistics_file import StatisticsFile
from support.statistics import honest_shards, manifest_of

SHARDS = {sha256_hex(bytes([n])): sums for n, sums in enumerate(honest_shards(6, 20, 5, 6, 0))}
BLANK = manifest_of(next(iter(SHARDS.values())), 1).model_copy(
    update={"tokens": 1, "documents": 1, "shards": ["0" * 64]}
)


def straight(folder: Path) -> bytes:
    journal = Journal(folder / "straight", BLANK, 0)
    for name, sums in SHARDS.items():
        journal.add(name, sums)
    journal.save()
    return (folder / "straight").read_bytes()


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(list(SHARDS)), cuts=st.sets(st.integers(0, 5)), seconds=st.sampled_from([0.0, 1e9]))
def test_any_order_and_any_number_of_restarts_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, order: list[str], cuts: set[int], seconds: float
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    path = folder / "journal"
    for number in range(6):
        journal = Journal(path, BLANK, seconds)  # as after a kill: only the file is left
        for name in order[: 5 if number == 5 else number]:
            if name not in journal.shards:
                journal.add(name, SHARDS[name])
        if journal.shards and (number in cuts or number == 5):
            journal.save()
    assert path.read_bytes() == straight(folder)


def test_law_4_a_shard_is_never_added_twice(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", BLANK, 1e9)
    name, sums = next(iter(SHARDS.items()))
    journal.add(name, sums)
    with pytest.raises(ValueError, match="counts already"):
        journal.add(name, sums)
    journal.save()
    with pytest.raises(ValueError, match="counts already"):
        Journal(tmp_path / "journal", BLANK, 1e9).add(name, sums)


def test_a_journal_is_written_at_once_when_it_should_be(tmp_path: Path) -> None:
    name, sums = next(iter(SHARDS.items()))
    Journal(tmp_path / "late", BLANK, 1e9).add(name, sums)
    assert not (tmp_path / "late").exists()
    Journal(tmp_path / "now", BLANK, 0).add(name, sums)
    with StatisticsFile(tmp_path / "now") as file:
        assert file.manifest.shards == [name]


def test_a_journal_of_other_work_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BLANK, 1e9)
    journal.add(*next(iter(SHARDS.items())))
    journal.save()
    with pytest.raises(MoergeError, match="other work"):
        Journal(path, BLANK.model_copy(update={"trunk": "9" * 64}), 1e9)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(MoergeError, match="damaged") as caught:
        Journal(path, BLANK, 1e9)
    assert "remove the file" in caught.value.todo


def test_no_tokens_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MoergeError, match="no document"):
        Journal(tmp_path / "journal", BLANK, 0).save()
