"""Perplexity over held-out documents, with a fixed context and stride."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from moerge.models.batches import bucket, pad
from moerge.models.dense import place
from moerge.models.tokens import Tokens
from moerge.progress import Tracker
from moerge_proto import evaluations

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Score:
    """Summed negative log-likelihood in nats, over `tokens` predicted tokens."""

    nll: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.tokens)


def normalised(dense: Score, model: Score) -> float:
    """100 x the dense expert's perplexity / the model's, both over the same tokens (DUME section 3.1)."""
    return evaluations.normalised(dense.nll, model.nll, model.tokens)


@dataclass(frozen=True)
class Rows:
    """Token ids [B, T] int64, padded on the right with 0, how many of each row are real, and the text's domain."""

    ids: Tensor
    lengths: Sequence[int]
    domain: str


@dataclass(frozen=True)
class Window:
    """Tokens of which the last `new` are predicted from those before them; of these, the counted ones are scored."""

    tokens: Tokens
    new: int

    @property
    def scored(self) -> int:
        """Number of scored tokens."""
        return sum(self.predicts)

    @property
    def predicts(self) -> list[bool]:
        """Whether the token after each place is scored; False at the last place."""
        known = len(self.tokens) - self.new
        scored = [place >= known and counts for place, counts in enumerate(self.tokens.mask)]
        return [*scored[1:], False]


def load(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    """A dense expert or a published version, in evaluation mode."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, dtype=dtype
    )
    place(model, device)
    model.eval()
    return model


def windows(documents: Sequence[Tokens], context: int, stride: int) -> list[Window]:
    """Cuts documents into windows of at most `context` tokens that advance by `stride`.

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


def logits(model: PreTrainedModel, rows: Rows) -> Tensor:
    """[B, T, V] float32, by the model alone."""
    found: Tensor = model(input_ids=rows.ids.to(model.device), use_cache=False).logits
    return found.float()


def score(
    model: PreTrainedModel,
    cut: Sequence[Window],
    tracker: Tracker,
    after_batch: Callable[[list[Window]], None] = lambda batch: None,
) -> Score:
    """The score of one model, as `score_of` has it."""
    return score_of(lambda rows: logits(model, rows), cut, tracker, after_batch)


@torch.inference_mode()
def score_of(
    predict: Callable[[Rows], Tensor],
    cut: Sequence[Window],
    tracker: Tracker,
    after_batch: Callable[[list[Window]], None] = lambda batch: None,
    domain: str = "",
) -> Score:
    """Sums the negative log-likelihood of every scored token, from float32 logits into a float64 sum.

    Args:
        predict: gives the next tokens' logits [B, T, V] of rows.
        after_batch: is called with the windows of each batch once the model has seen them.
        domain: of the text; only an oracle is helped by it.
    """
    nll, tokens = 0.0, 0
    for batch in bucket(cut, lambda window: len(window.tokens), BATCH_TOKENS):
        ids = pad([window.tokens.ids for window in batch])  # [B, T]
        scored = pad([window.predicts for window in batch], torch.bool)[:, :-1]
        found = predict(Rows(ids, [len(window.tokens) for window in batch], domain))
        places = scored.to(found.device)
        wanted = ids[:, 1:].to(found.device)[places]  # [n], of the scored places alone
        losses = torch.nn.functional.cross_entropy(found[:, :-1][places], wanted, reduction="none")
        nll += float(losses.double().sum())
        after_batch(batch)
        done = len(wanted)
        tokens += done
        tracker.advance(done)
    return Score(nll, tokens)
