"""Bytes of the files of a federation: of their tensors, without headers of about 100 bytes a tensor."""

from moerge.memory.shapes import Shape
from moerge_proto.statistics_file import gram_length


def expert_bytes(shape: Shape) -> int:
    """An expert's weights."""
    return shape.number * shape.expert


def body_bytes(shape: Shape) -> int:
    """A body: an expert without MLPs and head."""
    return shape.number * shape.body


def head_bytes(shape: Shape) -> int:
    """A head: last norm and language model head, V H + H weights."""
    return shape.number * shape.head


def part_bytes(shape: Shape) -> int:
    """An expert's parts: its MLPs and a head of its own."""
    return mlp_bytes(shape) + head_bytes(shape)


def mlp_bytes(shape: Shape) -> int:
    """One expert's file in a version: its MLPs, 3 L H M weights."""
    return shape.number * shape.layers * shape.mlp


def router_bytes(shape: Shape, experts: int) -> int:
    """A version's routers: L D H weights."""
    return shape.number * shape.layers * experts * shape.hidden


def version_bytes(shape: Shape, experts: int) -> int:
    """A version's weights: body, head, MLPs of each expert, routers."""
    return body_bytes(shape) + head_bytes(shape) + experts * mlp_bytes(shape) + router_bytes(shape, experts)


def router_contribution_bytes(shape: Shape) -> int:
    """A router contribution: per layer the int64 triangle of a gram and a sum, 8 L (H (H + 1) / 2 + H)."""
    return 8 * (sum(shape.triangles(body=False)) + shape.layers * shape.hidden)


def body_contribution_bytes(shape: Shape) -> int:
    """A body contribution: triangles of two grams per layer, of one in the first, and a count per token."""
    return 8 * (sum(shape.triangles(body=True)) - gram_length(shape.hidden) + shape.vocabulary)


def head_contribution_bytes(shape: Shape) -> int:
    """A head contribution: the triangle of a gram."""
    return 8 * gram_length(shape.hidden)
