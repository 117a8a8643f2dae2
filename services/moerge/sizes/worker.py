"""Formulas of an owner's worker: one streamed pass for the trunk contribution, and one for the router contribution.

A window of shards passes the layers one by one. Its hidden states are in the host's memory, and one layer is on the
device.
"""

from moerge.sizes.files import expert_bytes, router_contribution_bytes, trunk_bytes, trunk_contribution_bytes
from moerge.sizes.shape import ModelShape
from moerge.statistics.memory import Need
from moerge_proto.statistics_file import StatisticsSettings

PASSES = 2
_BATCH_TOKENS = StatisticsSettings().batch_tokens


def device_memory(shape: ModelShape) -> int:
    """Bytes on the device: two layers, activations of a micro-batch, and the sums of the trunk pass's last layer."""
    grams = [shape.hidden] * 3
    need = Need.of(shape.layer, shape.hidden, shape.intermediate, grams, shape.weight_bytes, _BATCH_TOKENS)
    return need.device()


def hidden_bytes(shape: ModelShape, tokens: int) -> int:
    """Bytes of hidden states of that many tokens, in the weights' format."""
    return shape.weight_bytes * tokens * shape.hidden


def windows(shape: ModelShape, tokens: int, host_memory: int) -> int:
    """Number of windows whose hidden states fit into `host_memory` bytes."""
    return -(-hidden_bytes(shape, tokens) // host_memory)


def read_bytes(shape: ModelShape, tokens: int, host_memory: int) -> int:
    """Bytes of weights that both passes read: all, once per window."""
    return PASSES * windows(shape, tokens, host_memory) * expert_bytes(shape)


def disk(shape: ModelShape) -> int:
    """Bytes in the worker's home: the trunk, and each contribution twice, because a journal is replaced whole."""
    return trunk_bytes(shape) + 2 * (trunk_contribution_bytes(shape) + router_contribution_bytes(shape))


def sent_bytes(shape: ModelShape) -> int:
    """Bytes of the expert and its two contributions, before compression."""
    return expert_bytes(shape) + trunk_contribution_bytes(shape) + router_contribution_bytes(shape)


def received_bytes(shape: ModelShape) -> int:
    """Bytes of the trunk."""
    return trunk_bytes(shape)


def flop(shape: ModelShape, tokens: int) -> int:
    """Floating-point operations of both passes: 2 per active parameter and token, and H^2 per token and gram, of which
    only a triangle is computed: two grams per layer of the trunk pass and one of the router pass, one of the head.
    """
    return tokens * (PASSES * 2 * shape.active + (3 * shape.layers + 1) * shape.hidden**2)
