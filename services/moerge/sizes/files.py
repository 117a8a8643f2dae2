"""Bytes of the files of a federation: of their tensors, without headers of about 100 bytes a tensor."""

from moerge.sizes.shape import ModelShape


def expert_bytes(shape: ModelShape) -> int:
    """An expert's weights."""
    return shape.weight_bytes * shape.expert


def trunk_bytes(shape: ModelShape) -> int:
    """A trunk: an expert without MLPs, and with a head of its own."""
    return shape.weight_bytes * shape.trunk


def mlp_bytes(shape: ModelShape) -> int:
    """One expert's file in a version: its MLPs, 3 L H M weights."""
    return shape.weight_bytes * shape.layers * shape.mlp


def router_bytes(shape: ModelShape, experts: int) -> int:
    """A version's routers: L D H weights."""
    return shape.weight_bytes * shape.layers * experts * shape.hidden


def version_bytes(shape: ModelShape, experts: int) -> int:
    """A version's weights: trunk, MLPs of each expert, routers. The trunk is the merged file itself."""
    return trunk_bytes(shape) + experts * mlp_bytes(shape) + router_bytes(shape, experts)


def router_contribution_bytes(shape: ModelShape) -> int:
    """A router contribution: per layer the int64 triangle of a gram and a sum, 8 L (H (H + 1) / 2 + H)."""
    return 8 * shape.layers * (shape.triangle + shape.hidden)


def trunk_contribution_bytes(shape: ModelShape) -> int:
    """A trunk contribution: triangles of two grams per layer and of the head's, and a count per token."""
    return 8 * ((2 * shape.layers + 1) * shape.triangle + shape.vocabulary)
