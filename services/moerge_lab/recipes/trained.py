"""Recipes with training on the domains' pooled text: BTX, DUME+, sparse upcycling, and the seed model trained on."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge.models.dense import place
from moerge_lab.mixtures.base import INITIAL_DEVIATION
from moerge_lab.recipes.base import SEED, Fleet, Model, Options, Recipe, number, whole, word
from moerge_lab.recipes.dense import TASK_VECTORS
from moerge_lab.recipes.likelihoods import with_seed
from moerge_lab.recipes.models import Loaded, Routed, load
from moerge_lab.recipes.published import RIDGE, publish, random_routers, ridge, scale_of
from moerge_lab.recipes.recommended import OPTIONS, PARTS
from moerge_lab.training import job
from moerge_lab.training.job import Job, Trained
from moerge_lab.training.loop import Run
from moerge_lab.training.losses import ROUTINGS, Loss, RoutedLoss, Routing, experts_per_token, language_loss
from moerge_lab.training.parameters import Which
from moerge_proto.bodies import BodyMethod

STARTS = ("random", "ridge", "recommended", "fitted")
"""Routers before training: random; DUME's; or the whole model of `recommended`, or of `recommended:fit=1`."""
BODIES: tuple[BodyMethod, ...] = ("average", "ties", "dare")
TRAINING: Options = {"train": 250_000, "rate": 3e-4, "batch": 8}
"""Tokens of the training, its highest learning rate, and rows of a batch. Rates were chosen on the tuning text of
`small` (figures/training.md)."""
_WORDS = {"routing": ROUTINGS, "start": STARTS, "body": BODIES}


def training_rows(fleet: Fleet) -> list[Tensor]:
    """Each domain's rows for training; an error if there are none."""
    for domain in fleet.domains:
        if not len(domain.training):
            todo = "give more text with `text`, or a smaller `context`"
            raise MoergeError("has less text for training than one context", where=domain.name, todo=todo)
    return [domain.training for domain in fleet.domains]


def run_of(fleet: Fleet, options: Options) -> Run:
    context, batch = training_rows(fleet)[0].shape[1], whole(options, "batch", 1)
    return Run.of(number(options, "train"), context, batch, number(options, "rate"), seed=fleet.seed)


def train(model: PreTrainedModel, which: Which, fleet: Fleet, options: Options) -> Trained:
    """Trains a dense model, a mixture or, with the option `balance`, a published model in place.

    Batches have all domains in equal parts; with `upweight=0` by the sizes of their texts.
    """
    sources, run = training_rows(fleet), run_of(fleet, options)
    weights = None if options.get("upweight", 1) else [len(rows) for rows in sources]
    loss: Loss = language_loss
    if "balance" in options:
        loss = RoutedLoss(routing_of(options), number(options, "balance"))
    return job.train(Job(model, run, sources, weights, which, loss, progress=fleet.progress))


def trained_model(
    model: PreTrainedModel, which: Which, fleet: Fleet, options: Options, kind: type[Loaded] = Loaded
) -> Loaded:
    """The model, trained in place on the fleet's device."""
    place(model, fleet.device)
    trained = train(model, which, fleet, options)
    result = kind(model)
    result.trained = trained
    return result


def routing_of(options: Options) -> Routing:
    return next(item for item in ROUTINGS if item == word(options, "routing"))


def untrained(fleet: Fleet, options: Options) -> Path:
    """The folder of the version before training; an error if the options contradict each other."""
    members, begin = with_seed(fleet, options), word(options, "start")
    [method] = [item for item in BODIES if item == word(options, "body")]
    k = {"k": experts_per_token(routing_of(options), len(members.domains))}
    if begin != "random" and len(members.domains) > len(fleet.domains):
        raise MoergeError("the seed model has no statistics", where=f"start={begin}", todo=f"omit {SEED} or start")
    if begin in ("recommended", "fitted"):
        if method != "average":
            raise MoergeError("the start has a body of its own", where=f"body={method}", todo="omit body or start")
        return publish(PARTS, fleet, {**OPTIONS, **k, "fit": int(begin == "fitted")})
    if method != "average":
        options = {**options, **scale_of(method, fleet, options)}
    if begin == "ridge":
        return publish(ridge(method), fleet, {**RIDGE, **options, **k})
    routers = [INITIAL_DEVIATION * router for router in random_routers(members)]
    return publish(ridge(method), members, {**options, **k}, routers)


def _published(name: str, which: Which, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    yield name, trained_model(load(untrained(fleet, options)), which, fleet, options, Routed)


def _upcycling(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    seed = fleet.seed_model
    copies = replace(fleet, domains=[replace(domain, expert=seed) for domain in fleet.domains])
    return _published("upcycling", "all", copies, {**options, "start": "random", "body": "average", SEED: 0})


def _seed_continued(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    yield "seed-continued", trained_model(load(fleet.seed_model), "all", fleet, options)


def _recipe(name: str, source: str, which: Which, routing: Routing, start: str, rate: float) -> Recipe:
    words = {"routing": routing, "start": start, "body": "average"}
    options: Options = {**words, **TASK_VECTORS, SEED: 0, "balance": 0, **TRAINING, "rate": rate}
    build = partial(_published, name, which)
    return Recipe(name, source, build, options, _WORDS, drawn=True, asked_only=True, trains=which)


RECIPES = (
    _recipe("dume-plus", "DUME section 2.3, its routers trained", "routers", "straight", "ridge", 1e-2),
    _recipe("dume-plus-gate", "DUME+ as in DUME's code: routers and gate_proj", "gates", "top1", "ridge", 3e-3),
    _recipe("btx-gate", "BTX as in DUME's code: routers and gate_proj", "gates", "top2", "random", 3e-3),
    _recipe("btx-router", "BTX's routers alone", "routers", "top2", "random", 1e-2),
    _recipe("btx", "Sukhbaatar et al. 2024; other bodies: MergeME 3.1", "all", "top2", "random", 3e-4),
    *(
        replace(recipe, drawn=True, needs_base=True, asked_only=True, trains="all", any_architecture=True)
        for recipe in (
            Recipe(
                "upcycling",
                "Komatsuzaki et al. 2022: every expert a copy of the seed model",
                _upcycling,
                {"routing": "top2", "balance": 0, **TRAINING},
                {"routing": ROUTINGS},
            ),
            Recipe("seed-continued", "the seed model, dense, on the same text", _seed_continued, TRAINING),
        )
    ),
)
