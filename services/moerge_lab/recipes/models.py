"""Recipes' models of stock classes: dense, published, and routed by an oracle."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from transformers import JetMoeForCausalLM, PreTrainedModel

from moerge.models.families.registry import host_of
from moerge.scoring import perplexity
from moerge.scoring.perplexity import Rows, logits, losses_by
from moerge.scoring.routers import forced
from moerge_lab.mixtures import base
from moerge_lab.mixtures.base import Mixture
from moerge_lab.mixtures.heterogeneous import Heterogeneous
from moerge_lab.recipes.base import Model


def load(folder: Path, device: str = "cpu") -> PreTrainedModel:
    """A dense or published model, float32."""
    return perplexity.load(folder, torch.float32, device)


def active_parameters(model: PreTrainedModel) -> float:
    """The number of parameters that a token is multiplied by; in a MoE, those of its k experts."""
    if isinstance(model, Mixture | Heterogeneous):
        return model.active_parameters()
    if isinstance(model, JetMoeForCausalLM):
        return base.active_parameters(model)  # all experts run
    config = model.config

    def share(name: str) -> float:
        chosen = ".experts." in name
        return host_of(config).top_k(config) / host_of(config).slots(config) if chosen else 1.0

    return base.active_parameters(model, share)


class FromLogits(Model):
    """A model with logits for the whole vocabulary."""

    @abstractmethod
    def logits(self, rows: Rows) -> Tensor:
        """[B, T, V] float32, the logarithm of each next token's probability up to a constant per place."""

    def losses(self, rows: Rows) -> Tensor:
        return losses_by(self.logits)(rows)


class Loaded(FromLogits):
    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.active_parameters = active_parameters(model)

    @classmethod
    def of(cls, folder: Path, device: str = "cpu") -> Self:
        return cls(load(folder, device))

    def logits(self, rows: Rows) -> Tensor:
        return logits(self.model, rows)


class Routed(Loaded):
    """A published model with its routers; the table can count their choices."""


class Oracle(FromLogits):
    """A published model that routes each text to its own domain's expert only (DUME section 3.2)."""

    reads_domain = True

    def __init__(self, model: PreTrainedModel, domains: Sequence[str]) -> None:
        self._model, self._domains = model, list(domains)
        self.active_parameters = active_parameters(model)

    def logits(self, rows: Rows) -> Tensor:
        with forced(self._model, self._domains.index(rows.domain)):
            return logits(self._model, rows)
