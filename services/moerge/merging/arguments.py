"""The inputs of `moerge merge`, as its recipe names them."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from moerge.bodies.methods.registry import METHODS
from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.merging.kept_statistics import KeptVersion, kept
from moerge.merging.places import prompts_of
from moerge.merging.prompts import Prompts
from moerge.merging.recipe import Recipe
from moerge.merging.settings import AUTO, MergeSettings, Source
from moerge.models.adapters import base_name, is_adapter, quantised_by
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, require_model
from moerge.models.sources import checkpoint_folder, hub_id
from moerge_proto.digests import Name
from moerge_proto.messages import UNKNOWN
from moerge_proto.recipes import VERSION_RECIPES

_APART = {"ridge_lambda", "top_k"}  # options of the solve that are given apart from the recipe


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


def version(recipe: Recipe) -> KeptVersion | None:
    """The version that experts are added to, which no option may contradict; None for a merge."""
    if (recipe.from_ is None) != (not recipe.add):
        where, todo = (
            "`from_`" if recipe.from_ is None else "`add`",
            "give both: experts to add, and the output of a merge",
        )
        raise MoergeError("`add` and `from_` need each other", where=where, todo=todo)
    if recipe.from_ is None:
        return None
    if recipe.expert:
        raise MoergeError("given with `add`", where="`expert`", todo="name new experts with `add` alone")
    result = kept(Path(recipe.from_))
    _require_same(recipe, result)
    return result


def _require_same(given: Recipe, version: KeptVersion) -> None:
    """Requires that no given option contradicts a version."""
    recipe, statistics = version.record.recipe, version.record.statistics
    solve = recipe.solve.model_dump(exclude=_APART)
    names = [name for name, item in VERSION_RECIPES.items() if item.solve.model_dump(exclude=_APART) == solve]
    fixed: dict[str, object] = {
        "recipe": names[0] if names else "another one",
        "body": recipe.body,
        "head": recipe.head,
        **{name: getattr(recipe.solve, name) for name in type(recipe.solve).model_fields},
        "context": statistics.context,
        "precision": statistics.precision,
        "before": recipe.before is not None,
    }
    todo = "leave the option out, or merge all experts anew"
    for name, value in fixed.items():
        if (asked := getattr(given, name)) is not None and asked != value:
            raise MoergeError(f"{version.folder} was made with {value}, not {asked}", where=f"`{name}`", todo=todo)
    base = None if METHODS[recipe.body].is_seed else given.base  # that of a seed's body is for the fit
    if base is not None or given.weights:
        field = "`weights`" if base is None else "`base`"
        raise MoergeError(f"the body of {version.folder} stays", where=field, todo=todo)


def base_model(recipe: Recipe) -> DenseExpert | None:
    """The base model; None without one."""
    if (place := recipe.base) is None:
        return None
    license = recipe.license.get("base", UNKNOWN)
    return DenseExpert("base", checkpoint_folder(place), license=license, hub_id=hub_id(place))


def sources(recipe: Recipe, say: Callable[[str], None], base: DenseExpert | None = None) -> list[Source]:
    """The new experts with their texts or prompts; each domain is known, and has either.

    `base`: takes the place of quantised bases of adapters.
    """
    field, folders = ("expert", recipe.expert) if recipe.from_ is None else ("add", recipe.add)
    texts, prompts, spdx = recipe.text, recipe.prompt, dict(recipe.license)
    if base is not None:
        spdx.pop("base", None)
    _require_names(field, folders)
    for other, values in (("text", texts), ("prompt", prompts), ("held_out", recipe.held_out), ("license", spdx)):
        if unknown := sorted(values.keys() - folders.keys()):
            problem = f"no expert of {', '.join(unknown)}"
            raise MoergeError(problem, where=f"`{other}`", todo=f"give it with `{field}` NAME=DIR")
    if both := sorted(texts.keys() & prompts.keys()):
        todo = "give one of them; texts are better"
        raise MoergeError(f"{', '.join(both)} has texts and prompts", where="`prompt`", todo=todo)
    if missing := sorted(folders.keys() - texts.keys() - prompts.keys()):
        todo = "give it with `text` NAME=FILES, or prompts with `prompt` NAME=PROMPT"
        raise MoergeError(f"no text of {', '.join(missing)}", where="`text`", todo=todo)
    result = []
    for name, place in folders.items():
        folder = _on_base(name, checkpoint_folder(place), base, say)
        expert = DenseExpert(name, folder, license=spdx.get(name, UNKNOWN), hub_id=hub_id(place))
        require_model(expert)  # before its tokenizer
        corpus: Corpus | Prompts
        if name in prompts:
            lines = [line for value in prompts[name] for line in prompts_of(value)]
            corpus = Prompts(lines, recipe.prompt_tokens)
        else:
            corpus = _corpus(f"`text` {name}", texts[name], expert, recipe, say)
        held_out = None
        if (files := recipe.held_out.get(name)) is not None:
            held_out = _corpus(f"`held_out` {name}", files, expert, recipe, say)
        result.append(Source(expert, corpus, held_out))
    return result


def _corpus(where: str, files: Sequence[str], expert: DenseFiles, recipe: Recipe, say: Callable[[str], None]) -> Corpus:
    named, field, chat = ("text_field", "chat"), recipe.text_field, recipe.chat
    return Corpus(files, expert, text_field=field, chat=chat, settings=named, say=say, where=where)


def _on_base(domain: str, folder: Path, base: DenseExpert | None, say: Callable[[str], None]) -> Path:
    """The expert's folder; of an adapter with a quantised base, one with the base model in its place."""
    if base is None or not is_adapter(folder) or not (method := quantised_by(folder)):
        return folder
    quantised = base_name(folder)
    say(f"{domain}: the adapter's base {quantised} is quantised by {method}; merged with {base.folder} instead")
    return checkpoint_folder(f"{base.folder}+{folder}")


def _require_names(field: str, names: Iterable[str]) -> None:
    for name in names:
        try:
            TypeAdapter(Name).validate_python(name)
        except ValidationError as error:
            todo = "use at most 63 of a-z, 0-9, - and _"
            raise MoergeError(f"{name!r} is not a valid domain name", where=f"`{field}`", todo=todo) from error
