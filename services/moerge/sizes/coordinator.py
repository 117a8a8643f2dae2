"""Formulas of a coordinator: a trunk by regmean of D experts, and their first version.

Weights and sums are counted as anonymous memory, as if read from S3; those of a local folder are mapped.
"""

from moerge.routers.influence import MOST_SOLVES
from moerge.routers.solve import solving_memory
from moerge.sizes.files import (
    expert_bytes,
    mlp_bytes,
    router_contribution_bytes,
    trunk_bytes,
    trunk_contribution_bytes,
    version_bytes,
)
from moerge.sizes.shape import ModelShape
from moerge.statistics.describe import MOST_RANKED
from moerge.threads import AT_ONCE
from moerge.trunk.regmean import most_kinds

CHECKS_AT_ONCE, COMPARED = 2, 3
"""Bounds of the coordinator: contributions checked at a time; other owners' experts that a new one is compared with."""


def receive_memory(shape: ModelShape) -> int:
    """Peak bytes of an expert's check, the larger of two, for its largest tensor.

    For finite values: the tensor, absolute values, and two booleans an element. For the distance: the tensor, another
    expert's, and four float64 blocks of 2^24 elements.
    """
    largest = shape.hidden * max(shape.vocabulary, shape.intermediate)
    return max((2 * shape.weight_bytes + 2) * largest, 2 * shape.weight_bytes * largest + 4 * 8 * 2**24)


def check_memory(shape: ModelShape) -> int:
    """Peak bytes of two checks of contributions: a triangle and a square each, 12 H^2."""
    return CHECKS_AT_ONCE * 3 * shape.square_bytes // 2


def solve_memory(shape: ModelShape, cores: int) -> int:
    """Peak bytes of the solve."""
    return solving_memory(shape.hidden, shape.layers, cores)


def influence_memory(shape: ModelShape, cores: int) -> int:
    """Peak bytes of the owners' influence: of each layer at work all experts' gram, one owner's, the sum of the others,
    and a solve without the owner, seven squares.
    """
    return min(cores, AT_ONCE, shape.layers) * 7 * shape.square_bytes


def merge_memory(shape: ModelShape, experts: int, cores: int) -> int:
    """Peak bytes of a merge by regmean, the larger of two.

    Of each projection of the attention at work: a tensor of each expert, and seven squares. The head: a tensor and a
    square of each expert, two tensors more, three squares of each kind of rows at work, and four float64 matrices of
    its size, if almost all rows are solved together.
    """
    at_once, head = min(cores, AT_ONCE), shape.vocabulary * shape.hidden
    attention = at_once * (experts * shape.weight_bytes * shape.hidden**2 + 7 * shape.square_bytes)
    squares = (experts + 3 * at_once) * shape.square_bytes
    return max(attention, ((experts + 2) * shape.weight_bytes + 4 * 8) * head + squares)


def publish_memory(shape: ModelShape) -> int:
    """Peak bytes of writing a version: two of the largest tensors, of an MLP."""
    return 2 * shape.weight_bytes * shape.hidden * shape.intermediate


def disk(shape: ModelShape, experts: int) -> int:
    """Bytes of the blobs: experts, contributions, trunk and first version, which shares the trunk's file.

    A further version of the same experts adds its routers.
    """
    each = expert_bytes(shape) + trunk_contribution_bytes(shape) + router_contribution_bytes(shape)
    return experts * each + version_bytes(shape, experts)


def spare_disk(shape: ModelShape) -> int:
    """Bytes of local disk beside the blobs, also with S3: the largest file is written before it is a blob."""
    written = (trunk_bytes(shape), mlp_bytes(shape), trunk_contribution_bytes(shape), router_contribution_bytes(shape))
    return max(written)


def received_bytes(shape: ModelShape, experts: int) -> int:
    """Bytes from owners: experts and contributions, before compression."""
    return experts * (expert_bytes(shape) + trunk_contribution_bytes(shape) + router_contribution_bytes(shape))


def sent_bytes(shape: ModelShape, experts: int) -> int:
    """Bytes to owners: the trunk."""
    return experts * trunk_bytes(shape)


def expert_check_reads(shape: ModelShape, experts: int) -> int:
    """Bytes read to take in experts: each once, and if there are others once more, with up to three of these."""
    compared = sum(1 + min(COMPARED, earlier) for earlier in range(1, experts))
    return (experts + compared) * expert_bytes(shape)


def contribution_check_reads(shape: ModelShape, experts: int) -> int:
    """Bytes read to check contributions: all once, and some grams once more for their rank."""
    ranked = sum(len(range(0, count, -(-count // MOST_RANKED))) for count in (shape.layers, 2 * shape.layers + 1))
    whole = trunk_contribution_bytes(shape) + router_contribution_bytes(shape)
    return experts * (whole + ranked * 8 * shape.triangle)


def merge_reads(shape: ModelShape, experts: int) -> int:
    """Bytes read by a merge: the trunk's tensors of each expert, a tied head's from its embedding, and for each linear
    module the gram of its inputs, with their norm's gains if they have one. Counts are read for embedding and head.
    """
    gains = shape.weight_bytes * (3 * shape.layers + 1) * shape.hidden
    return experts * (trunk_bytes(shape) + gains + 8 * ((4 * shape.layers + 1) * shape.triangle + 2 * shape.vocabulary))


def solve_reads(shape: ModelShape, experts: int) -> int:
    """Bytes read by a solve: the router contributions."""
    return experts * router_contribution_bytes(shape)


def publish_reads(shape: ModelShape, experts: int) -> int:
    """Bytes read to write a version: the experts' MLPs."""
    return experts * mlp_bytes(shape)


def reads(shape: ModelShape, experts: int) -> int:
    """Bytes that the coordinator reads from its blobs, but for the owners' influence on at most eight layers."""
    parts = (expert_check_reads, contribution_check_reads, merge_reads, solve_reads, publish_reads)
    return sum(part(shape, experts) for part in parts)


def check_flop(shape: ModelShape, experts: int) -> int:
    """Operations of the checks of contributions: a Cholesky factorisation of each gram, H^3 / 3."""
    return experts * (3 * shape.layers + 1) * shape.hidden**3 // 3


def solve_flop(shape: ModelShape) -> int:
    """Operations of a solve and of the owners' influence: a Cholesky factorisation per layer, and at most 32 more."""
    return (shape.layers + MOST_SOLVES) * shape.hidden**3 // 3


def merge_flop(shape: ModelShape, experts: int) -> int:
    """Operations of a merge by regmean, at most.

    Per linear module of R outputs the product of each expert's weights with its gram and one substitution,
    2 (D + 1) R H^2, and a factorisation, H^3 / 3. The head has a factorisation for each kind of rows, which differ in
    the experts' shares.
    """
    kinds = min(shape.vocabulary, most_kinds(experts, shape.vocabulary, shape.hidden))
    rows = shape.layers * 2 * (shape.hidden + shape.key_value) + shape.vocabulary
    return 2 * (experts + 1) * rows * shape.hidden**2 + (4 * shape.layers + kinds) * shape.hidden**3 // 3
