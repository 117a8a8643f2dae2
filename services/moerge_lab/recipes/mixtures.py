"""Recipes whose models have classes of their own, trained on the domains' pooled text: BAM, BTS, and MergeME's."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge_lab.mixtures.bam import Bam
from moerge_lab.mixtures.bts import STITCHES, Bts
from moerge_lab.mixtures.heterogeneous import Heterogeneous
from moerge_lab.mixtures.jetmoe import jetmoe
from moerge_lab.recipes.base import SEED, Fleet, Model, Options, Recipe, Value, whole, word
from moerge_lab.recipes.likelihoods import with_seed
from moerge_lab.recipes.trained import TRAINING, trained_model
from moerge_lab.training.parameters import Which

Members = Mapping[str, Path]
"""Dense checkpoint folders by name. The tokenizer is the first one's."""
Build = Callable[[], PreTrainedModel]
"""Makes an untrained mixture."""
ROUTINGS = ("soft", "top2")
"""Of BAM's MLPs; its attention experts always run all."""
SHARED, FROZEN = "shared-kv", "frozen"
"""The options for averaged keys and values, in a stock class; and for frozen experts."""
_UPWEIGHT: Options = {"upweight": 1}


def members(fleet: Fleet, options: Options) -> dict[str, Path]:
    """The seed model and the experts. In recipes with the option `seed`, the seed model is the last, or none."""
    if SEED in options:
        return {domain.name: domain.expert for domain in with_seed(fleet, options).domains}
    return {SEED: fleet.seed_model, **{domain.name: domain.expert for domain in fleet.domains}}


def mixture(name: str, members: Members, options: Options, seed: int) -> Build:
    """Checks the options; the result makes an untrained mixture of this recipe, with random parameters by the seed."""
    return _BUILDERS[name](members, options, seed)


def _bam(members: Members, options: Options, seed: int) -> Build:
    routing = word(options, "routing")
    if not whole(options, SHARED, 0, 1):
        return partial(Bam.of, members, seed, _mlps(options))
    if routing != "soft":
        what = "JetMoE has as many attention experts as MLPs per token"
        raise MoergeError(what, where=f"routing={routing}", todo=f"omit routing or {SHARED}")
    return partial(jetmoe, members, seed)


def _bam_adapters(members: Members, options: Options, seed: int) -> Build:
    return partial(Bam.of, members, seed, _mlps(options), adapters=True)


def _mlps(options: Options) -> int:
    return 2 if word(options, "routing") == "top2" else 0


def _bts(members: Members, options: Options, seed: int) -> Build:
    hub = [*members][whole(options, "hub", 0, len(members) - 1)]
    alternating = bool(whole(options, "alternating", 0, 1))
    return partial(Bts.of, {hub: members[hub], **members}, whole(options, "stitches", 1), alternating=alternating)


def _heterogeneous(members: Members, options: Options, seed: int) -> Build:
    if len(members) < 2:
        raise MoergeError("expected two models or more, found one", where="`expert`", todo="give another expert")
    k = whole(options, "k", 2, len(members))  # a single expert has weight 1, which gives the router no gradient
    return partial(Heterogeneous.of, members, seed, k, skip=bool(whole(options, "skip", 0, 1)))


_BUILDERS: Mapping[str, Callable[[Members, Options, int], Build]] = {
    "bam": _bam,
    "bam-adapters": _bam_adapters,
    "bts": _bts,
    "mergeme-heterogeneous": _heterogeneous,
}


def trained_parameters(which: Which, options: Options) -> Which:
    return "added" if FROZEN in options and whole(options, FROZEN, 0, 1) else which


def _trained(name: str, which: Which, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    model = mixture(name, members(fleet, options), options, fleet.seed)()
    yield name, trained_model(model, trained_parameters(which, options), fleet, options)


def _recipe(name: str, source: str, which: Which, options: Options, rate: float) -> Recipe:
    given: dict[str, Value] = {**options, **TRAINING, "rate": rate}
    words = {"routing": ROUTINGS} if "routing" in options else {}
    made = Recipe(name, source, partial(_trained, name, which), given, words)
    return replace(made, drawn=True, needs_base=SEED not in options, asked_only=True, trains=which)


RECIPES = (
    _recipe("bam", "Zhang et al. 2024; BTS section 3.3", "all", {"routing": "soft", SHARED: 0, **_UPWEIGHT}, 3e-4),
    _recipe("bam-adapters", "BTS equation 3: frozen experts", "added", {"routing": "soft", **_UPWEIGHT}, 1e-3),
    _recipe("bts", "BTS section 2.2", "added", {"stitches": STITCHES, "alternating": 1, "hub": 0, **_UPWEIGHT}, 1e-3),
    replace(
        _recipe(
            "mergeme-heterogeneous",
            "MergeME section 3.2; skip connections beside projectors, and frozen experts, are moerge's",
            "all",
            {"k": 2, "skip": 0, FROZEN: 0, SEED: 0},
            1e-3,
        ),
        any_architecture=True,
    ),
)
