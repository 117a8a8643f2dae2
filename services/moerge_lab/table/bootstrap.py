"""Standard errors of scores, from resampled documents, the same for every row."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from moerge.scoring.perplexity import Score
from moerge_proto.normalised import normalised

RESAMPLES = 1_000
Floats = NDArray[np.float64]


@cache
def draws(domain: int, documents: int) -> Floats:
    """[RESAMPLES, documents]: the count of each document in a resample, drawn with replacement.

    A function of the domain's number and its number of documents, so equal for every row of a table.
    """
    generator = np.random.default_rng([0, domain])
    return generator.multinomial(documents, np.full(documents, 1 / documents), RESAMPLES).astype(np.float64)


def resampled(dense: Sequence[Score], model: Sequence[Score], domain: int) -> Floats | None:
    """[RESAMPLES]: the normalised score over each resample; None for a single document.

    Args:
        dense: the reference, document by document.
        model: of the same documents.
        domain: the number of their domain.
    """
    if len(dense) < 2:
        return None
    drawn = draws(domain, len(dense))
    rows = [(own.nll, other.nll, own.tokens) for own, other in zip(dense, model, strict=True)]
    sums = drawn @ np.array(rows, dtype=np.float64)  # [RESAMPLES, 3]
    return np.array([normalised(*item) for item in sums.tolist()])
