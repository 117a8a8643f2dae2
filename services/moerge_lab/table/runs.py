"""The choice of a table's recipes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.models.config import read_config, require_same_config
from moerge_lab.recipes.base import SEED, Options, Recipe, word
from moerge_lab.recipes.dense import EXPERTS, expert_row, takes_base
from moerge_lab.recipes.registry import RECIPES, label_of, parse
from moerge_lab.recipes.soups import SEED_ROW
from moerge_lab.table.joining import FIRST
from moerge_lab.table.table import Run
from moerge_lab.table.texts import Sources


def lacks(recipe: Recipe, options: Options, sources: Mapping[str, Sources], base: Path | None) -> str | None:
    """A required option of a recipe that is missing, or None."""
    by_body = "body" in options and takes_base(word(options, "body"))
    if (recipe.needs_base or options.get(SEED) or by_body) and base is None:
        return "`base`"
    if recipe.needs_other:
        return None if all(source.other for source in sources.values()) else "`preset`"
    if recipe.uses_text and not all(source.text for source in sources.values()):
        return "`text`"
    return None


def differing(sources: Mapping[str, Sources]) -> str | None:
    """How an expert's architecture differs from the first one's; None if all are the same."""
    folders = {source.expert: name for name, source in sources.items()}
    if len(folders) < 2:
        return None
    first, *others = [(read_config(folder), name) for folder, name in folders.items()]
    try:
        for config, name in others:
            require_same_config(first[0], config, name, "pad")
    except IncompatibleExpertError as error:
        return error.what
    return None


def with_experts(specs: Sequence[str], sources: Mapping[str, Sources], base: Path | None) -> list[Run]:
    """The experts, which normalise all scores, and the named recipes."""
    runs = _named((EXPERTS, *specs), sources, base)
    for run in runs:
        if run.recipe.specialises:
            what = "makes a model for each scored text, which other recipes don't know"
            raise MoergeError(what, where=f"`recipe` {run.label}", todo="use it in `moerge table soups`")
    return runs


def specialised(specs: Sequence[str], sources: Mapping[str, Sources], base: Path | None) -> list[Run]:
    """The seed model, which normalises scores of specialists, and the named recipes; by default all for specialists."""
    if not all(source.other for source in sources.values()):
        raise MoergeError("no text to specialise on is given", where="`other`", todo="give NAME=FILES of every domain")
    every = ("averaging", *(recipe.name for recipe in RECIPES.values() if recipe.specialises))
    return _named((SEED_ROW, *(specs or every)), sources, base)


def joinable(specs: Sequence[str], sources: Mapping[str, Sources], base: Path | None) -> list[Run]:
    """The named recipes, whose versions experts can join."""
    if len(sources) <= FIRST:
        what = f"{FIRST} of {len(sources)} experts leave none to join"
        raise MoergeError(what, where="`expert`", todo="name more")
    runs = _named(specs, sources, base)
    for run in runs:
        if run.recipe.parts is None:
            known = ", ".join(recipe.name for recipe in RECIPES.values() if recipe.parts is not None)
            what = "makes no version with a body and solved routers"
            raise MoergeError(what, where=f"`recipe` {run.label}", todo=f"use one of: {known}")
        if run.options.get(SEED):
            what = "has the seed as the last expert"
            raise MoergeError(what, where=f"`recipe` {run.label}", todo="leave the seed out, or name it with `expert`")
    return runs


def _named(specs: Sequence[str], sources: Mapping[str, Sources], base: Path | None) -> list[Run]:
    """The named recipes.

    Raises:
        MoergeError: there is no such recipe or option, or its options or architectures are missing or unsuitable.
    """
    runs = {run.label: run for run in (Run(*parse(spec)) for spec in specs)}
    for run in runs.values():
        if lacking := lacks(run.recipe, run.options, sources, base):
            todo = "give it, or leave that recipe out"
            raise MoergeError(f"needs {lacking}", where=f"`recipe` {run.label}", todo=todo)
    others = [run.label for run in runs.values() if not run.recipe.any_architecture]
    if others and (difference := differing(sources)):
        able = ", ".join(recipe.name for recipe in RECIPES.values() if recipe.any_architecture)
        what = f"needs experts of one architecture, but {difference}"
        raise MoergeError(what, where=f"`recipe` {others[0]}", todo=f"use only these recipes: {able}")
    return list(runs.values())


def possible(sources: Mapping[str, Sources], base: Path | None, say: Callable[[str], None]) -> list[Run]:
    """Every recipe whose required options are given; reports the others."""
    runs: list[Run] = []
    left: dict[str, list[str]] = {}
    difference = differing(sources)
    for recipe in RECIPES.values():
        if lacking := lacks(recipe, recipe.options, sources, base):
            left.setdefault(f"without {lacking}", []).append(recipe.name)
        elif difference and not recipe.any_architecture:
            left.setdefault(f"because {difference}", []).append(recipe.name)
        elif not recipe.asked_only:
            runs.append(Run(*parse(recipe.name)))
    for why, names in left.items():
        say(f"Left out {why}: {', '.join(names)}")
    return runs


def reference(name: str | None, runs: Sequence[Run], domains: Sequence[str], default: str = "dume") -> str | None:
    """The row to compare others with: the requested one, or the default if it is measured."""
    rows = [*map(expert_row, domains), *(run.label for run in runs if run.recipe.name != EXPERTS)]
    if name is not None and name not in rows:
        raise MoergeError(f"no row {name!r}", where="`against`", todo=f"name one of: {', '.join(rows)}")
    return name or next((row for row in rows if row == default), None)


def swept(runs: Sequence[Run], sweep: str) -> tuple[str, list[Run]]:
    """The option of a sweep OPTION=NUMBER,…; and the experts, and each recipe with the option at each value."""
    option, _, listed = sweep.partition("=")
    try:
        values = [float(value) for value in listed.split(",")]
    except ValueError as error:
        raise MoergeError(f"expected OPTION=NUMBER,NUMBER,…, found {sweep!r}", where="`sweep`") from error
    having = [run for run in runs if option in run.options]
    if not having:
        known = ", ".join(sorted({name for run in runs for name in run.options})) or "none"
        raise MoergeError(f"no recipe has the option {option!r}", where="`sweep`", todo=f"use one of: {known}")
    experts = [run for run in runs if run.recipe.name == EXPERTS]
    changed = [(run.recipe, {**run.options, option: value}) for run in having for value in values]
    return option, [*experts, *(Run(recipe, options, label_of(recipe, options)) for recipe, options in changed)]
