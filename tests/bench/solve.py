"""Routers from sums."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bench.inputs import Shape, drawn_sums
from bench.measure import in_turns, seconds
from bench.registry import Pair, benchmark
from support.statistics import ridge_router

SHAPE = Shape()
DOMAINS = 4
LAMBDA = 0.01


def systems() -> tuple[Tensor, Tensor]:
    """Gram [L, H, H] and cross [L, H, D], float64."""
    sums = [drawn_sums(SHAPE, domain) for domain in range(DOMAINS)]
    return torch.stack([gram for gram, _ in sums]).sum(dim=0), torch.stack([cross for _, cross in sums], dim=2)


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def solve_all(grams: Tensor, crosses: Tensor) -> float:
    """Seconds for the routers of all layers."""
    return seconds(lambda: [ridge_router(gram, cross, LAMBDA) for gram, cross in zip(grams, crosses, strict=True)])


def factorise_all(matrices: Tensor) -> float:
    """Seconds for the Cholesky factors of all layers."""
    return seconds(lambda: [torch.linalg.cholesky(matrix) for matrix in matrices])


@benchmark(
    "solve",
    "routers of all layers, one thread, s",
    "torch.linalg.cholesky of the same matrices",
    "<=",
    1.3,
    f"H {SHAPE.hidden}, L {SHAPE.layers}, D {DOMAINS}, float64",
)
def solve() -> list[Pair]:
    grams, crosses = systems()
    matrices = grams + LAMBDA * torch.eye(SHAPE.hidden, dtype=torch.float64)
    with one_thread():
        return in_turns(lambda: solve_all(grams, crosses), lambda: factorise_all(matrices), 15)
