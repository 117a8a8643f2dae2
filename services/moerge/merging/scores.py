"""Scores of a merge: each domain's expert and the version on the same held-out windows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.filesize import decimal

from moerge.merging.report import DomainScore
from moerge.models.reader import Checkpoint
from moerge.progress import Progress
from moerge.scoring.perplexity import Score, Window, load, normalised, score
from moerge.scoring.routers import RoutingCounter
from moerge.statistics.memory import free_bytes


@dataclass(frozen=True)
class HeldOut:
    """A domain's held-out windows, and its expert: the folder, or its score on these windows."""

    windows: Sequence[Window]
    expert: Path | Score


@dataclass(frozen=True)
class Scored:
    """A domain's scores, and its expert's alone; None: not scored."""

    expert: Score | None = None
    domain: DomainScore | None = None


def scores(
    domains: Sequence[HeldOut], version: Path, device: str, progress: Progress, say: Callable[[str], None]
) -> list[Scored]:
    """The scores of each domain with windows; `say` is told if memory is too short for all."""
    nothing = [Scored()] * len(domains)
    if not any(each.windows for each in domains):
        return nothing
    tensors = Checkpoint(version).specs.values()
    asked, free = 4 * sum(torch.Size(spec.shape).numel() for spec in tensors), free_bytes("cpu")
    if free is not None and asked > free:
        say(f"not scored: the version needs {decimal(asked)} of memory; {decimal(free)} are free")
        return nothing
    experts, found = list[Score](), list[Scored]()
    passes = [2 if isinstance(each.expert, Path) else 1 for each in domains]
    total = sum(n * window.scored for n, each in zip(passes, domains, strict=True) for window in each.windows)
    with progress.track("scoring experts and version", total, "tokens") as tracker:
        for each in domains:
            if isinstance(each.expert, Score) or not each.windows:
                experts.append(each.expert if isinstance(each.expert, Score) else Score(0.0, 0))
                continue
            model = load(each.expert, device=device)
            experts.append(score(model, list(each.windows), tracker))
            del model
        merged = load(version, device=device)
        for own, each in zip(experts, domains, strict=True):
            if not each.windows:
                found.append(Scored())
                continue
            counter = RoutingCounter(merged)
            with counter.counting():
                scored = score(merged, list(each.windows), tracker, counter.count)
            shares = (counter.counts.sum(dim=0) / counter.counts.sum()).tolist()
            points = normalised(own, scored)
            found.append(Scored(own, DomainScore(own.perplexity, scored.perplexity, points, scored.tokens, shares)))
    return found
