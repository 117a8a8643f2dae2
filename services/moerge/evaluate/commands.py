"""`moerge table`"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from transformers.utils import logging

from moerge.checkpoint.sources import checkpoint_folder
from moerge.errors import MoergeError
from moerge.evaluate.measure import Settings, measure
from moerge.evaluate.table import Run
from moerge.evaluate.texts import Cut, Sources, read_texts
from moerge.files import atomic_file
from moerge.progress import progress
from moerge.recipes.base import Recipe
from moerge.recipes.dense import EXPERTS
from moerge.recipes.published import published
from moerge.recipes.registry import RECIPES, parse
from moerge_proto.versions import Lineage

app = typer.Typer()
WITH_VERSION = (EXPERTS, "averaging")
"""What a version is shown beside, if no recipe is named."""


def _pairs(option: str, values: Sequence[str] | None) -> dict[str, list[str]]:
    """NAME=PLACE, of which a name may have several."""
    pairs: dict[str, list[str]] = {}
    for value in values or ():
        name, _, place = value.partition("=")
        if not place:
            raise MoergeError(f"expected NAME=PATH, found {value!r}", where=option)
        pairs.setdefault(name, []).append(place)
    return pairs


def _sources(
    expert: Sequence[str], text: Sequence[str] | None, held_out: Sequence[str] | None, other: Sequence[str] | None
) -> dict[str, Sources]:
    experts = _pairs("--expert", expert)
    places = {"--text": _pairs("--text", text), "--held-out": _pairs("--held-out", held_out)}
    places["--other"] = _pairs("--other", other)
    for name, folders in experts.items():
        if len(folders) > 1:
            raise MoergeError(f"two experts of {name!r}", where="--expert", todo="give each domain one")
    for option, found in places.items():
        wrong = experts.keys() ^ found.keys() if found and option != "--other" else found.keys() - experts.keys()
        if wrong:
            names = f"{', '.join(experts)} by --expert, {', '.join(found)} here"
            raise MoergeError(f"names differ: {names}", where=option, todo="name the same domains")
    if not places["--text"] and not places["--held-out"]:
        raise MoergeError("no text", where="--text", todo="name each domain's text: --text NAME=FILES")
    return {
        name: Sources(checkpoint_folder(folder), *(found.get(name, []) for found in places.values()))
        for name, [folder] in experts.items()
    }


def _in_slot_order(version: Path, sources: Mapping[str, Sources]) -> dict[str, Sources]:
    """The domains as the version's slots have them, whatever the order of the options."""
    path = version / "moerge.json"
    if not path.is_file():
        raise MoergeError("not found", where=str(path), todo="name the folder of a version that moerge published")
    domains = Lineage.model_validate_json(path.read_text(encoding="utf-8")).domains
    if set(domains) != sources.keys():
        raise MoergeError(f"expected {', '.join(domains)}, found {', '.join(sources)}", where="--expert")
    return {domain: sources[domain] for domain in domains}


def _lacks(recipe: Recipe, sources: Mapping[str, Sources], base: Path | None) -> str | None:
    """The option without which a recipe can't be built, if it is not given."""
    if recipe.needs_base and base is None:
        return "--base DIR"
    if recipe.uses_text and not recipe.needs_other and not all(each.text for each in sources.values()):
        return "--text NAME=FILES"
    if recipe.needs_other and not all(each.other for each in sources.values()):
        return "--other NAME=FILES"
    return None


def _asked(specs: Sequence[str], sources: Mapping[str, Sources], base: Path | None) -> list[Run]:
    """The named recipes, and before them the experts, by which all are normalised.

    Raises:
        MoergeError: one can't be built from what is given.
    """
    runs = [Run(*parse(spec)) for spec in dict.fromkeys((EXPERTS, *specs))]
    for run in runs:
        if lacking := _lacks(run.recipe, sources, base):
            raise MoergeError(
                f"needs {lacking}", where=f"--recipe {run.label}", todo="give it, or leave that recipe out"
            )
    return runs


def _possible(sources: Mapping[str, Sources], base: Path | None, console: Console) -> list[Run]:
    """Every recipe that can be built from what is given; says which can't."""
    runs: list[Run] = []
    left: dict[str, list[str]] = {}
    for recipe in RECIPES.values():
        if recipe.asked_only:
            continue
        if lacking := _lacks(recipe, sources, base):
            left.setdefault(lacking, []).append(recipe.name)
        else:
            runs.append(Run(*parse(recipe.name)))
    for lacking, names in left.items():
        console.print(f"Without {lacking}, left out: {', '.join(names)}", highlight=False, markup=False)
    return runs


@app.callback(invoke_without_command=True)
def table(
    expert: Annotated[list[str], typer.Option(help="NAME=DIR, or NAME=HUB/ID, of each domain's dense expert.")],
    text: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILES of each domain: a file, folder or pattern as for `worker run --data`; repeat."),
    ] = None,
    held_out: Annotated[
        list[str] | None, typer.Option(help="NAME=FILES that are scored. Default: a tenth of the documents of --text.")
    ] = None,
    other: Annotated[
        list[str] | None, typer.Option(help="NAME=FILES of the domain's further text, for dume-ood.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="DIR or HUB/ID of the model that all experts were trained from.")
    ] = None,
    version: Annotated[
        Path | None, typer.Option(help="Folder of a published version, to be scored beside the recipes.")
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="NAME or NAME:OPTION=NUMBER,… such as dume:k=2,lambda=0.1; repeat. Default: all."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often what is drawn is drawn anew.")] = 1,
    statistics_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of statistics per domain, whole documents that a seed draws; 0: all.")
    ] = 20_000,
    context: Annotated[int, typer.Option(min=2, help="Tokens that the model sees at once.")] = 256,
    stride: Annotated[int, typer.Option(min=1, help="Tokens between the starts of two windows.")] = 128,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to score per domain, at most.")] = 20_000,
    device: Annotated[str, typer.Option(help="Where models compute: cpu, cuda.")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here too.")] = None,
) -> None:
    """Prints the papers' table: how well every recipe without training predicts each domain's held-out text.

    Cells are 100 x the perplexity of the domain's own dense expert / the model's.

    Example: moerge table --expert code=code/ --text code='code/*.jsonl' --expert law=law/ --text law='law/*.jsonl'
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    console = Console()
    sources = _sources(expert, text, held_out, other)
    start = None if base is None else checkpoint_folder(base)
    if version is not None:
        sources = _in_slot_order(version, sources)
        runs = [*_asked(recipe or WITH_VERSION, sources, start), Run(published(version), {}, "version")]
    else:
        runs = _asked(recipe, sources, start) if recipe else _possible(sources, start, console)
    if stride >= context:
        raise MoergeError(f"{stride}; the context is {context}", where="--stride", todo="give a smaller one")
    cut = Cut(context, stride, tokens)
    domains = {name: read_texts(name, each, cut) for name, each in sources.items()}
    result = measure(runs, domains, Settings(start, seeds, statistics_tokens, device), progress())
    for each in result.render():
        console.print(each)
    if json_file is not None:
        settings = {"context": context, "stride": stride, "tokens": tokens, "statistics_tokens": statistics_tokens}
        with atomic_file(json_file) as out:
            out.write((json.dumps({"settings": settings, **result.to_json()}, indent=2) + "\n").encode())
