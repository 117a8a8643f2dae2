"""MergeME's mixture of experts of different architectures, trained on the domains' pooled text (section 3.2)."""

from collections.abc import Iterator

from moerge.mixtures.heterogeneous import Heterogeneous
from moerge.models.dense import place
from moerge.recipes.base import SEED, Fleet, Model, Options, Recipe, whole
from moerge.recipes.likelihoods import with_seed
from moerge.recipes.models import Loaded
from moerge.recipes.precision import convert
from moerge.recipes.trained import TRAINING, train


def _heterogeneous(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    members = {domain.name: domain.expert for domain in with_seed(fleet, options).domains}
    skip, frozen = (bool(whole(options, name, 0, 1)) for name in ("skip", "frozen"))
    k = whole(options, "k", 2, len(members))  # a single expert has weight 1, which gives the router no gradient
    mixture = Heterogeneous.of(members, fleet.seed, k, skip=skip)
    place(mixture, fleet.device)
    told = train(mixture, "added" if frozen else "all", fleet, options)
    model = Loaded(convert(mixture, fleet.dtype))
    model.trained = told
    yield "mergeme-heterogeneous", model


RECIPES = (
    Recipe(
        "mergeme-heterogeneous",
        "MergeME section 3.2; skip connections beside projectors, and frozen experts, are moerge's",
        _heterogeneous,
        {"k": 2, "skip": 0, "frozen": 0, SEED: 0, **TRAINING, "rate": 1e-3},
        drawn=True,
        asked_only=True,
        trains="all",
        any_architecture=True,
    ),
)
