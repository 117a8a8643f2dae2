"""Law 4 at home: the journal counts a shard once in each layer, and its bytes don't tell how the work went."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.errors import MoergeError
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.journal import Journal
from moerge_proto.digests import sha256_hex
from moerge_proto.statistics_file import StatisticsFile
from support.statistics import LAYERS, honest_shards, manifest_of, written

SHARDS = {sha256_hex(bytes([n])): sums for n, sums in enumerate(honest_shards(6, 20, 5, 6, 0))}
NAMES = list(SHARDS)
BLANK = manifest_of(SHARDS[NAMES[0]], 1).model_copy(update={"tokens": 1, "documents": 1, "shards": ["0" * 64]})
STEPS = [(layer, name) for layer in range(LAYERS) for name in NAMES]


def part(sums: ShardSums, layer: int) -> ShardSums:
    own = {name: array for name, array in sums.arrays.items() if name.startswith(f"layers.{layer}.")}
    return ShardSums(own, sums.tokens, sums.documents)


def add(journal: Journal, layer: int, *names: str) -> None:
    one, *others = (part(SHARDS[name], layer) for name in names)
    journal.add(layer, names, sum(others, one))


def straight(folder: Path) -> bytes:
    path = folder / "straight.safetensors"
    journal = Journal(path, BLANK)
    for layer in range(LAYERS):
        add(journal, layer, *NAMES)
    journal.join()
    return path.read_bytes()


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(STEPS), cuts=st.lists(st.integers(0, len(STEPS)), max_size=4))
def test_any_order_and_restarts_give_the_same_journal_bytes(
    tmp_path_factory: pytest.TempPathFactory, order: list[tuple[int, str]], cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    path = folder / "journal.safetensors"
    for cut in [*cuts, len(STEPS)]:
        journal = Journal(path, BLANK)  # as after a kill: only the files are left
        for layer, name in order[:cut]:
            if name not in journal.shards[layer]:
                add(journal, layer, name)
    assert journal.complete == journal.begun == set(NAMES)
    journal.join()
    assert [item.name for item in folder.iterdir()] == [path.name]
    assert path.read_bytes() == straight(folder)
    again = Journal(path, BLANK)
    assert again.complete == set(NAMES)
    assert again.join().shards == sorted(NAMES)


def test_law_4_a_shard_is_never_added_twice_to_a_layer(tmp_path: Path) -> None:
    path = tmp_path / "journal.safetensors"
    journal = Journal(path, BLANK)
    add(journal, 1, NAMES[0])
    for item in (journal, Journal(path, BLANK)):
        with pytest.raises(ValueError, match="counts already"):
            add(item, 1, NAMES[1], NAMES[0])
    assert journal.complete == set()
    assert journal.begun == {NAMES[0]}


def test_an_earlier_contribution_is_gone_on_with(tmp_path: Path) -> None:
    first = SHARDS[NAMES[0]]
    before = written(tmp_path / "before", BLANK.model_copy(update=_counts(first, NAMES[:1])), first)
    path = tmp_path / "journal.safetensors"
    for layer in range(LAYERS):
        add(Journal(path, BLANK, before), layer, *NAMES[1:])
    Journal(path, BLANK, before).join()
    assert path.read_bytes() == straight(tmp_path)


def _counts(sums: ShardSums, names: list[str]) -> dict[str, object]:
    return {"tokens": sums.tokens, "documents": sums.documents, "shards": sorted(names)}


def test_layers_with_different_shards_are_not_joined(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.safetensors", BLANK)
    for layer in range(LAYERS):
        add(journal, layer, *NAMES[: 2 if layer else 1])
    with pytest.raises(MoergeError, match="differ from those of layer 0"):
        journal.join()


def test_a_journal_of_other_work_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.safetensors"
    add(Journal(path, BLANK), 0, NAMES[0])
    with pytest.raises(MoergeError, match="other work"):
        Journal(path, BLANK.model_copy(update={"body": "9" * 64}))
    [own] = tmp_path.glob("journal.0.part")
    own.write_bytes(own.read_bytes()[:-1])
    with pytest.raises(MoergeError, match="damaged") as caught:
        Journal(path, BLANK)
    assert "remove the file" in caught.value.todo


def test_a_layer_s_file_names_its_shards_and_is_no_contribution(tmp_path: Path) -> None:
    add(Journal(tmp_path / "journal.safetensors", BLANK), 1, *NAMES[:2])
    [own] = tmp_path.iterdir()
    with StatisticsFile(own, range(1, 2)) as file:
        assert file.manifest.shards == sorted(NAMES[:2])
    with pytest.raises(ValueError, match="not in canonical form"):
        StatisticsFile(own)
