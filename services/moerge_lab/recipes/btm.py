"""BTM: the experts' output distributions, mixed by Bayes' rule (Li et al., 2022; BTS section 3.3)."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from moerge.scoring.perplexity import Rows
from moerge_lab.recipes.base import SEED, Fleet, Model, Options, Recipe
from moerge_lab.recipes.likelihoods import Dense, experts, likelihoods, recent, with_seed
from moerge_lab.recipes.tuning import CHOOSE, with_window


class Ensemble(Model):
    """p(x_t+1 | x_<=t) = sum_d p(d | x_<=t) p_d(x_t+1 | x_<=t), p(d | x_<=t) ~ p(d) prod_s p_d(x_s | x_<s).

    The product is over the last `window` tokens, t - window < s <= t; 0: all, except the first, which none predicts.

    Args:
        prior: [D], p(d).
    """

    def __init__(self, models: Sequence[Dense], prior: Tensor, window: int = 0) -> None:
        self._models, self._prior, self._window = models, prior.double(), window
        self.active_parameters = sum(model.active_parameters for model in models)

    def losses(self, rows: Rows) -> Tensor:
        """[B, T - 1] float64."""
        logs = -torch.stack([model.losses(rows) for model in self._models])  # [D, B, T - 1]
        evidence = torch.nn.functional.pad(recent(logs, self._window), (1, 0))[..., :-1]
        posterior = (self._prior.log()[:, None, None] + evidence).log_softmax(dim=0)
        return -(posterior + logs).logsumexp(dim=0)


def cached_prior(models: Sequence[Dense], texts: Sequence[list[int]]) -> Tensor:
    """[D] float64: the mean, over texts, of p(d | text) under a uniform prior."""
    return likelihoods(models, texts).softmax(dim=1).mean(dim=0)


def _build(name: str, cached: bool, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    models = experts(with_seed(fleet, options))
    prior = torch.full((len(models),), 1 / len(models))
    if cached:
        prior = cached_prior(models, [text for domain in fleet.domains for text in domain.statistics])
    yield name, with_window(fleet, options, partial(Ensemble, models, prior))


_OPTIONS: Options = {"window": CHOOSE, SEED: 0}
RECIPES = (
    Recipe(
        "btm",
        "BTM (Li et al. 2022), as in BTS section 3.3: uniform prior; there the evidence is of all tokens",
        partial(_build, "btm", False),
        options=_OPTIONS,
        uses_text=False,
        any_architecture=True,
    ),
    Recipe(
        "btm-cached",
        "BTM (Li et al. 2022), cached prior: here the plain mean over all domains' statistics documents, not a decaying"
        " one over documents of the domain that is scored, for no recipe is told that domain",
        partial(_build, "btm-cached", True),
        options=_OPTIONS,
        any_architecture=True,
    ),
)
