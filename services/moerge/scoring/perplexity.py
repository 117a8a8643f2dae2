"""Perplexity over held-out documents, with a fixed context and stride."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, GenerationConfig

from moerge.models.batches import bucket, pad
from moerge.models.dense import expert_model, place
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import Tokens
from moerge.progress import Tracker
from moerge_proto import normalised as formulas
from moerge_proto.version_files import GENERATION

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # it takes 1.5 s, and a process without a model never needs it

BATCH_TOKENS = 4096
Losses = Callable[["Rows"], Tensor]
"""[B, T - 1] float32 of rows: -log p of each token except the first, in nats; undefined for padding."""


@dataclass(frozen=True)
class Score:
    """Summed negative log-likelihood in nats, over `tokens` predicted tokens."""

    nll: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return formulas.perplexity(self.nll, self.tokens)


def normalised(dense: Score, model: Score) -> float:
    """100 x the dense expert's perplexity / the model's, both over the same tokens (DUME section 3.1)."""
    return formulas.normalised(dense.nll, model.nll, model.tokens)


@dataclass(frozen=True)
class Rows:
    """Token ids [B, T] int64, padded on the right with 0, the number of real ones per row, and the text's domain."""

    ids: Tensor
    lengths: Sequence[int]
    domain: str


@dataclass(frozen=True)
class Window:
    """Tokens of which the last `new` are predicted from those before them; the counted ones of these are scored."""

    tokens: Tokens
    new: int
    document: int = 0

    @property
    def scored(self) -> int:
        return self.tokens[max(1, len(self.tokens) - self.new) :].count

    @property
    def predicts(self) -> list[bool]:
        """Whether the token after each place is scored; False at the last place."""
        known = len(self.tokens) - self.new
        scored = [place >= known and counts for place, counts in enumerate(self.tokens.mask)]
        return [*scored[1:], False]


def load(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> "PreTrainedModel":
    """A dense expert or a published version, in evaluation mode."""
    model: PreTrainedModel
    files = DenseFiles(folder)
    if files.is_adapter or files.is_wrapped:
        model = expert_model(files, dtype)
        if (settings := files.side_file(GENERATION)).is_file():
            model.generation_config = GenerationConfig.from_pretrained(settings.parent, local_files_only=True)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            folder, config=files.config, local_files_only=True, trust_remote_code=False, dtype=dtype
        )
    place(model, device)
    model.eval()
    return model


AfterBatch = Callable[[Sequence[Window], Tensor], object]
"""Called with a batch's windows and their losses [B, T - 1]."""


def windows(documents: Iterable[Tokens], context: int, stride: int) -> list[Window]:
    """Cuts documents into windows of at most `context` tokens that advance by 1 <= `stride` < context.

    Every token except a document's first is scored exactly once, with at least context - stride tokens before it if the
    document has them.
    """
    return list(each_window(documents, context, stride))


def each_window(documents: Iterable[Tokens], context: int, stride: int) -> Iterator[Window]:
    """`windows`, one at a time."""
    if not 1 <= stride < context:
        raise ValueError(f"expected a stride between 1 and context - 1 = {context - 1}, found {stride}")
    for number, document in enumerate(documents):
        done = 1
        for start in range(0, max(len(document) - 1, 0), stride):
            end = min(start + context, len(document))
            yield Window(document[start:end], end - done, number)
            done = end
            if end == len(document):
                break


def logits(model: "PreTrainedModel", rows: Rows) -> Tensor:
    """[B, T, V] float32 of the model."""
    result: Tensor = model(input_ids=rows.ids.to(model.device), use_cache=False).logits
    return result.float()


def losses_by(logits: Callable[[Rows], Tensor]) -> Losses:
    """The losses from the next tokens' logits [B, T, V]."""
    return lambda rows: losses_of(logits(rows), rows.ids)


def losses_of(logits: Tensor, ids: Tensor) -> Tensor:
    """[B, T - 1]: the losses of tokens [B, T] from the logits [B, T, V]."""
    following = ids[:, 1:].to(logits.device)
    by_row = (cross_entropy(one[:-1], row, reduction="none") for one, row in zip(logits, following, strict=True))
    return torch.stack(list(by_row))


def score(
    model: "PreTrainedModel",
    cut: Sequence[Window],
    tracker: Tracker,
    after_batch: Sequence[AfterBatch] = (),
) -> Score:
    """The score of one model."""
    return total(document_scores(losses_by(lambda rows: logits(model, rows)), cut, tracker, after_batch))


def total(scores: Iterable[Score]) -> Score:
    nll, tokens = 0.0, 0
    for item in scores:
        nll, tokens = nll + item.nll, tokens + item.tokens
    return Score(nll, tokens)


@torch.inference_mode()
def document_scores(
    losses: Losses,
    cut: Sequence[Window],
    tracker: Tracker,
    after_batch: Sequence[AfterBatch] = (),
    domain: str = "",
) -> list[Score]:
    """The score of each document: the negative log-likelihood of its scored tokens, summed in float64.

    Each of `after_batch` is called with the windows of each batch and their losses. Only an oracle uses `domain`.
    """

    def computed() -> Iterator[tuple[Sequence[Window], Tensor]]:
        for batch in batched(cut):
            ids = pad([window.tokens.ids for window in batch])  # [B, T]
            result = losses(Rows(ids, [len(window.tokens) for window in batch], domain))
            for call in after_batch:
                call(batch, result)
            yield batch, result
            tracker.advance(sum(window.scored for window in batch))

    return by_document(computed())


def batched(cut: Sequence[Window]) -> Iterator[list[Window]]:
    return bucket(cut, lambda window: len(window.tokens), BATCH_TOKENS)


def by_document(batches: Iterable[tuple[Sequence[Window], Tensor]]) -> list[Score]:
    """The score of each document, from micro-batches and their losses [B, T - 1]."""
    nll, tokens = defaultdict[int, float](float), Counter[int]()
    for batch, result in batches:
        scored = pad([window.predicts for window in batch], torch.bool)[:, :-1]
        for window, row, places in zip(batch, result.cpu(), scored, strict=True):
            nll[window.document] += float(row[places].double().sum())
            tokens[window.document] += window.scored
    return [Score(nll[number], tokens[number]) for number in sorted(nll)]
