"""A device's steps never wait for the host.

PyTorch's meta device stands for a GPU: its tensors have a shape and no values, so reading a value is an error, and so
is an operation on tensors of two devices.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.made import made_pass
from bench.sizes import SHAPES
from moerge.documents.shards import Shard
from moerge.models.tokens import Tokens
from moerge.statistics import decoder, packed_attention, streamed
from moerge.statistics.packed_attention import PACKED
from moerge.statistics.streamed import Streamed

META = torch.device("meta")
ROWS = [Tokens([1] * length, [place > 2 for place in range(length)]) for length in (5, 9, 30, 40)]


class NoTransfers:
    """Copies nothing; notes the bytes of each copy, and requires the devices of its direction."""

    def __init__(self) -> None:
        self.loaded, self.stored = list[int](), list[int]()

    def mark(self) -> None: ...
    def follow(self, mark: None) -> None: ...
    def wait(self, mark: None) -> None: ...

    def load(self, target: Tensor, source: Tensor, after: None) -> None:
        assert (target.device, source.device.type, target.shape) == (META, "cpu", source.shape)
        self.loaded.append(source.nbytes)

    def store(self, target: Tensor, source: Tensor, after: None) -> None:
        assert (source.device, target.device.type, target.shape) == (META, "cpu", source.shape)
        self.stored.append(source.nbytes)

    def host(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.ones(list(shape), dtype=dtype)


def to(tensor: Tensor, *given: Any, moved: Callable[..., Tensor] = Tensor.to, **named: Any) -> Tensor:
    """A copy to the device by which the host would wait for earlier steps is an error."""
    assert not (tensor.is_cpu and META in given) or named.get("non_blocking")
    return moved(tensor, *given, **named)


@pytest.mark.parametrize("room", [None, 0], ids=["device", "host"])
def test_a_pass_reads_no_value_of_the_device(monkeypatch: pytest.MonkeyPatch, room: int | None) -> None:
    copies = NoTransfers()
    monkeypatch.setattr(streamed, "transfers_of", lambda device: copies)
    monkeypatch.setattr(decoder, "transfers_of", lambda device: NoTransfers())
    monkeypatch.setattr(decoder, "require_all", lambda *given: None)  # to it, a tensor on this device is missing
    monkeypatch.setattr(packed_attention, "varlen_attn", lambda query, *others, **named: torch.empty_like(query))
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)  # needs a GPU
    work = made_pass(SHAPES["tiny"], "bfloat16", "meta")
    one = Streamed(work, 64, room=room)
    monkeypatch.setattr(Tensor, "to", to)
    one.begin([Shard(name, ROWS, len(ROWS)) for name in ("a", "b")])
    assert one._decoders[0]._model.config._attn_implementation == PACKED
    for layer in range(one.layers):
        result = one.sums({"a", "b"}, {"a", "b"})
        assert result is not None
        assert list(result.arrays) == [f"layers.{layer}.gram", f"layers.{layer}.cross"]
    hidden, tokens = work.config.hidden_size, sum(map(len, ROWS))
    states, integers = 2 * 2 * tokens * hidden, 2 * (8 * (hidden * (hidden + 1) // 2 + hidden) + 1)
    layers = 0 if room is None else one.layers
    assert sum(copies.stored) == one.layers * integers + max(layers - 1, 0) * states
    assert sum(copies.loaded) == layers * states
