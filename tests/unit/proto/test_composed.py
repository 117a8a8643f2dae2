"""Segments of a file's tensors: the bytes of these slots, in the file's order."""

from itertools import pairwise
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save, save_file

from moerge_proto.composed import slot_segments
from moerge_proto.ranges import opened, read_bytes

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 4).flatmap(lambda of: st.tuples(st.just(of), st.sets(st.integers(0, of - 1), min_size=1))), SIZES)
def test_segments_of_slots_are_the_file_with_these_slots_alone(
    tmp_path: Path, slots: tuple[int, set[int]], sizes: list[int]
) -> None:
    of, chosen = slots[0], sorted(slots[1])
    tensors = {f"layer {n}": torch.rand(of, size) for n, size in enumerate(sizes)}
    save_file(tensors, path := tmp_path / "all.safetensors", {"format": "pt"})
    file = opened(path)
    segments = slot_segments(file, "0" * 64, chosen, of)
    found = b"".join(read_bytes(file, segment.start, segment.size) for segment in segments)
    whole = slot_segments(file, "0" * 64, None, of)
    file.close()
    expected = save({name: tensor[chosen] for name, tensor in tensors.items()}, {"format": "pt"})
    assert found == expected[len(expected) - len(found) :]
    assert load(expected)
    assert len(found) == sum(4 * len(chosen) * size for size in sizes)
    assert [segment.end for segment in whole] == [path.stat().st_size]
    assert all(one.end < other.start for one, other in pairwise(segments))
