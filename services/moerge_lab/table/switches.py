"""Scores behind a change of text, by the number of tokens since the change."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence

from torch import Tensor

from moerge.scoring.perplexity import Score, Window

_FIRST = 8


def edges_of(half: int) -> list[int]:
    """The first token of each band behind a change: 0, then 8, 16, 32, … below `half`."""
    edges = [0]
    while (edge := max(2 * edges[-1], _FIRST)) < half:
        edges.append(edge)
    return edges


class Bands:
    """Sums of losses by document and band of the scored tokens."""

    def __init__(self, edges: Sequence[int]) -> None:
        self._edges = edges
        self._nll = [defaultdict[int, float](float) for _ in edges]
        self._tokens = [Counter[int]() for _ in edges]

    def add(self, windows: Sequence[Window], losses: Tensor) -> None:
        """Adds a batch: its windows, and the losses of their tokens but the first, [B, T - 1]."""
        if not self._edges:
            return
        for window, row in zip(windows, losses.cpu(), strict=True):
            known = len(window.tokens) - window.new
            for place, scored in enumerate(window.predicts[:-1]):
                if scored:
                    since = place + 1 - known
                    band = bisect_right(self._edges, since) - 1
                    self._nll[band][window.document] += float(row[place])
                    self._tokens[band][window.document] += 1

    def scores(self) -> list[list[Score]]:
        """The score of each document in each band."""
        return [
            [Score(nll[document], tokens[document]) for document in sorted(nll)]
            for nll, tokens in zip(self._nll, self._tokens, strict=True)
        ]
