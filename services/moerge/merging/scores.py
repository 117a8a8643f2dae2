"""Scores of a merge: each domain's expert and the version on the same held-out windows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moerge.errors import MoergeError
from moerge.memory.machine import free_for
from moerge.memory.room import states_for
from moerge.merging.report import DomainScore
from moerge.models.dense import expert_weights
from moerge.models.expert_folder import DenseExpert
from moerge.models.published import published_weights
from moerge.scoring.perplexity import Score, Window, normalised
from moerge.scoring.streamed import need_of, streamed_model
from moerge.statistics.contribution import Computing


@dataclass(frozen=True)
class HeldOut:
    """A domain's held-out windows, and its expert, or the expert's score on these windows."""

    windows: Sequence[Window]
    expert: DenseExpert | Score


@dataclass(frozen=True)
class Scored:
    """A domain's scores, and its expert's alone; None: not scored."""

    expert: Score | None = None
    domain: DomainScore | None = None


def scores(domains: Sequence[HeldOut], version: Path, computing: Computing, say: Callable[[str], None]) -> list[Scored]:
    """The scores of each domain with windows; `say` is told if memory is too short for all."""
    nothing = [Scored()] * len(domains)
    if not any(domain.windows for domain in domains):
        return nothing
    longest = max(len(window.tokens) for domain in domains for window in domain.windows)
    merged, device, host = published_weights(version), computing.device, computing.host_memory
    try:
        states_for(need_of(merged.config, "float32", longest, device), free_for(device), host)
    except MoergeError as error:
        say(f"not scored: {error.what}")
        return nothing
    experts, result = list[Score](), list[Scored]()
    passes = [2 if isinstance(domain.expert, DenseExpert) else 1 for domain in domains]
    total = sum(n * window.scored for n, domain in zip(passes, domains, strict=True) for window in domain.windows)
    with computing.progress.track("scoring experts and version", total, "tokens") as tracker:
        for domain in domains:
            if isinstance(domain.expert, Score) or not domain.windows:
                experts.append(domain.expert if isinstance(domain.expert, Score) else Score(0.0, 0))
                continue
            expert = streamed_model(expert_weights(domain.expert), "float32", device, longest, host)
            experts.append(expert.score(domain.windows, tracker))
        for own, domain in zip(experts, domains, strict=True):
            if not domain.windows:
                result.append(Scored())
                continue
            model = streamed_model(merged, "float32", device, longest, host)
            scored = model.score(domain.windows, tracker)
            shares = (model.routed.sum(dim=0) / model.routed.sum()).tolist()
            points = normalised(own, scored)
            result.append(Scored(own, DomainScore(own.perplexity, scored.perplexity, points, scored.tokens, shares)))
    return result
