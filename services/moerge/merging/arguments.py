"""Parsed options of `moerge merge`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from moerge.bodies.lineage import BodyOptions
from moerge.bodies.methods.registry import METHODS
from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.merging.kept_statistics import KeptVersion, kept
from moerge.merging.places import prompts_of
from moerge.merging.prompts import Prompts
from moerge.merging.settings import AUTO, MergeSettings, Source
from moerge.models.adapters import base_name, is_adapter, quantised_by
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, require_model
from moerge.models.sources import checkpoint_folder, hub_id
from moerge.settings import named_values, single_values, valid
from moerge_proto.bodies import BodyMethod, HeadMethod
from moerge_proto.digests import Name
from moerge_proto.messages import UNKNOWN
from moerge_proto.options import VERSION_RECIPES, RecipeName, SolveOptions, VersionRecipe
from moerge_proto.statistics_file import StatisticsSettings, TextBefore

_APART = {"ridge_lambda", "top_k"}  # options of the solve that are given apart from the recipe


@dataclass(frozen=True)
class Choices:
    """The options that determine a version; None: not given."""

    recipe: RecipeName | None
    body: BodyMethod | None
    head: HeadMethod | None
    base: str | None
    weights: Mapping[str, float]
    ridge_lambda: float | None
    top_k: int | None
    fit: bool | None
    context: int | None
    precision: Literal["float32", "bfloat16"] | None
    before: bool | None = None

    @property
    def followed(self) -> VersionRecipe:
        """The recipe with the given options, besides `fit`."""
        named = VERSION_RECIPES[self.recipe or "recommended"]
        given = {"ridge_lambda": self.ridge_lambda, "top_k": self.top_k}
        solve = named.solve.model_dump() | {name: value for name, value in given.items() if value is not None}
        methods = {"body": self.body or named.body, "head": self.head or named.head}
        chosen = {**methods, "solve": valid(SolveOptions, solve), "before": self._before(named.before)}
        return named.model_copy(update=chosen)

    def _before(self, named: TextBefore | None) -> TextBefore | None:
        """Public text before that of router statistics."""
        if self.before is None:
            return named
        return named or TextBefore() if self.before else None

    @property
    def body_options(self) -> BodyOptions:
        return valid(BodyOptions, {"weights": self.weights})

    @property
    def statistics(self) -> StatisticsSettings:
        given = {"context": self.context, "precision": self.precision}
        return StatisticsSettings.model_validate({name: value for name, value in given.items() if value is not None})

    def require_same(self, version: KeptVersion) -> None:
        """Requires that no given option contradicts a version."""
        recipe, statistics = version.record.recipe, version.record.statistics
        solve = recipe.solve.model_dump(exclude=_APART)
        names = [name for name, item in VERSION_RECIPES.items() if item.solve.model_dump(exclude=_APART) == solve]
        pairs: dict[str, tuple[object, object]] = {
            "`recipe`": (self.recipe, names[0] if names else "another one"),
            "`body`": (self.body, recipe.body),
            "`head`": (self.head, recipe.head),
            "`ridge_lambda`": (self.ridge_lambda, recipe.solve.ridge_lambda),
            "`top_k`": (self.top_k, recipe.solve.top_k),
            "`context`": (self.context, statistics.context),
            "`precision`": (self.precision, statistics.precision),
            "`before`": (self.before, recipe.before is not None),
        }
        todo = "leave the option out, or merge all experts anew"
        for field, (given, fixed) in pairs.items():
            if given is not None and given != fixed:
                raise MoergeError(f"{version.folder} was made with {fixed}, not {given}", where=field, todo=todo)
        base = None if METHODS[recipe.body].is_seed else self.base  # that of a seed's body is for the fit
        if base is not None or self.weights:
            field = "`weights`" if base is None else "`base`"
            raise MoergeError(f"the body of {version.folder} stays", where=field, todo=todo)


@dataclass(frozen=True)
class Texts:
    text: Sequence[str]
    prompt: Sequence[str]
    prompt_tokens: int
    text_field: str
    chat: str | None
    say: Callable[[str], None]
    held_out: Sequence[str] = ()

    def corpus(self, where: str, files: Sequence[str], expert: DenseFiles) -> Corpus:
        settings = ("text_field", "chat")
        field, chat = self.text_field, self.chat
        return Corpus(files, expert, text_field=field, chat=chat, settings=settings, say=self.say, where=where)

    @property
    def files(self) -> dict[str, list[str]]:
        return named_values("text", self.text)

    @property
    def prompts(self) -> dict[str, Prompts]:
        given = named_values("prompt", self.prompt).items()
        lines = {name: [line for value in values for line in prompts_of(value)] for name, values in given}
        return {name: Prompts(prompts, self.prompt_tokens) for name, prompts in lines.items()}


def determined(settings: MergeSettings) -> dict[str, object]:
    """The values of options that determine a version, by field, as a merge with these settings has them."""
    recipe, statistics = settings.recipe, settings.statistics
    some = recipe.fit and settings.unfitted  # by their comparison with the base, which is made again
    return {
        **{name: getattr(recipe, name) for name in ("body", "head")},
        "fit": None if some else recipe.fit,
        **{name: getattr(recipe.solve, name) for name in sorted(_APART)},
        **{name: getattr(statistics, name) for name in ("context", "precision")},
        "chat_template": settings.chat_template or AUTO,
        "before": recipe.before is not None,
    }


def version(folder: Path | None, add: Sequence[str], experts: Sequence[str], chosen: Choices) -> KeptVersion | None:
    """The version that experts are added to, which no option may contradict; None for a merge."""
    if (folder is None) != (not add):
        where, todo = "`from_`" if folder is None else "`add`", "give both: experts to add, and the output of a merge"
        raise MoergeError("`add` and `from_` need each other", where=where, todo=todo)
    if folder is None:
        return None
    if experts:
        raise MoergeError("given with `add`", where="`expert`", todo="name new experts with `add` alone")
    result = kept(folder)
    chosen.require_same(result)
    return result


def base_model(place: str | None, spdx: dict[str, str]) -> DenseExpert | None:
    """The base model of that folder or hub id, which takes its licence out of `spdx`; None without one."""
    if place is None:
        return None
    license = spdx.pop("base", UNKNOWN)
    return DenseExpert("base", checkpoint_folder(place), license=license, hub_id=hub_id(place))


def licenses(values: Sequence[str]) -> dict[str, str]:
    """Name -> licence."""
    return _one_each("license", values)


def sources(
    field: str, experts: Sequence[str], texts: Texts, spdx: Mapping[str, str], base: DenseExpert | None = None
) -> list[Source]:
    """The experts of a field with their texts or prompts; each domain is known, and has either.

    `spdx`: licences. `base`: takes the place of quantised bases of adapters.
    """
    folders, files, prompts = _one_each(field, experts), texts.files, texts.prompts
    apart = named_values("held_out", texts.held_out)
    for other, values in (("`text`", files), ("`prompt`", prompts), ("`held_out`", apart), ("`license`", spdx)):
        if unknown := sorted(values.keys() - folders.keys()):
            problem = f"no expert of {', '.join(unknown)}"
            raise MoergeError(problem, where=other, todo=f"give it with `{field}` NAME=DIR")
    if both := sorted(files.keys() & prompts.keys()):
        todo = "give one of them; texts are better"
        raise MoergeError(f"{', '.join(both)} has texts and prompts", where="`prompt`", todo=todo)
    if missing := sorted(folders.keys() - files.keys() - prompts.keys()):
        todo = "give it with `text` NAME=FILES, or prompts with `prompt` NAME=PROMPT"
        raise MoergeError(f"no text of {', '.join(missing)}", where="`text`", todo=todo)
    result = []
    for name, place in folders.items():
        folder = _on_base(name, checkpoint_folder(place), base, texts.say)
        expert = DenseExpert(name, folder, license=spdx.get(name, UNKNOWN), hub_id=hub_id(place))
        require_model(expert)  # before its tokenizer
        corpus = prompts[name] if name in prompts else texts.corpus(f"`text` {name}", files[name], expert)
        held_out = texts.corpus(f"`held_out` {name}", apart[name], expert) if name in apart else None
        result.append(Source(expert, corpus, held_out))
    return result


def _on_base(domain: str, folder: Path, base: DenseExpert | None, say: Callable[[str], None]) -> Path:
    """The expert's folder; of an adapter with a quantised base, one with the base model in its place."""
    if base is None or not is_adapter(folder) or not (method := quantised_by(folder)):
        return folder
    quantised = base_name(folder)
    say(f"{domain}: the adapter's base {quantised} is quantised by {method}; merged with {base.folder} instead")
    return checkpoint_folder(f"{base.folder}+{folder}")


def _one_each(field: str, values: Sequence[str]) -> dict[str, str]:
    pairs = single_values(field, values)
    for name in pairs:
        try:
            TypeAdapter(Name).validate_python(name)
        except ValidationError as error:
            todo = "use at most 63 of a-z, 0-9, - and _"
            raise MoergeError(f"{name!r} is not a valid domain name", where=f"`{field}`", todo=todo) from error
    return pairs
