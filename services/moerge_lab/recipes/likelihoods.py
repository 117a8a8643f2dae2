"""Likelihoods of texts under dense experts, computed once for all recipes; and batches with several routes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from moerge.models.batches import bucket, pad
from moerge.scoring.perplexity import BATCH_TOKENS, Rows
from moerge_lab.recipes.base import SEED, Domain, Fleet, Likelihoods, Options, whole
from moerge_lab.recipes.models import Loaded, load


class Dense(Loaded):
    """A dense expert whose likelihoods of texts are computed once; missing ones are added to the known ones."""

    def __init__(self, folder: Path, device: str, known: Likelihoods) -> None:
        super().__init__(load(folder, device))
        self._folder, self._known = folder, known

    def losses(self, rows: Rows) -> Tensor:
        """[B, T - 1] float64; 0 at padding."""
        result = torch.zeros(rows.ids.shape[0], rows.ids.shape[1] - 1, dtype=torch.float64)
        for row, likelihood in zip(result, self.likelihoods(documents(rows)), strict=True):
            row[: len(likelihood)] = -likelihood
        return result

    @torch.inference_mode()
    def likelihoods(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """log p(x_t | x_<t) of each text's tokens except the first, [T - 1] float64."""
        keys = [(self._folder, tuple(text)) for text in texts]
        missing = [key for key in dict.fromkeys(keys) if key not in self._known]
        for batch in bucket(missing, lambda key: len(key[-1]), BATCH_TOKENS):
            rows = Rows(pad([key[-1] for key in batch]), [len(key[-1]) for key in batch], "")
            for key, result in zip(batch, super().losses(rows).double().cpu(), strict=True):
                self._known[key] = -result[: len(key[-1]) - 1]
        return [self._known[key] for key in keys]


def experts(fleet: Fleet) -> list[Dense]:
    return [Dense(domain.expert, fleet.device, fleet.shared.likelihoods) for domain in fleet.domains]


def with_seed(fleet: Fleet, options: Options) -> Fleet:
    """The fleet; with the option `seed` the seed model is a further expert without text."""
    if not whole(options, SEED, 0, 1):
        return fleet
    return replace(fleet, domains=[*fleet.domains, Domain(SEED, fleet.seed_model, [])])


def documents(rows: Rows) -> list[list[int]]:
    return [ids[:length] for ids, length in zip(rows.ids.tolist(), rows.lengths, strict=True)]


def likelihoods(models: Sequence[Dense], texts: Sequence[Sequence[int]]) -> Tensor:
    """[N, D] float64: log p(text) under each model, of all tokens except the first."""
    return torch.stack(
        [torch.stack([likelihood.sum() for likelihood in model.likelihoods(texts)]) for model in models], dim=1
    )


def recent(values: Tensor, window: int) -> Tensor:
    """[..., T]: at each place the sum of the last `window` values up to it; 0: of all values up to it."""
    sums = values.cumsum(dim=-1)
    return sums - torch.nn.functional.pad(sums, (window, 0))[..., : sums.shape[-1]] if window else sums


def in_groups(rows: Rows, groups: Iterable[tuple[Tensor, Callable[[Rows], Tensor]]]) -> Tensor:
    """[B, T, V] float32: all rows' logits, from groups of row numbers [b], each with a function for [b, T, V]."""
    result = torch.empty(0)
    for those, predict in groups:
        part = predict(Rows(rows.ids[those], [rows.lengths[row] for row in those.tolist()], rows.domain))
        if not result.numel():
            result = part.new_empty(*rows.ids.shape, part.shape[2])
        result[those.to(result.device)] = part
    return result
