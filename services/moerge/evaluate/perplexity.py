"""Perplexity over held-out documents, with a fixed context and stride."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from moerge.batches import bucket, pad
from moerge.progress import Tracker

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Score:
    """Summed negative log-likelihood in nats, over `tokens` predicted tokens."""

    nll: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.tokens)


@dataclass(frozen=True)
class Window:
    """Token ids of which the last `scored` are predicted from what stands before them."""

    ids: list[int]
    scored: int


def windows(documents: Sequence[list[int]], context: int, stride: int) -> list[Window]:
    """Cuts documents of token ids into windows of at most `context` ids that advance by `stride`.

    Every token but a document's first is scored exactly once, with at least context - stride tokens before it
    wherever the document has them.

    Raises:
        ValueError: stride is not between 1 and context - 1.
    """
    if not 1 <= stride < context:
        raise ValueError(f"stride must be between 1 and context - 1 = {context - 1}, found {stride}")
    cut = []
    for document in documents:
        done = 1
        for start in range(0, max(len(document) - 1, 0), stride):
            end = min(start + context, len(document))
            cut.append(Window(document[start:end], end - done))
            done = end
            if end == len(document):
                break
    return cut


@torch.inference_mode()
def score(
    model: PreTrainedModel,
    cut: Sequence[Window],
    tracker: Tracker,
    after_batch: Callable[[list[Window]], None] = lambda batch: None,
) -> Score:
    """Sums the negative log-likelihood of every scored token, from float32 logits into a float64 sum.

    `after_batch` is called with the windows of each batch once the model has seen them.
    """
    nll, tokens = 0.0, 0
    for batch in bucket(cut, lambda window: len(window.ids), BATCH_TOKENS):
        ids = pad([window.ids for window in batch])
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")  # [B, T-1]
        for row, window in zip(losses, batch, strict=True):
            last = len(window.ids) - 1
            nll += float(row[last - window.scored : last].double().sum())
            tokens += window.scored
        after_batch(batch)
        tracker.advance(sum(window.scored for window in batch))
    return Score(nll, tokens)
