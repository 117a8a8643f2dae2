"""BTM: the experts' output distributions, mixed by Bayes' rule (Li et al., 2022; BTS section 3.3)."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.recipes.base import Fleet, Model, Options, Recipe
from moerge.recipes.likelihoods import experts, likelihoods, predicted
from moerge.recipes.models import active_parameters
from moerge.scoring.perplexity import Rows, logits


class Ensemble(Model):
    """p(x_t+1 | x_<=t) = sum_d p(d | x_<=t) p_d(x_t+1 | x_<=t), p(d | x_<=t) ~ p(d) prod_s<=t p_d(x_s | x_<s).

    A row's first token, which no expert predicts, tells nothing of the domain. Nothing is looked at ahead of time.

    Args:
        models: the dense experts.
        prior: [D], p(d).
    """

    def __init__(self, models: Sequence[PreTrainedModel], prior: Tensor) -> None:
        self._models = models
        self._prior = prior.double()
        self.active_parameters = sum(map(active_parameters, models))

    @torch.inference_mode()
    def logits(self, rows: Rows) -> Tensor:
        """[B, T, V] float32, normalised. One expert's logits are held at a time, besides the mixture so far."""
        mixed, evidence = torch.empty(0), torch.empty(0)
        for model, prior in zip(self._models, self._prior.log().tolist(), strict=True):
            own = logits(model, rows).log_softmax(dim=2)
            weight = prior + torch.nn.functional.pad(predicted(own, rows), (1, 0)).cumsum(dim=1)  # [B, T]
            if not mixed.numel():
                mixed, evidence = own, weight
                continue
            total = torch.logaddexp(evidence, weight)
            before, this = (evidence - total).float()[:, :, None], (weight - total).float()[:, :, None]
            mixed, evidence = torch.logaddexp(mixed + before, own + this), total
        return mixed


def _uniform(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    models = experts(fleet)
    yield "btm", Ensemble(models, torch.full((len(models),), 1 / len(models)))


def cached_prior(models: Sequence[PreTrainedModel], texts: Sequence[list[int]]) -> Tensor:
    """[D] float64: the mean, over texts, of p(d | text) under a uniform prior."""
    return likelihoods(models, texts).softmax(dim=1).mean(dim=0)


def _cached(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    models = experts(fleet)
    texts = [text for domain in fleet.domains for text in domain.statistics]
    yield "btm-cached", Ensemble(models, cached_prior(models, texts))


RECIPES = (
    Recipe("btm", "BTM (Li et al. 2022), as in BTS section 3.3: uniform prior", _uniform, uses_text=False),
    Recipe(
        "btm-cached",
        "BTM (Li et al. 2022), cached prior: here the plain mean over all domains' statistics documents, not a decaying"
        " one over documents of the domain that is scored, for no recipe is told that domain",
        _cached,
    ),
)
