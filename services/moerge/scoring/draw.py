"""The draw of scored windows: one rule for merges and tables."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moerge.models.tokens import Tokens
from moerge.scoring.perplexity import Window, each_window


@dataclass(frozen=True)
class Cut:
    """Windows of `context` tokens that advance by `stride`, about `tokens` scored tokens per domain."""

    context: int = 256
    stride: int = 128
    tokens: int = 20_000

    def drawn(self, documents: Iterable[Tokens]) -> list[Window]:
        """The scored windows of documents, which can be read twice; only these windows are in memory."""
        sizes = [window.scored for window in each_window(documents, self.context, self.stride)]
        chosen = _chosen(sizes, self.tokens)
        every = enumerate(each_window(documents, self.context, self.stride))
        return [window for number, window in every if number in chosen]


def spread(windows: Sequence[Window], tokens: int) -> list[Window]:
    """Windows with about `tokens` scored tokens, drawn with equal probability."""
    chosen = _chosen([window.scored for window in windows], tokens)
    return [window for number, window in enumerate(windows) if number in chosen]


def _chosen(sizes: Sequence[int], tokens: int) -> set[int]:
    taken, chosen = 0, set[int]()
    for number in random.Random(0).sample(range(len(sizes)), len(sizes)):  # noqa: S311  # no secret
        if taken >= tokens:
            break
        chosen.add(number)
        taken += sizes[number]
    return chosen
