"""`moerge table`"""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.progress import progress
from moerge.terminal import output
from moerge_lab.table import options
from moerge_lab.table.options import Given

if TYPE_CHECKING:
    from moerge_lab.table.inputs import Inputs
    from moerge_lab.table.joining import Growth
    from moerge_lab.table.table import Table

app = typer.Typer(subcommand_metavar="[COMMAND]")


@app.callback(invoke_without_command=True)
def table(
    ctx: typer.Context,
    expert: options.Experts = None,
    text: options.Text = None,
    held_out: options.HeldOut = None,
    base: options.Base = None,
    preset: options.PresetName = None,
    recipe: options.Recipes = None,
    sweep: Annotated[
        str | None,
        typer.Option(help="OPTION=NUMBER,NUMBER,…: measure recipes with this option at each value, such as k=1,2,3."),
    ] = None,
    against: Annotated[str | None, typer.Option(help="Row to compare others' averages with. Default: dume.")] = None,
    split: Annotated[
        Literal["heldout", "tuning"],
        typer.Option(help="Text to score, hidden from recipes: heldout for reports, tuning for choices."),
    ] = "heldout",
    switch: Annotated[
        bool, typer.Option("--switch", help="Score each text after half a context of another domain's text.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds for random choices.")] = 1,
    statistics_tokens: options.StatisticsTokens = None,
    context: options.Context = None,
    tokens: options.Tokens = None,
    device: options.Device = None,
    json_file: options.JsonFile = None,
    svg_file: options.SvgFile = None,
) -> None:
    """Print the papers' table: the score of each recipe on every domain's text.

    Cells are 100 x the perplexity of the domain's own dense expert / the model's. Default: all untrained recipes.

    Example: moerge table --preset small --recipe dume --recipe regmean
    """
    if ctx.invoked_subcommand is not None:
        return _refuse_options(ctx)
    from moerge_lab.table.plots import picture
    from moerge_lab.table.runs import possible, swept, with_experts

    inputs = _inputs(ctx)
    start = inputs.settings.base
    runs = with_experts(recipe, inputs.sources, start) if recipe else possible(inputs.sources, start, _say)
    option, runs = (None, runs) if sweep is None else swept(runs, sweep)
    result = inputs.table(runs, against, split, switch=switch)
    _show(result, {"sweep": sweep, "split": split, "switch": switch, **inputs.to_json()}, json_file)
    if svg_file is not None:
        _write(svg_file, picture(result, option))


@app.command()
def version(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a published version.")],
    expert: options.Experts = None,
    text: options.Text = None,
    held_out: options.HeldOut = None,
    base: options.Base = None,
    recipe: options.Recipes = None,
    statistics_tokens: options.StatisticsTokens = None,
    context: options.Context = None,
    tokens: options.Tokens = None,
    device: options.Device = None,
    json_file: options.JsonFile = None,
) -> None:
    """Score a published version, and its share of tokens per expert.

    Rows beside it: the domains' dense experts, and by --recipe others; default averaging.

    Example: moerge table version v1/ --expert code=code/ --held-out code=code.jsonl --expert law=law/
    --held-out law=law.jsonl
    """
    from moerge_lab.recipes.published import VERSION, version_recipe
    from moerge_lab.table.inputs import slots_of
    from moerge_lab.table.runs import with_experts
    from moerge_lab.table.table import Run

    slots = slots_of(folder)
    inputs = _inputs(ctx).in_slot_order(slots)
    runs = with_experts(recipe or ["averaging"], inputs.sources, inputs.settings.base)
    result = inputs.table([*runs, Run(version_recipe(folder, slots), {}, VERSION)])
    _show(result, {"version": str(folder), "slots": slots, **inputs.to_json()}, json_file)


@app.command()
def joined(
    ctx: typer.Context,
    expert: options.Experts = None,
    text: options.Text = None,
    held_out: options.HeldOut = None,
    base: options.Base = None,
    preset: options.PresetName = None,
    recipe: options.Recipes = None,
    statistics_tokens: options.StatisticsTokens = None,
    context: options.Context = None,
    tokens: options.Tokens = None,
    device: options.Device = None,
    json_file: options.JsonFile = None,
) -> None:
    """Add experts one at a time, in the order of --expert, with the body kept and remerged.

    The first version has two experts. Recipes: those with a body and solved routers; default dume and recommended.

    Example: moerge table joined --preset small
    """
    from moerge_lab.table.joining import join
    from moerge_lab.table.runs import joinable

    inputs = _inputs(ctx)
    runs = joinable(recipe or ["dume", "recommended"], inputs.sources, inputs.settings.base)
    _show(join(runs, inputs.texts(), inputs.settings, progress()), inputs.to_json(), json_file)


@app.command()
def soups(
    ctx: typer.Context,
    expert: options.Experts = None,
    text: options.Text = None,
    other: options.Other = None,
    base: options.Base = None,
    preset: options.PresetName = None,
    recipe: options.Recipes = None,
    statistics_tokens: options.StatisticsTokens = None,
    context: options.Context = None,
    tokens: options.Tokens = None,
    device: options.Device = None,
    json_file: options.JsonFile = None,
    svg_file: options.SvgFile = None,
) -> None:
    """Score dense models made for the texts of --other: Soup-of-Experts and its baselines.

    Cells are 100 x the seed model's perplexity / the model's. Default: all recipes for specialists.

    Example: moerge table soups --preset small --tokens 10000
    """
    from moerge_lab.table.measure import measure
    from moerge_lab.table.plots import picture
    from moerge_lab.table.runs import reference, specialised
    from moerge_lab.table.table import SPECIALISTS
    from moerge_lab.table.texts import read_targets

    inputs = _inputs(ctx)
    runs = specialised(recipe or (), inputs.sources, inputs.settings.base)
    targets, generic = read_targets(inputs.sources, inputs.cut, "heldout")
    measured = measure(runs, targets, inputs.settings, progress(), generic)
    result = replace(measured, against=reference(None, runs, (), "generic"), frame=SPECIALISTS)
    _show(result, inputs.to_json(), json_file)
    if svg_file is not None:
        _write(svg_file, picture(result))


def _refuse_options(ctx: typer.Context) -> None:
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            todo = f"write it behind `moerge table {ctx.invoked_subcommand}`, if that has it"
            raise MoergeError("has no effect here", where=parameter.opts[0], todo=todo)


def _inputs(ctx: typer.Context) -> "Inputs":
    from transformers.utils import logging

    from moerge_lab.table.inputs import read

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return read(Given(**{item.name: ctx.params[item.name] for item in fields(Given) if item.name in ctx.params}))


def _say(line: str) -> None:
    output().print(line, highlight=False, markup=False)


def _show(result: "Table | Growth", settings: Mapping[str, object], json_file: Path | None) -> None:
    console = output()
    for part in result.render(console):
        console.print(part, highlight=False, markup=False)
    if json_file is not None:
        _write(json_file, json.dumps({"settings": settings, **result.to_json()}, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as out:
        out.write(text.encode())
