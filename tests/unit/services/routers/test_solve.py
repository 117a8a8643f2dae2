"""What is chosen at solve time: lambda, weights of domains; and accuracy where features are badly scaled."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from moerge.errors import SolveError
from moerge.routers.registry import ROUTERS
from moerge.routers.solve import CANDIDATES, solve_layers
from moerge.statistics.accumulate import ShardSums
from moerge_proto.recipes import Routers, SolveOptions
from moerge_proto.statistics_file import StatisticsFile
from support.statistics import LAYERS, manifest_of, shard_of, written

HIDDEN = 12
DOMAINS = ["law", "art"]
GAINS = torch.ones(LAYERS, HIDDEN)


def drawn(domain: int, tokens: int, seed: int, spread: float = 1.0) -> Tensor:
    """[tokens, HIDDEN] features of a domain, RMS-normalised; `spread` is their largest scale by their smallest."""
    generator = torch.Generator().manual_seed(100 * domain + seed)
    scales = torch.logspace(0, -np.log10(spread), HIDDEN)
    x = (torch.randn(tokens, HIDDEN, generator=generator) + 0.3 * domain) * scales
    return x / x.pow(2).mean(dim=1, keepdim=True).sqrt()


class Files:
    """Contributions of both domains, opened."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack, self.opened = folder, ExitStack(), list[StatisticsFile]()

    def add(self, domain: int, features: Tensor, split: str = "statistics") -> None:
        sums = shard_of(features)
        manifest = manifest_of(sums, 1, domain=DOMAINS[domain]).model_copy(update={"split": split})
        path = written(self._folder / str(len(self.opened)), manifest, sums)
        self.opened.append(self._stack.enter_context(StatisticsFile(path)))

    def router(self, **options: object) -> Tensor:
        """[D, H] of layer 0."""
        return solve_layers(self.opened, DOMAINS, GAINS, SolveOptions.model_validate(options))[0][0]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    made.close()


def regression(parts: list[Tensor], weights: list[float], ridge_lambda: float) -> Tensor:
    """[D, H]: weighted ridge regression from the features themselves, in float64; rows not normalised."""
    x = torch.cat([w**0.5 * part.double() for w, part in zip(weights, parts, strict=True)])
    y = torch.block_diag(*[torch.full((len(part), 1), w**0.5) for w, part in zip(weights, parts, strict=True)]).double()
    augmented = torch.cat([x, ridge_lambda**0.5 * torch.eye(HIDDEN, dtype=torch.float64)])
    targets = torch.cat([y, torch.zeros(HIDDEN, 2, dtype=torch.float64)])
    solution: Tensor = torch.linalg.lstsq(augmented, targets).solution
    return solution.T


def unit(rows: Tensor) -> Tensor:
    scaled: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return scaled


@pytest.mark.parametrize(
    ("chosen", "weights"),
    [({}, [1.0, 1.0]), ({"law": 4.0}, [4.0, 1.0]), ("balanced", [750 / 500, 750 / 1000])],
)
def test_domain_weights_are_those_of_a_weighted_regression(files: Files, chosen: object, weights: list[float]) -> None:
    parts = [drawn(0, 500, 1), drawn(1, 1000, 1)]
    for domain, part in enumerate(parts):
        files.add(domain, part)
    expected = unit(regression(parts, weights, 0.01))
    torch.testing.assert_close(files.router(domain_weights=chosen), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chosen", [{}, "balanced"])
def test_discriminants_are_those_of_the_features(files: Files, chosen: object) -> None:
    """By the textbook, from the features: pooled covariance, and constants times the fit to 1; less the mean."""
    parts = [drawn(0, 500, 1), drawn(1, 1000, 1)]
    for domain, part in enumerate(parts):
        files.add(domain, part)
    weights = [1.0, 1.0] if chosen == {} else [1.5, 0.75]
    counts = torch.tensor([w * len(part) for w, part in zip(weights, parts, strict=True)], dtype=torch.float64)
    shares = counts / counts.sum()
    x = [part.double() for part in parts]
    means = torch.stack([part.mean(dim=0) for part in x])
    spreads = [(part - mean).T @ (part - mean) / len(part) for part, mean in zip(x, means, strict=True)]
    columns = torch.linalg.solve(torch.einsum("d,dhi->hi", shares, torch.stack(spreads)), means.T)
    constants = shares.log() - (means.T * columns).sum(dim=0) / 2
    ones = regression(parts, weights, 1e-9).sum(dim=0)  # of targets that sum to 1
    scores = (columns + torch.outer(ones, constants)).T
    expected = scores - scores.mean(dim=0)
    result = files.router(routers="discriminant", domain_weights=chosen, ridge_lambda=1e-6)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_auto_selects_lambda_with_least_error_on_tuning_split(files: Files) -> None:
    """Few tokens for the routers, many to tune with; the errors are computed from the features themselves."""
    parts, held = [drawn(d, 14, 1) for d in (0, 1)], [drawn(d, 2000, 2) for d in (0, 1)]
    for domain in (0, 1):
        files.add(domain, parts[domain])
        files.add(domain, held[domain], split="tuning")
    x, y = torch.cat(held).double(), torch.eye(2, dtype=torch.float64).repeat_interleave(2000, dim=0)
    unit_diagonal = float(torch.cat(parts).double().pow(2).sum(dim=0).mean())
    errors = [float((x @ regression(parts, [1.0, 1.0], c * unit_diagonal).T - y).pow(2).sum()) for c in CANDIDATES]
    best = CANDIDATES[int(np.argmin(errors))] * unit_diagonal
    assert min(errors) < 0.95 * errors[0]
    _, report = solve_layers(files.opened, DOMAINS, GAINS, SolveOptions(lambda_scale="auto"))
    assert report.layers[0].ridge_lambda == pytest.approx(best, rel=1e-4)
    torch.testing.assert_close(
        files.router(lambda_scale="auto"), unit(regression(parts, [1.0, 1.0], best)), rtol=0, atol=1e-4
    )


def test_the_tuning_split_is_used_for_nothing_else(files: Files) -> None:
    for domain in (0, 1):
        files.add(domain, drawn(domain, 300, 1))
    before = files.router()
    files.add(0, drawn(0, 5000, 7), split="tuning")
    assert torch.equal(files.router(), before)
    with pytest.raises(SolveError, match="missing: art"):
        files.router(lambda_scale="auto")


def test_wide_range_and_nearly_singular_grams_stay_accurate(files: Files) -> None:
    """The smallest scale is 1e-4 of the largest, so squares span 1e8, and one direction nearly repeats another.

    Of the smallest diagonals rounding leaves few bits, so their weights are right to percents; the choice is not moved.
    """
    parts = [drawn(d, 20_000, 1, spread=1e4) for d in (0, 1)]
    for part in parts:
        part[:, 1] = part[:, 0] * (1 + 1e-4 * torch.randn(len(part), generator=torch.Generator().manual_seed(5)))
    for domain, part in enumerate(parts):
        files.add(domain, part)
    expected = unit(regression(parts, [1.0, 1.0], 0.01))
    result = files.router()
    x = torch.cat(parts).double()
    scores, wanted = x @ result.T, x @ expected.T
    assert float((scores - wanted).norm() / wanted.norm()) < 0.01
    agreement = float((scores.argmax(dim=1) == wanted.argmax(dim=1)).double().mean())
    assert agreement > 0.998


def test_every_kind_of_routers_in_requests_is_registered() -> None:
    assert set(ROUTERS) == set(get_args(Routers))


def test_a_layer_that_can_t_be_solved_is_named_with_what_to_do(files: Files) -> None:
    for domain in (0, 1):
        files.add(domain, drawn(domain, 300, 1))
    with pytest.raises(SolveError, match="no direction") as caught:
        solve_layers(files.opened, DOMAINS, torch.zeros(LAYERS, HIDDEN), SolveOptions())
    assert caught.value.where == "layer 0"


def test_domain_without_direction_is_named_with_its_owner(files: Files) -> None:
    files.add(0, drawn(0, 300, 1))
    files.add(1, torch.cat([drawn(1, 300, 1), -drawn(1, 300, 1)]))
    problem = r"column 1, art \(owner owner, contribution 1\), has no direction"
    with pytest.raises(SolveError, match=problem):
        solve_layers(files.opened, DOMAINS, GAINS, SolveOptions())


def test_the_domain_whose_gram_is_no_gram_is_named(files: Files, tmp_path: Path) -> None:
    files.add(0, drawn(0, 300, 1))
    sums = shard_of(drawn(1, 30_000, 1))
    negative = ShardSums({name: -array for name, array in sums.arrays.items()}, sums.tokens, sums.documents)
    path = written(tmp_path / "negative", manifest_of(negative, 1, domain="art"), negative)
    with StatisticsFile(path) as file, pytest.raises(SolveError) as caught:
        solve_layers([*files.opened, file], DOMAINS, GAINS, SolveOptions())
    assert caught.value.what.endswith("; the least definite gram is that of art (owner owner, contribution negative)")
    assert caught.value.where == "layer 0"


def test_the_report_tells_condition_norms_and_cosines(files: Files) -> None:
    parts = [drawn(0, 500, 1), drawn(1, 500, 1)]
    for domain, part in enumerate(parts):
        files.add(domain, part)
    _, report = solve_layers(files.opened, DOMAINS, GAINS, SolveOptions())
    layer, solution = report.layers[0], regression(parts, [1.0, 1.0], 0.01)
    x = torch.cat(parts).double()
    condition = float(torch.linalg.cond(x.T @ x + 0.01 * torch.eye(HIDDEN, dtype=torch.float64)))
    assert 0.5 * condition < layer.condition <= condition * (1 + 1e-6)
    assert layer.norms == pytest.approx(solution.norm(dim=1).tolist(), rel=1e-3)
    assert layer.cosines[0][1] == pytest.approx(
        float(torch.cosine_similarity(solution[0], solution[1], dim=0)), abs=1e-3
    )


def test_law_3_parallel_layers_have_bits_of_sequential_ones(tmp_path: Path) -> None:
    """At this size torch's own Cholesky has other bits on two threads."""
    generator, hidden = torch.Generator().manual_seed(0), 768
    files = Files(tmp_path)
    for domain in (0, 1):
        x = torch.randn(700, hidden, generator=generator)
        files.add(domain, x / x.pow(2).mean(dim=1, keepdim=True).sqrt())
    before, result = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            routers, report = solve_layers(files.opened, DOMAINS, torch.ones(LAYERS, hidden), SolveOptions())
            result.append((torch.stack(routers), report))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
        files.close()
    assert torch.equal(result[0][0], result[1][0])
    assert result[0][1] == result[1][1]
