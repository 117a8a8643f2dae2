"""MoErged models: a body with every expert's MLPs and routers, assembled by `moerge.merging.assemble`."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from moerge.bodies.head_kinds import HEADS
from moerge.bodies.methods.registry import METHODS
from moerge.documents.pool import encoded_pool
from moerge.documents.shards import cut
from moerge.errors import MoergeError
from moerge.merging.assemble import Assembled, KeptParts, are_fittable, assemble, body_of, head_contributions
from moerge.merging.local_lineages import LocalBody
from moerge.merging.recipe import Recipe as Choices
from moerge.merging.settings import VersionSettings
from moerge.models.dense import domain_model, place
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import mlp_layers
from moerge.models.tokens import Tokens, all_counted
from moerge.noise.finisher import NoiseFinisher
from moerge.scoring.perplexity import Losses, Rows, logits, losses_by
from moerge.scoring.routers import randomised
from moerge.statistics.contribution import Computing
from moerge.statistics.finisher import PLAIN
from moerge_lab.recipes.base import (
    SEED,
    Chosen,
    Domain,
    Fleet,
    Model,
    Numbers,
    Options,
    Parts,
    Recipe,
    TextOf,
    nothing_chosen,
    number,
    other_text,
    statistics_text,
    whole,
)
from moerge_lab.recipes.dense import TASK_VECTORS, base_of, body_options, checked
from moerge_lab.recipes.models import Loaded, Oracle, Routed
from moerge_lab.recipes.tuning import choose_scale
from moerge_proto.bodies import BodyMethod, HeadMethod
from moerge_proto.recipes import PAPER, RARE_BELOW, VersionRecipe
from moerge_proto.statistics_file import Privacy, StatisticsSettings

RIDGE: Options = {"k": 1, "lambda": 0.01, "tokens": 0}
"""Experts per token, the ridge regulariser, and counted tokens per document; 0: all (DUME section 3.1)."""
COUNTS: Options = {"rare_below": RARE_BELOW}
"""Smaller token counts are withheld, as in workers; 0: none."""


@dataclass(frozen=True)
class Documents:
    """Documents of token ids as the text of an assembly; a fit takes all of them."""

    documents: Sequence[Tokens]

    @classmethod
    def of(cls, documents: Sequence[list[int]], options: Options) -> "Documents":
        """The first tokens of each document, as many as the option `tokens`; 0: all."""
        most = whole(options, "tokens", 0) if "tokens" in options else 0
        return cls([tokens.first(most or None) for tokens in all_counted(documents)])

    def __iter__(self) -> Iterator[Tokens]:
        return iter(self.documents)

    def sample(self, settings: StatisticsSettings, tokens: int, least_documents: int) -> list[list[Tokens]]:
        return [[document] for document in self.documents]


def settings_of(fleet: Fleet, recipe: VersionRecipe, options: Options) -> VersionSettings:
    base = base_of(recipe.body, fleet)
    privacy = checked(Privacy, {"epsilon": options["epsilon"]}) if options.get("epsilon") else None
    return VersionSettings(
        recipe=recipe,
        body=body_options(recipe.body, fleet, options),
        base=None if base is None else DenseExpert("base", base),
        rare_below=whole(options, "rare_below", 0) if "rare_below" in options else RARE_BELOW,
        computing=Computing(fleet.device, key=b"" if privacy is None else secrets.token_bytes(32)),
        finisher=PLAIN if privacy is None else NoiseFinisher(privacy),
    )


def body_by(fleet: Fleet, method: BodyMethod, options: Options) -> LocalBody:
    """The body by a method; a solved one is of the domains' statistics, and kept for equal inputs."""
    shared, settings = fleet.shared, settings_of(fleet, PAPER.model_copy(update={"body": method}), options)
    experts, texts = experts_of(fleet), _statistics(fleet, options)
    if shared.folder is None or not METHODS[method].solved:
        return body_of(experts, texts, settings, fleet.work)
    key = (method, settings.body.model_dump_json(), fleet.base, options["rare_below"], *_text_key(fleet, options))
    if key not in shared.bodies:
        folder = shared.folder / f"body-{len(shared.bodies)}"
        folder.mkdir()
        shared.bodies[key] = body_of(experts, texts, settings, folder)
    return shared.bodies[key]


def heads_by(fleet: Fleet, method: HeadMethod, options: Options) -> list[Path]:
    """The head contributions that a method needs, of the domains' statistics, and kept for equal inputs."""
    shared, settings = fleet.shared, settings_of(fleet, PAPER.model_copy(update={"head": method}), options)
    experts, texts = experts_of(fleet), _statistics(fleet, options)
    if shared.folder is None or not HEADS[method].solved:
        return head_contributions(experts, texts, settings, fleet.work, experts)
    if (key := _text_key(fleet, options)) not in shared.heads:
        folder = shared.folder / f"heads-{len(shared.heads)}"
        folder.mkdir()
        shared.heads[key] = head_contributions(experts, texts, settings, folder, experts)
    return shared.heads[key]


def _statistics(fleet: Fleet, options: Options) -> list[Documents]:
    return [Documents.of(domain.statistics, options) for domain in fleet.domains]


def _text_key(fleet: Fleet, options: Options) -> tuple[object, ...]:
    """The facts that determine the experts and their statistics."""
    return fleet.seed, options.get("tokens", 0), *(domain.expert for domain in fleet.domains)


def random_routers(fleet: Fleet) -> list[Tensor]:
    """Standard normal routers, [D, H] per layer (DUME section 3.2)."""
    config, generator = DenseFiles(fleet.domains[0].expert).config, torch.Generator().manual_seed(fleet.seed)
    shape = (len(fleet.domains), config.hidden_size)
    return [torch.randn(shape, generator=generator) for _ in mlp_layers(config)]


def body_in(parts: Parts, fleet: Fleet, options: Options) -> LocalBody:
    return body_by(fleet, parts.recipe(options).body, options)


def experts_of(fleet: Fleet) -> list[DenseExpert]:
    """The domains' experts. Files are named d0, d1, …, because users may choose any name."""
    return [DenseExpert(f"d{slot}", domain.expert) for slot, domain in enumerate(fleet.domains)]


def experts_per_token(fleet: Fleet, options: Options) -> int:
    """The option k, by default 1; MoergeError if the published class doesn't allow it."""
    k = whole(options, "k", 1, len(fleet.domains)) if "k" in options else 1
    if why := DenseFiles(fleet.domains[0].expert).family.host.refusal(k):
        raise MoergeError(why, where="option k", todo="give 1")
    return k


def assembled(
    parts: Parts,
    fleet: Fleet,
    options: Options,
    *,
    kept: KeptParts | None = None,
    routers: Sequence[Tensor] | None = None,
) -> Assembled:
    """A version of these choices with k experts per token, by default one.

    Args:
        kept: the body and the first experts, which stay; None: a body of the fleet's experts.
        routers: given ones, [D, H] per layer; None: solved.
    """
    recipe, k = parts.recipe(options), experts_per_token(fleet, options)
    kept = kept or KeptParts(body_in(parts, fleet, options))
    members = len(kept.slots)
    new, texts = experts_of(fleet)[members:], [Documents.of(parts.texts(domain), options) for domain in fleet.domains]
    fit = recipe.fit or (members > 0 and parts.fits_newcomers and are_fittable(new))
    recipe = recipe.model_copy(update={"fit": fit, "solve": recipe.solve.model_copy(update={"top_k": k})})
    heads = heads_by(fleet, recipe.head, options)[members:]
    settings = settings_of(fleet, recipe, options)
    return assemble(new, texts[members:], settings, fleet.work, kept, routers=routers, heads=heads)


def publish(parts: Parts, fleet: Fleet, options: Options, routers: Sequence[Tensor] | None = None) -> Path:
    """The folder of a version of these choices; for `routers` see `assembled`."""
    return assembled(parts, fleet, options, routers=routers).write(fleet.work / "version")


def published_recipe(name: str, source: str, parts: Parts, options: Options) -> Recipe:
    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        fleet = _with_seed(fleet, options)
        experts_per_token(fleet, options)
        chosen = parts.chosen(fleet, options)
        model = Routed.of(publish(parts, fleet, {**options, **chosen}), fleet.device)
        model.chosen = chosen
        yield name, model

    return Recipe(name, source, build, options, parts=parts)


def _with_seed(fleet: Fleet, options: Options) -> Fleet:
    """The fleet; with the option `seed` the seed model is a further expert, of the library's public texts."""
    if SEED not in options or not whole(options, SEED, 0, 1):
        return fleet
    seed, settings = fleet.seed_model, StatisticsSettings()
    rows = [row for text in encoded_pool(DenseFiles(seed).tokenizer) for row in cut(text, settings)]
    return replace(fleet, domains=[*fleet.domains, Domain(SEED, seed, [list(row.ids) for row in rows])])


def _random(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    folder = publish(ridge("average"), fleet, options, random_routers(fleet))
    yield "random", Routed.of(folder, fleet.device)


def oracle(row: str, parts: Parts, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    """Each text's own expert in a version of these choices (DUME section 3.2)."""
    model = Routed.of(publish(parts, fleet, options, random_routers(fleet)), fleet.device).model
    yield row, Oracle(model, [domain.name for domain in fleet.domains])


def scale_of(method: BodyMethod, fleet: Fleet, options: Options) -> Numbers:
    """The scale of the body's task vectors with the least loss of the domains' own MLPs and heads, without routers."""
    experts = {domain.name: DenseFiles(domain.expert) for domain in fleet.domains}

    def build(scale: float) -> Losses:
        body = body_by(fleet, method, {**options, "scale": scale})

        def losses(rows: Rows) -> Tensor:
            model, _ = domain_model(experts[rows.domain], body)
            place(model, fleet.device)
            return losses_by(partial(logits, model))(rows)

        return losses

    return choose_scale(fleet, options, build)


def ridge(
    body: BodyMethod,
    texts: TextOf = statistics_text,
    chosen: Chosen = nothing_chosen,
    head: HeadMethod = PAPER.head,
) -> Parts:
    """DUME's routers under the body of a method, from the domains' texts."""

    def recipe(options: Options) -> VersionRecipe:
        given = {"lambda": number(options, "lambda")} if "lambda" in options else {}
        return checked(Choices, {"recipe": "dume", "body": body, "head": head, **given}).followed

    return Parts(recipe, texts, chosen)


def _on_task_vectors(name: str, method: BodyMethod) -> Recipe:
    parts, options = ridge(method, chosen=partial(scale_of, method)), {**RIDGE, **TASK_VECTORS}
    return replace(published_recipe(name, "DUME under MergeME's body, MergeME 3.1", parts, options), needs_base=True)


VERSION = "version"
"""The name of the recipe of a published version, and of the row with its own routers."""


def version_recipe(folder: Path, slots: Sequence[str]) -> Recipe:
    """A version's folder with experts of the domains `slots`: random routing, the oracle, and the version itself."""

    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        routed = Routed.of(folder, fleet.device)
        with randomised(routed.model, fleet.seed):
            yield "random routing", Loaded(routed.model)
        yield "oracle", Oracle(routed.model, slots)
        yield VERSION, routed

    return Recipe(VERSION, "DUME section 3.2", build, uses_text=False)


_REGMEAN = ridge("regmean", head="regmean")
RECIPES = (
    Recipe("random", "DUME section 3.2", _random, {"k": 1}, uses_text=False, drawn=True),
    Recipe("oracle", "DUME section 3.2", partial(oracle, "oracle", ridge("average")), uses_text=False),
    published_recipe("dume", "DUME section 2.3", ridge("average"), RIDGE),
    replace(published_recipe("dume-ood", "DUME section 3.3", ridge("average", other_text), RIDGE), needs_other=True),
    _on_task_vectors("dume-ties", "ties"),
    replace(_on_task_vectors("dume-dare", "dare"), drawn=True),
    published_recipe("regmean", "regmean body and head, DUME's routers", _REGMEAN, {**RIDGE, **COUNTS}),
    Recipe("regmean-oracle", "the same, DUME section 3.2", partial(oracle, "regmean-oracle", _REGMEAN), COUNTS),
)
