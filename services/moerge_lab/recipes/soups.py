"""Soup-of-Experts and its paper's baselines: a dense model for each domain of the table, from a sample of its text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge.models.reader import Checkpoint
from moerge.models.tokens import all_counted
from moerge.progress import NoProgress
from moerge.scoring.perplexity import Rows, document_scores, total, windows
from moerge_lab.recipes.base import Domain, Fleet, Model, Options, Recipe, number, whole, word
from moerge_lab.recipes.dense import merged_model
from moerge_lab.recipes.models import Loaded, load
from moerge_lab.recipes.trained import TRAINING, run_of, training_rows
from moerge_lab.soups.bank import STARTS, Bank, Start, new_bank
from moerge_lab.soups.domains import Domains, embedded, pooled, pretraining_domains
from moerge_lab.soups.training import FINETUNE_RATE, bank_job, fitted, put, target_rows
from moerge_lab.training.job import Job, Trained, train

GENERIC = ""
"""The name of text that belongs to no target."""
_DENSE_STARTS = ("seed", "average")
_CLUSTERS: Options = {"clusters": 8}
_FINETUNE: Options = {"finetune": 0}
_DENSE_START: Options = {"start": "seed"}


class Specialists(Model):
    """A dense model per domain of the table, and possibly one for other text."""

    def __init__(self, models: Mapping[str, Loaded], trained: Trained) -> None:
        self._models, self.trained = models, trained
        self.active_parameters = next(iter(models.values())).active_parameters
        self.reads_domain = GENERIC not in models

    def losses(self, rows: Rows) -> Tensor:
        return self._models[rows.domain].losses(rows)


@dataclass(frozen=True)
class _Prepared:
    """Pretraining domains, and the weights [N] of each target and of the pooled text."""

    domains: Domains
    weights: Mapping[str, Tensor]


def _prepared(fleet: Fleet, options: Options) -> _Prepared:
    count, tokens = whole(options, "clusters", 1), whole(options, "train", 1)
    known = fleet.shared.made
    key = ("domains", fleet.seed, count, tokens)
    if key not in known:
        context = _context(fleet)
        model = load(fleet.seed_model, fleet.device)
        documents = pooled([domain.training.tolist() for domain in fleet.domains], tokens, fleet.seed)
        vectors = embedded(model, documents, context, "embedding text", fleet.progress)
        made = pretraining_domains(documents, vectors, count, context, fleet.seed)
        weights = {GENERIC: made.clusters.weights(vectors)}
        for domain in fleet.domains:
            own = embedded(model, _sample(domain), context, f"embedding {domain.name}", fleet.progress)
            weights[domain.name] = made.clusters.weights(own)
        known[key] = _Prepared(made, weights)
    result: _Prepared = known[key]
    return result


def _context(fleet: Fleet) -> int:
    return training_rows(fleet)[0].shape[1]


def _sample(domain: Domain) -> Sequence[list[int]]:
    if not any(len(statistic) > 1 for statistic in domain.statistics):
        todo = "give more text with `other`, or more `statistics_tokens`"
        raise MoergeError("has no sample of two tokens", where=domain.name, todo=todo)
    return domain.statistics


def _key(name: str, fleet: Fleet, options: Options) -> tuple[object, ...]:
    used = {option: value for option, value in options.items() if option not in ("fit", "finetune")}
    return (name, fleet.seed, *sorted(used.items()))


def _bank(fleet: Fleet, options: Options) -> tuple[Bank, Trained]:
    known, key = fleet.shared.made, _key("soup", fleet, options)
    if key not in known:
        rows = _prepared(fleet, options).domains.rows
        model = load(fleet.seed_model, fleet.device)
        start: Start = next(item for item in STARTS if item == word(options, "start"))
        experts = [Checkpoint(domain.expert) for domain in fleet.domains]
        bank = new_bank(model, start, experts, len(experts), whole(options, "rank", 0), len(rows), fleet.seed)
        job = bank_job(model, bank, rows, whole(options, "support", 1), run_of(fleet, options))
        known[key] = bank, train(replace(job, progress=fleet.progress))
    result: tuple[Bank, Trained] = known[key]
    return result


def _soup(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    prepared = _prepared(fleet, options)
    bank, trained = _bank(fleet, options)
    models = {}
    for name, weights in prepared.weights.items():
        model, alpha = load(fleet.seed_model, fleet.device), bank.alpha(weights)
        if name != GENERIC and whole(options, "fit", 0, 1):
            alpha = fitted(model, bank, alpha, _rows(fleet, name), whole(options, "batch", 1), fleet.seed)
        put(model, bank.instantiate(alpha))
        models[name] = _finetuned(fleet, options, name, model)
    yield "soup", Specialists(models, trained)


def _rows(fleet: Fleet, name: str) -> Tensor:
    [domain] = [item for item in fleet.domains if item.name == name]
    return target_rows(_sample(domain), _context(fleet))


def _finetuned(fleet: Fleet, options: Options, name: str, model: PreTrainedModel) -> Loaded:
    """The model, with the option `finetune` trained on a target's sample."""
    tokens = whole(options, "finetune", 0)
    if tokens and name != GENERIC:
        run = run_of(fleet, {**options, "train": tokens, "rate": FINETUNE_RATE})
        train(Job(model, run, [_rows(fleet, name)]))
    return Loaded(model)


def _dense(
    fleet: Fleet, options: Options, rows: Sequence[Tensor], weights: Sequence[float] | None, share: int
) -> tuple[PreTrainedModel, Trained]:
    """A dense model trained on a mixture, on 1 / `share` of the tokens."""
    start = word(options, "start")
    model = load(fleet.seed_model, fleet.device) if start == "seed" else merged_model(fleet, "average", {})
    run = run_of(fleet, {**options, "train": number(options, "train") / share})
    return model, train(Job(model, run, rows, weights, progress=fleet.progress))


def _generic(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    known, key, models = fleet.shared.made, _key("generic", fleet, options), {}
    if key not in known:
        model, trained = _dense(fleet, options, [domain.training for domain in fleet.domains], None, 1)
        known[key] = dict(model.named_parameters()), trained
    state, trained = known[key]
    for name in (GENERIC, *(domain.name for domain in fleet.domains)):
        own = load(fleet.seed_model, fleet.device)
        put(own, state)
        models[name] = _finetuned(fleet, options, name, own)
    yield "generic", Specialists(models, trained)


def _crisp(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    prepared, every, models = _prepared(fleet, options), list[Trained](), {}
    for domain in fleet.domains:
        weights = prepared.weights[domain.name].tolist()
        model, trained = _dense(fleet, options, prepared.domains.rows, weights, len(fleet.domains))
        models[domain.name] = Loaded(model)
        every.append(trained)
    yield "crisp", Specialists(models, _sum(every))


def _domain_experts(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    rows, every = _prepared(fleet, options).domains.rows, list[Trained]()
    best: dict[str, tuple[float, Loaded]] = {}
    for row in rows:
        model, trained = _dense(fleet, options, [row], None, len(rows))
        made = Loaded(model)
        every.append(trained)
        for domain in fleet.domains:
            loss = _loss(made, _sample(domain), _context(fleet))
            if domain.name not in best or loss < best[domain.name][0]:
                best[domain.name] = loss, made
    yield "domain-experts", Specialists({name: model for name, (_, model) in best.items()}, _sum(every))


def _loss(model: Loaded, documents: Sequence[list[int]], context: int) -> float:
    """Nats per token."""
    cut = windows(all_counted(documents), context, max(1, context // 2))
    score = total(document_scores(model.losses, cut, NoProgress()))
    return score.nll / score.tokens


def _sum(trained: Sequence[Trained]) -> Trained:
    return Trained(sum(item.parameters for item in trained), sum(item.tokens for item in trained))


def _seed(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    yield SEED_ROW, Loaded.of(fleet.seed_model, fleet.device)


def _recipe(
    name: str, source: str, build: Callable[[Fleet, Options], Iterator[tuple[str, Model]]], options: Options
) -> Recipe:
    words = {"start": STARTS if name == "soup" else _DENSE_STARTS}
    recipe = Recipe(name, source, build, {**TRAINING, **options}, words, drawn=True, needs_base=True, asked_only=True)
    return replace(recipe, trains="all", specialises=True)


SEED_ROW = "seed"
"""The recipe that normalises scores of specialists."""
_SOUP: Options = {"start": "experts", "rank": 0, "support": 2, **_CLUSTERS, "fit": 0, **_FINETUNE}
RECIPES = (
    Recipe(SEED_ROW, "the seed model", _seed, uses_text=False, needs_base=True, asked_only=True),
    _recipe("generic", "SoE 3.1: one model on the pooled text", _generic, {**_DENSE_START, **_FINETUNE}),
    _recipe(
        "domain-experts",
        "SoE 3.1; Gross et al. 2017: a model per cluster, the best on the sample is chosen",
        _domain_experts,
        {**_DENSE_START, **_CLUSTERS},
    ),
    _recipe("crisp", "SoE 3.1; Grangier et al. 2024: a model per target", _crisp, {**_DENSE_START, **_CLUSTERS}),
    _recipe("soup", "SoE 2.3 to 2.7", _soup, _SOUP),
)
