"""Scores of a merge: each domain's expert and the version on the same held-out windows."""

from collections.abc import Callable, Sequence
from pathlib import Path

from moerge.errors import MoergeError
from moerge.memory.machine import free_for
from moerge.memory.room import states_for
from moerge.merging.report import DomainScore
from moerge.models.dense import expert_weights
from moerge.models.expert_folder import DenseExpert
from moerge.models.published import published_weights
from moerge.models.weights import Weights
from moerge.scoring.perplexity import Window, normalised
from moerge.scoring.streamed import StreamedModel, need_of, streamed_model
from moerge.statistics.contribution import Computing


def scores(
    domains: Sequence[tuple[DenseExpert, Sequence[Window]]],
    version: Path,
    computing: Computing,
    say: Callable[[str], None],
) -> list[DomainScore | None]:
    """The scores of each expert's domain; None without windows, or if memory is too short, which `say` reports."""
    lengths = [len(window.tokens) for _, windows in domains for window in windows]
    if not lengths:
        return [None] * len(domains)
    longest, merged = max(lengths), published_weights(version)
    device, host = computing.device, computing.host_memory
    try:
        states_for(need_of(merged.config, "float32", longest, device), free_for(device), host)
    except MoergeError as error:
        say(f"not scored: {error.what}")
        return [None] * len(domains)

    def model(weights: Weights) -> StreamedModel:
        return streamed_model(weights, "float32", device, longest, host)

    result = list[DomainScore | None]()
    total = sum(window.scored for _, windows in domains for window in windows)
    with computing.progress.track("scoring experts and version", 2 * total, "tokens") as tracker:
        scored = [
            model(expert_weights(expert)).score(windows, tracker) if windows else None for expert, windows in domains
        ]
        for dense, (_, windows) in zip(scored, domains, strict=True):
            if dense is None:
                result.append(None)
                continue
            published = model(merged)
            score = published.score(windows, tracker)
            shares = (published.routed.sum(dim=0) / published.routed.sum()).tolist()
            points = normalised(dense, score)
            result.append(DomainScore(dense.perplexity, score.perplexity, points, score.tokens, shares))
    return result
