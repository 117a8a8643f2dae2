"""Options that recipes choose by the tuning text."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TypeVar

from moerge.progress import NoProgress
from moerge.scoring.perplexity import Losses, document_scores, total
from moerge_lab.recipes.base import Fleet, Model, Numbers, Options, whole

CHOOSE = -1
"""The value of an option for a choice by the tuning text."""
WINDOWS: Sequence[float] = (0, 64, 32, 16, 8)
"""Numbers of last tokens for the choice or the weight of an expert; 0: all."""
Made = TypeVar("Made", bound=Model)


def mean_loss(losses: Losses, fleet: Fleet) -> float:
    """Nats per token of the tuning text, averaged over the domains with tuning text."""
    silent = NoProgress()
    scores = [total(document_scores(losses, part.tuning, silent, domain=part.name)) for part in fleet.domains]
    return fmean(score.nll / score.tokens for score in scores if score.tokens)


def choose(
    fleet: Fleet, options: Options, name: str, values: Sequence[float], default: float, build: Callable[[float], Losses]
) -> Numbers:
    """The option with the smallest loss of its model on the tuning text; nothing if the option is given.

    Args:
        values: to try; among equally good ones, the first wins.
        default: without tuning text.
    """
    if options[name] != CHOOSE:
        return {}
    if not any(domain.tuning for domain in fleet.domains):
        return {name: default}
    return {name: min(values, key=lambda value: mean_loss(build(value), fleet))}


def choose_scale(fleet: Fleet, options: Options, build: Callable[[float], Losses]) -> Numbers:
    """The option `scale`, the factor of the sum of D task vectors: 1 / 4D, 1 / 2D, 1 / D, 1 / 3 or 1 / 2."""
    every = len(fleet.domains)
    return choose(fleet, options, "scale", sorted({0.25 / every, 0.5 / every, 1 / every, 1 / 3, 0.5}), 1 / every, build)


def with_window(fleet: Fleet, options: Options, build: Callable[[int], Made]) -> Made:
    """The model with the option `window`, given or chosen."""
    chosen = choose(fleet, options, "window", WINDOWS, 0, lambda window: build(int(window)).losses)
    model = build(whole({**options, **chosen}, "window", 0))
    model.chosen = chosen
    return model
