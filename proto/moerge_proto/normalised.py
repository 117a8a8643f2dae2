"""Normalised perplexity and its average over domains (DUME section 3.1)."""

import math
from collections.abc import Iterable
from statistics import fmean
from typing import overload


def perplexity(nll: float, tokens: float) -> float:
    """Of a text with this negative log-likelihood in nats, over so many predicted tokens."""
    return math.exp(nll / tokens)


def normalised(dense: float, model: float, tokens: float) -> float:
    """100 x the dense expert's perplexity / a model's, from their nats over the same tokens."""
    return 100 * math.exp((dense - model) / tokens)


@overload
def average(scores: Iterable[float]) -> float: ...


@overload
def average(scores: Iterable[float | None]) -> float | None: ...


def average(scores: Iterable[float | None]) -> float | None:
    """The normalised average: the mean over the domains; None if a domain has no score, or there are none."""
    every = list(scores)
    known = [score for score in every if score is not None]
    return fmean(known) if known and len(known) == len(every) else None
