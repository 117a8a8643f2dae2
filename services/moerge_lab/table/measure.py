"""The measurement of recipes: each is built and scored with each seed."""

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

from torch import Tensor

from moerge.progress import NoProgress, Progress, Tracker
from moerge.scoring.perplexity import Score, Window, document_scores
from moerge.scoring.routers import RoutingCounter
from moerge_lab.peaks import PeakMemory, quick_collections
from moerge_lab.recipes.base import NO_ROWS, Domain, Fleet, Model, Shared
from moerge_lab.recipes.dense import EXPERTS
from moerge_lab.recipes.models import Loaded, Routed
from moerge_lab.table.switches import Bands
from moerge_lab.table.table import Result, Row, Run, Table


@dataclass(frozen=True)
class Texts:
    """A domain's expert, the windows to score, and the recipes' texts, see `Domain`.

    `edges`: with a change of text before the scored tokens, the bands of their number since the change.
    """

    expert: Path
    held_out: Sequence[Window]
    statistics: Sequence[list[int]] = ()
    other: Sequence[list[int]] = ()
    tuning: Sequence[Window] = ()
    training: Tensor = NO_ROWS
    edges: Sequence[int] = ()


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement.

    Attributes:
        base: folder of the seed model.
        seeds: number of seeds: 0, 1, …
        statistics_tokens: tokens of statistics per domain, in an order drawn by the seed; 0: all.
    """

    base: Path | None = None
    seeds: int = 1
    statistics_tokens: int = 0
    device: str = "cpu"


@quick_collections()
def measure(
    runs: Sequence[Run],
    domains: Mapping[str, Texts],
    settings: Settings,
    progress: Progress,
    elsewhere: Sequence[Window] = (),
) -> Table:
    """Builds and scores each recipe's models, with every seed that can change them.

    Args:
        runs: including `experts`, or the recipe of the frame's reference.
        elsewhere: windows of text of no domain; they need the base.
    """
    tokens = sum(window.scored for domain in domains.values() for window in domain.held_out)
    abroad, base = sum(window.scored for window in elsewhere), list[Score]()
    if elsewhere and settings.base is not None:
        with progress.track("seed model", abroad, "tokens") as tracker:
            base = document_scores(Loaded.of(settings.base, settings.device).losses, elsewhere, tracker)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="moerge-table-") as kept:
        shared = Shared(Path(kept))
        for run in runs:
            seeds = settings.seeds if run.recipe.uses_text or run.recipe.drawn else 1
            total = (tokens + abroad) * seeds * (len(domains) if run.recipe.name == EXPERTS else 1)
            results: dict[str, list[Result]] = {}
            with progress.track(run.label, total, "tokens") as tracker:
                share = _Share(total, tracker)
                for seed in range(seeds):
                    for name, result in _results(run, domains, elsewhere, settings, seed, shared, share, progress):
                        results.setdefault(name, []).append(result)
                share.advance(total)
            rows += [Row(run, name, item) for name, item in results.items()]
    of_seed = [name for name, domain in domains.items() if domain.expert == settings.base]
    return Table(list(domains), rows, base, seeds=of_seed, edges=next(iter(domains.values())).edges)


class _Share:
    """Reports no more than the announced units, even if a recipe makes several models."""

    def __init__(self, total: int, tracker: Tracker) -> None:
        self._left, self._tracker = total, tracker

    def advance(self, n: int) -> None:
        done = min(n, self._left)
        self._left -= done
        self._tracker.advance(done)


def fleet_of(
    domains: Mapping[str, Texts],
    settings: Settings,
    seed: int,
    work: Path,
    shared: Shared | None = None,
    progress: Progress | None = None,
) -> Fleet:
    """The input of recipes with one seed, which draws the texts for statistics."""
    drawn, most = [], settings.statistics_tokens
    for name, domain in domains.items():
        statistics, other = (_drawn(text, most, seed) for text in (domain.statistics, domain.other))
        drawn.append(Domain(name, domain.expert, statistics, other, domain.tuning, domain.training))
    return Fleet(drawn, settings.base, seed, work, settings.device, shared or Shared(), progress or NoProgress())


def _results(
    run: Run,
    domains: Mapping[str, Texts],
    elsewhere: Sequence[Window],
    settings: Settings,
    seed: int,
    shared: Shared,
    tracker: Tracker,
    progress: Progress,
) -> Iterator[tuple[str, Result]]:
    with tempfile.TemporaryDirectory(prefix="moerge-table-") as work:
        fleet = fleet_of(domains, settings, seed, Path(work), shared, progress)
        models = run.recipe.build(fleet, run.options)
        while True:
            memory, start = PeakMemory(settings.device), time.perf_counter()
            built = next(models, None)
            if built is None:
                break
            row, model = built
            scores, counts, bands = _scored(model, domains, tracker)
            abroad = [] if model.reads_domain else document_scores(model.losses, elsewhere, tracker)
            seconds = time.perf_counter() - start
            result = Result(
                scores,
                model.active_parameters,
                seconds,
                memory.bytes(),
                counts,
                abroad,
                model.chosen,
                model.trained,
                bands,
            )
            del built, model  # frees this one before the next one is built
            yield row.replace(run.recipe.name, run.label, 1) if row.startswith(run.recipe.name) else row, result


def _scored(
    model: Model, domains: Mapping[str, Texts], tracker: Tracker
) -> tuple[dict[str, list[Score]], dict[str, Tensor], dict[str, list[list[Score]]]]:
    """The model's score of each domain's documents; the tokens per expert, if it has routers; and scores by bands."""
    scores, counts, bands = dict[str, list[Score]](), dict[str, Tensor](), dict[str, list[list[Score]]]()
    for domain, texts in domains.items():
        by_band = Bands(texts.edges)
        score = partial(document_scores, model.losses, texts.held_out, tracker, domain=domain)
        if isinstance(model, Routed):
            counter = RoutingCounter(model.model)
            with counter.counting():
                scores[domain] = score([by_band.add, counter.count])
            counts[domain] = counter.counts.sum(dim=0)
        else:
            scores[domain] = score([by_band.add])
        bands[domain] = by_band.scores()
    return scores, counts, bands


def _drawn(documents: Sequence[list[int]], most: int, seed: int) -> list[list[int]]:
    """The documents in the seed's order, up to `most` tokens; 0: all."""
    mixed = random.Random(seed).sample(documents, len(documents))  # noqa: S311  # no secret
    before = accumulate(map(len, mixed), initial=0)
    return [document for document, tokens in zip(mixed, before, strict=False) if not most or tokens < most]
