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
    """The scores of each domain with windows; `say` gets a message if memory is too short for all."""
    result = [Scored()] * len(domains)
    longest = max((len(window.tokens) for domain in domains for window in domain.windows), default=0)
    if not longest:
        return result
    merged, device, host = published_weights(version), computing.device, computing.host_memory
    try:
        states_for(need_of(merged.config, "float32", longest, device), free_for(device), host)
    except MoergeError as error:
        say(f"not scored: {error.what}")
        return result
    places, experts = [n for n, domain in enumerate(domains) if domain.windows], list[Score]()
    passes = [2 if isinstance(domain.expert, DenseExpert) else 1 for domain in domains]
    total = sum(n * window.scored for n, domain in zip(passes, domains, strict=True) for window in domain.windows)
    with computing.progress.track("scoring experts and version", total, "tokens") as tracker:
        for place in places:
            expert = domains[place].expert
            if isinstance(expert, DenseExpert):
                model = streamed_model(expert_weights(expert), "float32", device, longest, host)
                expert = model.score(domains[place].windows, tracker)
            experts.append(expert)
        for place, dense in zip(places, experts, strict=True):
            model = streamed_model(merged, "float32", device, longest, host)
            scored = model.score(domains[place].windows, tracker)
            shares = (model.routed.sum(dim=0) / model.routed.sum()).tolist()
            points = normalised(dense, scored)
            figures = DomainScore(dense.perplexity, scored.perplexity, points, scored.tokens, shares)
            result[place] = Scored(dense, figures)
    return result
