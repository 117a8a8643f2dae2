"""Recipes whose models have classes of their own, trained on the domains' pooled text: BAM, BAM with adapters, BTS."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge.mixtures.bam import Bam
from moerge.mixtures.bts import STITCHES, Bts
from moerge.mixtures.jetmoe import jetmoe
from moerge.models.dense import place
from moerge.recipes.base import SEED, Fleet, Model, Options, Recipe, Value, whole, word
from moerge.recipes.models import Loaded
from moerge.recipes.precision import convert
from moerge.recipes.trained import TRAINING, train
from moerge.training.parameters import Which

ROUTINGS = ("soft", "top2")
"""Of BAM's MLPs; its attention experts always run all."""
SHARED = "shared-kv"
"""The option for averaged keys and values, in a stock class."""


def members(fleet: Fleet) -> dict[str, Path]:
    """The seed model and the experts, by name.

    Raises:
        MoergeError: the seed model is missing.
    """
    return {SEED: fleet.seed_model, **{domain.name: domain.expert for domain in fleet.domains}}


def build_mixture(name: str, members: Mapping[str, Path], options: Options, seed: int) -> PreTrainedModel:
    """An untrained mixture.

    Args:
        name: of the recipe.
        members: dense checkpoint folders; the seed model is the first.
        seed: of random routers.

    Raises:
        IncompatibleExpertError: the architectures differ, or JetMoE can't hold them.
        MoergeError: an option has an unsuitable value.
    """
    if name == "bts":
        hub = [*members][whole(options, "hub", 0, len(members) - 1)]
        ordered = {hub: members[hub], **members}
        return Bts.of(ordered, whole(options, "stitches", 1), alternating=bool(whole(options, "alternating", 0, 1)))
    routing = word(options, "routing")
    if name == "bam" and whole(options, SHARED, 0, 1):
        if routing != "soft":
            todo = f"omit routing or {SHARED}"
            raise MoergeError(
                "JetMoE has as many attention experts as MLPs per token", where=f"routing={routing}", todo=todo
            )
        return jetmoe(members, seed)
    k = 2 if routing == "top2" else 0
    return Bam.of(members, seed, k, adapters=name == "bam-adapters")


def _trained(name: str, which: Which, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    mixture = build_mixture(name, members(fleet), options, fleet.seed)
    place(mixture, fleet.device)
    told = train(mixture, which, fleet, options)
    model = Loaded(convert(mixture, fleet.dtype))
    model.trained = told
    yield name, model


def _recipe(name: str, source: str, which: Which, options: Options, rate: float) -> Recipe:
    given: dict[str, Value] = {**options, "upweight": 1, **TRAINING, "rate": rate}
    words = {"routing": ROUTINGS} if "routing" in options else {}
    made = Recipe(name, source, partial(_trained, name, which), given, words)
    return replace(made, drawn=True, needs_base=True, asked_only=True, trains=which)


RECIPES = (
    _recipe("bam", "Zhang et al. 2024; BTS section 3.3", "all", {"routing": "soft", SHARED: 0}, 3e-4),
    _recipe("bam-adapters", "BTS equation 3: frozen experts", "added", {"routing": "soft"}, 1e-3),
    _recipe("bts", "BTS section 2.2", "added", {"stitches": STITCHES, "alternating": 1, "hub": 0}, 1e-3),
)
