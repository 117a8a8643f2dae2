"""How likely dense experts find texts, and rows of a batch that go different ways."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.models.batches import bucket, pad
from moerge.recipes.base import Fleet
from moerge.scoring.perplexity import BATCH_TOKENS, Rows, load, logits


def experts(fleet: Fleet) -> list[PreTrainedModel]:
    """Every domain's dense expert, in order, float32."""
    return [load(domain.expert, torch.float32, fleet.device) for domain in fleet.domains]


def documents(rows: Rows) -> list[list[int]]:
    """Each row's real token ids."""
    return [ids[:length] for ids, length in zip(rows.ids.tolist(), rows.lengths, strict=True)]


def predicted(log_probabilities: Tensor, rows: Rows) -> Tensor:
    """[B, T - 1] float64: log p(x_t | x_<t) of every token but the first; 0 where there is only padding.

    `log_probabilities` is [B, T, V], of each next token.
    """
    following = rows.ids[:, 1:].to(log_probabilities.device)
    told = log_probabilities[:, :-1].gather(2, following[:, :, None])[:, :, 0].double()
    places = torch.arange(1, rows.ids.shape[1], device=told.device)
    return told * (places < torch.tensor(rows.lengths, device=told.device)[:, None])


@torch.inference_mode()
def likelihoods(models: Sequence[PreTrainedModel], texts: Sequence[list[int]]) -> Tensor:
    """[N, D] float64: log p(text) under each model, of all its tokens but the first."""
    found = torch.zeros(len(texts), len(models), dtype=torch.float64)
    for batch in bucket(range(len(texts)), lambda n: len(texts[n]), BATCH_TOKENS):
        rows = Rows(pad([texts[n] for n in batch]), [len(texts[n]) for n in batch], "")
        for column, model in enumerate(models):
            found[batch, column] = predicted(logits(model, rows).log_softmax(dim=2), rows).sum(dim=1).cpu()
    return found


def in_groups(rows: Rows, groups: Iterable[tuple[Tensor, Callable[[Rows], Tensor]]]) -> Tensor:
    """[B, T, V] float32, from rows that go different ways.

    Args:
        rows: all of them.
        groups: which rows [b], each in one group, and what gives their logits [b, T, V].
    """
    found = torch.empty(0)
    for those, predict in groups:
        part = predict(Rows(rows.ids[those], [rows.lengths[row] for row in those.tolist()], rows.domain))
        if not found.numel():
            found = part.new_empty(*rows.ids.shape, part.shape[2])
        found[those.to(found.device)] = part
    return found
