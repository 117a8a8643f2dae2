"""`moerge table`"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from moerge.errors import MoergeError
from moerge.files import atomic_file, cache_folder
from moerge.models.sources import checkpoint_folder
from moerge.progress import progress
from moerge.terminal import output

app = typer.Typer()
WITH_VERSION = ("averaging",)
"""What a version is shown beside, if no recipe is named."""
STATISTICS_TOKENS = 20_000
JOINED = ("dume", "moerge")
"""The recipes whose versions experts join, if no recipe is named."""
FIRST = 2
"""Experts of the version that others join: as few as can be merged."""


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as out:
        out.write(text.encode())


@app.callback(invoke_without_command=True)
def table(
    expert: Annotated[
        list[str] | None, typer.Option(help="NAME=DIR, or NAME=HUB/ID, of each domain's dense expert.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILES of each domain: a file, folder or pattern as for `worker run --data`; repeat."),
    ] = None,
    held_out: Annotated[
        list[str] | None, typer.Option(help="NAME=FILES that are scored. Default: a tenth of the documents of --text.")
    ] = None,
    other: Annotated[
        list[str] | None, typer.Option(help="NAME=FILES of each domain's other text, for dume-ood.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="DIR or HUB/ID of the model that all experts were trained from.")
    ] = None,
    preset: Annotated[
        Literal["demo", "standard", "smollm", "paper"] | None,
        typer.Option(help="Experts, texts and base that moerge brings, trained where they aren't yet."),
    ] = None,
    training_seed: Annotated[int, typer.Option(help="Seed of the training of a preset's experts.")] = 1,
    elsewhere: Annotated[
        list[str] | None,
        typer.Option(help="FILES of text of no domain, scored against --base in a column of its own; repeat."),
    ] = None,
    split: Annotated[
        Literal["heldout", "tuning"],
        typer.Option(help="Text that is scored, of which recipes see none: heldout to report, tuning to choose by."),
    ] = "heldout",
    switch: Annotated[
        bool,
        typer.Option("--switch", help="Put half a context of another domain's text before what is scored."),
    ] = False,
    version: Annotated[
        Path | None, typer.Option(help="Folder of a published version, to be scored beside the recipes.")
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="NAME, or NAME:OPTION=NUMBER,… such as dume:k=2,lambda=0.1; repeat. Default: all."),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(help="OPTION=NUMBER,NUMBER,…: measure the recipes that have it with each, such as k=1,2,3."),
    ] = None,
    incremental: Annotated[
        bool,
        typer.Option("--incremental", help="Let experts join one at a time, with the trunk kept and merged anew."),
    ] = False,
    first: Annotated[
        int | None, typer.Option(min=1, help="With --incremental: experts that the first version has. Default: 2.")
    ] = None,
    subsets: Annotated[
        bool,
        typer.Option("--subsets", help="With --incremental: also begin with any others, and let several join at once."),
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How often what is drawn is drawn anew.")] = 1,
    against: Annotated[
        str | None,
        typer.Option(help="Row that the others' averages are compared with. Default: dume."),
    ] = None,
    statistics_tokens: Annotated[
        int | None,
        typer.Option(min=0, help="Of each domain, documents that a seed draws; 0: all. Default: 20000, or a preset's."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=2, help="Tokens that the model sees at once. Default: 256, or a preset's.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens between the starts of two windows. Default: half the context.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens to score per domain, over all documents. Default: 20000, or a preset's."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where models compute: cpu or cuda. Default: cpu, or a preset's.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "Q8_0", "Q4_0"],
        typer.Option(help="Number format of recipes' models, as GGUF rounds with Q; the dense experts' is float32."),
    ] = "float32",
    json_file: Annotated[Path | None, typer.Option(help="Write the figures here too, as JSON.")] = None,
    svg_file: Annotated[
        Path | None, typer.Option("--svg", help="Draw them here; with --sweep or --incremental, as curves.")
    ] = None,
) -> None:
    """Prints the papers' table: how well each way to join experts without training predicts every domain's text.

    Cells are 100 x the perplexity of the domain's own dense expert / the model's.

    Example: moerge table --preset demo --recipe dume --recipe regmean
    """
    from transformers.utils import logging

    from moerge.demo import corpora
    from moerge.recipes import precision
    from moerge.recipes.version_folder import VERSION, published
    from moerge.table import arguments
    from moerge.table.joining import join, plan
    from moerge.table.joining_results import Growth
    from moerge.table.measure import Settings, measure
    from moerge.table.plots import growth_picture, picture
    from moerge.table.presets import PRESETS
    from moerge.table.runs import asked, in_parts, possible, reference, swept
    from moerge.table.table import Run, Table
    from moerge.table.texts import Cut, read_elsewhere

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    console = output()
    if preset is None:
        sources = arguments.sources(expert or (), text=text or (), held_out=held_out or (), other=other or ())
        start = None if base is None else checkpoint_folder(base)
        cut, most, place = Cut(), STATISTICS_TOKENS, "cpu"
        if elsewhere and start is None:
            raise MoergeError("is compared with the base", where="--elsewhere", todo="name it with --base")
    elif expert or text or held_out or other or base or version or elsewhere:
        raise MoergeError("it brings experts, texts and base", where="--preset", todo="leave those options out")
    else:
        own = PRESETS[preset]
        sources, start = own.sources(cache_folder(), training_seed, progress(), device)
        cut, most, place = own.cut, own.statistics_tokens, own.device
        elsewhere = None if switch or incremental else [str(corpora.write_elsewhere(cache_folder() / "texts"))]
    context = context or cut.context
    cut = Cut(context, stride or max(1, context // 2), tokens or cut.tokens)
    if cut.stride >= cut.context:
        raise MoergeError(f"{cut.stride}; the context is {cut.context}", where="--stride", todo="give a smaller one")
    if switch and (stride or elsewhere):
        todo = f"leave --{'stride' if stride else 'elsewhere'} out"
        raise MoergeError("scores the second half of windows of the domains", where="--switch", todo=todo)
    precision.require(dtype)
    settings = Settings(start, seeds, most if statistics_tokens is None else statistics_tokens, device or place, dtype)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    option: str | None = None
    result: Table | Growth
    if incremental:
        if version is not None or sweep is not None or against is not None or elsewhere:
            todo = "leave --version, --sweep, --against and --elsewhere out"
            raise MoergeError("makes versions of its own, of recipes as they are", where="--incremental", todo=todo)
        runs, planned = (
            in_parts(recipe or JOINED, sources, start),
            plan(tuple(sources), first or FIRST, subsets=subsets),
        )
        texts = arguments.texts(sources, cut, split, switch=switch)
        result = join(runs, texts, planned, settings, progress())
    elif first is not None or subsets:
        raise MoergeError("goes with --incremental only", where="--first" if first is not None else "--subsets")
    else:
        if version is not None:
            sources = arguments.in_slot_order(version, sources)
        if recipe or version is not None:
            runs = asked(recipe or WITH_VERSION, sources, start)
        else:
            runs = possible(sources, start, say)
        if sweep is not None:
            option, values = arguments.values(sweep)
            runs = swept(runs, option, values)
        if version is not None:
            runs.append(Run(published(version), {}, VERSION))
        compared = reference(against, runs, tuple(sources))
        texts = arguments.texts(sources, cut, split, switch=switch)
        abroad = read_elsewhere(next(iter(sources.values())).expert, elsewhere, cut, split) if elsewhere else []
        result = replace(measure(runs, texts, settings, progress(), abroad), against=compared)
    for each in result.render(console):
        console.print(each, highlight=False, markup=False)
    if json_file is not None:
        record = {"preset": preset, "training_seed": training_seed if preset else None, "sweep": sweep}
        record["version"] = None if version is None else str(version)
        record |= {
            "split": split,
            "switch": switch,
            **asdict(cut),
            **asdict(settings),
            "base": str(start) if start else None,
        }
        _write(json_file, json.dumps({"settings": record, **result.to_json()}, indent=2) + "\n")
    if svg_file is not None:
        _write(svg_file, picture(result, option) if isinstance(result, Table) else growth_picture(result))
