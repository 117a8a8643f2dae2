"""Bytes of the files of a federation: of their tensors, without headers of about 100 bytes a tensor."""

from moerge.memory.shapes import Shape


def expert_bytes(shape: Shape) -> int:
    """An expert's weights."""
    return shape.number * shape.expert


def body_bytes(shape: Shape) -> int:
    """A body: an expert without MLPs, and with a head of its own."""
    return shape.number * shape.body


def mlp_bytes(shape: Shape) -> int:
    """One expert's file in a version: its MLPs, 3 L H M weights."""
    return shape.number * shape.layers * shape.mlp


def router_bytes(shape: Shape, experts: int) -> int:
    """A version's routers: L D H weights."""
    return shape.number * shape.layers * experts * shape.hidden


def version_bytes(shape: Shape, experts: int) -> int:
    """A version's weights: body, MLPs of each expert, routers. The body is the merged file itself."""
    return body_bytes(shape) + experts * mlp_bytes(shape) + router_bytes(shape, experts)


def router_contribution_bytes(shape: Shape) -> int:
    """A router contribution: per layer the int64 triangle of a gram and a sum, 8 L (H (H + 1) / 2 + H)."""
    return 8 * (sum(shape.triangles(body=False)) + shape.layers * shape.hidden)


def body_contribution_bytes(shape: Shape) -> int:
    """A body contribution: triangles of two grams per layer and of the head's, and a count per token."""
    return 8 * (sum(shape.triangles(body=True)) + shape.vocabulary)


def contribution_bytes(shape: Shape) -> int:
    """A contribution of each kind."""
    return router_contribution_bytes(shape) + body_contribution_bytes(shape)
