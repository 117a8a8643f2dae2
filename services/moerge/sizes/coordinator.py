"""Formulas of a coordinator's disk, traffic and operations: a trunk by regmean of D experts, and their version."""

from moerge.memory.shapes import Shape
from moerge.routers.influence import MOST_SOLVES
from moerge.sizes.files import (
    contribution_bytes,
    expert_bytes,
    mlp_bytes,
    router_contribution_bytes,
    trunk_bytes,
    trunk_contribution_bytes,
    version_bytes,
)
from moerge.statistics.describe import MOST_RANKED
from moerge.trunk.least_squares import most_kinds
from moerge_proto.statistics_file import gram_length

COMPARED = 3
"""Other owners' experts that a coordinator compares a new one with."""


def disk(shape: Shape, experts: int) -> int:
    """Bytes of the blobs: experts, contributions, trunk and first version, which shares the trunk's file.

    A further version of the same experts adds its routers.
    """
    return received_bytes(shape, experts) + version_bytes(shape, experts)


def spare_disk(shape: Shape) -> int:
    """Bytes of local disk beside the blobs, also with S3: the largest file is written before it is a blob."""
    written = (trunk_bytes(shape), mlp_bytes(shape), trunk_contribution_bytes(shape), router_contribution_bytes(shape))
    return max(written)


def received_bytes(shape: Shape, experts: int) -> int:
    """Bytes from owners: experts and contributions, before compression."""
    return experts * (expert_bytes(shape) + contribution_bytes(shape))


def expert_check_reads(shape: Shape, experts: int) -> int:
    """Bytes read to take in experts: each once, and if there are others once more, with up to three of these."""
    compared = sum(1 + min(COMPARED, earlier) for earlier in range(1, experts))
    return (experts + compared) * expert_bytes(shape)


def contribution_check_reads(shape: Shape, experts: int) -> int:
    """Bytes read to check contributions: all once, and some grams once more for their rank."""
    ranked = sum(size for kind in (False, True) for size in _ranked(shape.triangles(trunk=kind)))
    return experts * (contribution_bytes(shape) + 8 * ranked)


def _ranked(triangles: list[int]) -> list[int]:
    return triangles[:: -(-len(triangles) // MOST_RANKED)]


def merge_reads(shape: Shape, experts: int) -> int:
    """Bytes read by a merge: the trunk's tensors of each expert, a tied head's from its embedding, and for each linear
    module the gram of its inputs, with their norm's gains if they have one. Counts are read for embedding and head.
    """
    gains = shape.number * (3 * shape.layers + 1) * shape.hidden
    inputs, outputs = gram_length(shape.hidden), gram_length(shape.attention_size)
    grams = shape.layers * (3 * inputs + outputs) + inputs
    return experts * (trunk_bytes(shape) + gains + 8 * (grams + 2 * shape.vocabulary))


def solve_reads(shape: Shape, experts: int) -> int:
    """Bytes read by a solve: the router contributions."""
    return experts * router_contribution_bytes(shape)


def publish_reads(shape: Shape, experts: int) -> int:
    """Bytes read to write a version: the experts' MLPs."""
    return experts * mlp_bytes(shape)


def reads(shape: Shape, experts: int) -> int:
    """Bytes that the coordinator reads from its blobs, but for the owners' influence on at most eight layers."""
    parts = (expert_check_reads, contribution_check_reads, merge_reads, solve_reads, publish_reads)
    return sum(part(shape, experts) for part in parts)


def check_flop(shape: Shape, experts: int) -> int:
    """Operations of the checks of contributions: a Cholesky factorisation of each gram, H^3 / 3."""
    return experts * (3 * shape.layers + 1) * shape.hidden**3 // 3


def solve_flop(shape: Shape) -> int:
    """Operations of a solve and of the owners' influence: a Cholesky factorisation per layer, and at most 32 more."""
    return (shape.layers + MOST_SOLVES) * shape.hidden**3 // 3


def merge_flop(shape: Shape, experts: int) -> int:
    """Operations of a merge by regmean, at most.

    Per linear module of R outputs the product of each expert's weights with its gram and one substitution,
    2 (D + 1) R H^2, and a factorisation, H^3 / 3. The head has a factorisation for each kind of rows, which differ in
    the experts' shares.
    """
    kinds = min(shape.vocabulary, most_kinds(experts, shape.vocabulary, shape.hidden))
    linear = shape.layers * (shape.layer - shape.mlp) + shape.head
    return 2 * (experts + 1) * linear * shape.hidden + (4 * shape.layers + kinds) * shape.hidden**3 // 3
