"""The closed form of a layer's router (`solve_layer`), and of all layers of a version (`solve_layers`)."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from moerge.errors import ContributionError, SolveError
from moerge.routers.registry import ROUTERS
from moerge.routers.ridge import NotDefiniteError, Ridge, unit_columns
from moerge.routers.system import F, domain_weights, named, of_domain, ridge_system, tokens_of
from moerge.threads import at_once, one_thread
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import Sums
from moerge_proto.versions import SolvedLayer, SolveReport

CANDIDATES = tuple(10.0**power for power in range(-9, 1))  # of `auto`, in units of the mean diagonal


def solve_layers(
    files: Sequence[Sums],
    domains: Sequence[str],
    gains: Tensor,
    options: SolveOptions,
    solved: Callable[[int], None] = lambda layer: None,
) -> tuple[list[Tensor], SolveReport]:
    """Solves every layer's router: one [D, H] float64 per layer, and the report.

    Args:
        files: contributions of all domains, or sums of such; only `auto` uses those of the split `tuning`.
        domains: the columns, in order.
        gains: [L, H], the divisors of the features.
        solved: called after each layer.

    Raises:
        ContributionError, SolveError: a layer can't be solved, or `auto` lacks a domain's tuning split.
    """
    training, tuning = by_split(files, options)
    if options.lambda_scale == "auto":
        _require_all(tuning, domains)
    names = [named(of_domain(training, domain), [domain]) for domain in domains]
    weights = domain_weights(training, domains, options)
    tokens = [weights[domain] * tokens_of(training, domain) for domain in domains]

    def solve(layer: int) -> tuple[Tensor, SolvedLayer]:
        with of_layer(layer):
            gram, cross = ridge_system(training, domains, layer, gains[layer], weights)
            held = ridge_system(tuning, domains, layer, gains[layer], weights) if tuning else None
            try:
                return solve_layer(gram, cross, held, tokens, options, names)
            except NotDefiniteError as error:
                if any(len(file.domains) > 1 for file in training):
                    raise  # their domains have no grams of their own
                slot = _least_definite(training, domains, layer, gains[layer])
                raise SolveError(
                    f"{error.what}; the least definite gram is that of {names[slot]}", todo=error.todo
                ) from error

    routers, layers, count = [], [], at_once()
    with one_thread(), ThreadPoolExecutor(count) as threads:
        for layer, (router, report) in enumerate(threads.map(solve, range(len(gains)))):
            routers.append(router)
            layers.append(report)
            solved(layer)
    return routers, SolveReport(domains=list(domains), layers=layers)


def by_split(files: Sequence[F], options: SolveOptions) -> tuple[list[F], list[F]]:
    """The contributions of the split `statistics`, and, for `auto`, those of the split `tuning`."""
    tuning = [file for file in files if file.manifest.split == "tuning"] if options.lambda_scale == "auto" else []
    return [file for file in files if file.manifest.split == "statistics"], tuning


@contextmanager
def of_layer(layer: int) -> Iterator[None]:
    """Adds the layer to errors."""
    try:
        yield
    except (ContributionError, SolveError) as error:
        kind = ContributionError if isinstance(error, ContributionError) else SolveError
        raise kind(error.what, where=f"layer {layer}", todo=error.todo) from error


def _least_definite(training: Sequence[Sums], domains: Sequence[str], layer: int, gain: Tensor) -> int:
    """The slot of the domain whose gram has the lowest eigenvalue."""
    grams = (ridge_system(of_domain(training, domain), [domain], layer, gain)[0] for domain in domains)
    lowest = [float(torch.linalg.eigvalsh(gram)[0]) for gram in grams]
    return lowest.index(min(lowest))


def _require_all(tuning: Sequence[Sums], domains: Sequence[str]) -> None:
    if missing := set(domains).difference(*(file.domains for file in tuning)):
        raise SolveError(
            f"lambda = auto needs every domain's tuning split; missing: {', '.join(sorted(missing))}",
            todo="ask their owners to run the worker with a tuning share, or choose `ridge_lambda` yourself",
        )


def solve_layer(
    gram: Tensor,
    cross: Tensor,
    held: tuple[Tensor, Tensor] | None,
    tokens: Sequence[float],
    options: SolveOptions,
    names: Sequence[str] = (),
) -> tuple[Tensor, SolvedLayer]:
    """The router of one layer, [D, H] float64, and the report of its solve.

    Args:
        gram: [H, H] float64, of all domains; changed in place.
        cross: [H, D] float64.
        held: gram and cross of the tuning splits, from which `auto` chooses lambda.
        tokens: of each domain, with the weight of its sums.
        names: of the columns, for errors.

    Raises:
        NotDefiniteError: lambda is too small for the gram.
        SolveError: a domain's column has no direction.
    """
    unit = float(gram.diagonal().mean())
    if held is None:
        chosen = options.ridge_lambda * (1.0 if options.lambda_scale == "absolute" else unit)
    else:
        tuning_gram, tuning_cross = held
        candidates = [share * unit for share in CANDIDATES]
        chosen = min(candidates, key=lambda item: _error(gram, cross, tuning_gram, tuning_cross, item))
    ridge = Ridge.of(gram, chosen)
    solution = ridge.solve(cross)
    columns = unit_columns(solution, names)
    report = SolvedLayer(
        ridge_lambda=chosen,
        condition=ridge.condition(),
        norms=solution.norm(dim=0).tolist(),
        cosines=(columns.T @ columns).tolist(),
    )
    router = ROUTERS[options.routers].columns(solution, cross, tokens, names)
    return (router / options.temperature).T.contiguous(), report


def _error(gram: Tensor, cross: Tensor, tuning_gram: Tensor, tuning_cross: Tensor, ridge_lambda: float) -> float:
    """Squared error of the solution on the tuning split, up to a constant: tr(W^T A W) - 2 tr(W^T b)."""
    try:
        solution = torch.cholesky_solve(cross, Ridge.of(gram.clone(), ridge_lambda).factor)
    except SolveError:
        return float("inf")
    return float((solution * (tuning_gram @ solution)).sum() - 2 * (solution * tuning_cross).sum())
