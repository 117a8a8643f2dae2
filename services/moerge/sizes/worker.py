"""Formulas of an owner's worker: one streamed pass for the trunk contribution, and one for the router contribution.

A window of shards passes the layers one by one. Its hidden states are in the host's memory, and one layer is on the
device.
"""

from moerge.memory.shapes import Shape
from moerge.sizes.files import contribution_bytes, expert_bytes, trunk_bytes

PASSES = 2


def read_bytes(shape: Shape, windows: int) -> int:
    """Bytes of weights that both passes read: all, once per window."""
    return PASSES * windows * expert_bytes(shape)


def disk(shape: Shape) -> int:
    """Bytes in the worker's home: the trunk, and each contribution twice, because a journal is replaced whole."""
    return trunk_bytes(shape) + 2 * contribution_bytes(shape)


def sent_bytes(shape: Shape) -> int:
    """Bytes of the expert and its two contributions, before compression."""
    return expert_bytes(shape) + contribution_bytes(shape)


def flop(shape: Shape, tokens: int) -> int:
    """Floating-point operations of both passes: 2 per parameter of the layers and token, and two per number of a gram's
    triangle and token.
    """
    grams = sum(shape.triangles(trunk=True)) + sum(shape.triangles(trunk=False))
    return tokens * 2 * (PASSES * shape.layers * shape.layer + grams)
