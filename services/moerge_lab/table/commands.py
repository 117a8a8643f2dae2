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

app = typer.Typer(subcommand_metavar="")
WITH_VERSION = ("averaging",)
"""Default recipes beside a version."""
STATISTICS_TOKENS = 20_000
TRAINED = (
    "random",
    "averaging",
    "dume",
    "oracle",
    "moerge",
    "dume-plus-gate",
    "btx-gate",
    "btx-router",
    "btx",
    "btx:start=moerge",
    "seed-continued",
    "bam",
    "bam-adapters",
    "bts",
)
"""Default recipes of --trained."""
TRAINED_SEEDS = 3
SOUPS = (
    "averaging",
    "generic",
    "generic:start=average",
    "domain-experts",
    "crisp",
    "soup:start=seed",
    "soup",
    "soup:fit=1",
    "soup:rank=8",
    "generic:finetune=20000",
    "soup:finetune=20000",
)
"""Default recipes of --soups."""
GENERIC = "generic"
"""Row that --soups compares others with."""
JOINED = ("dume", "moerge")
"""Default recipes of --incremental."""
FIRST = 2
"""Default number of experts in the first version: the fewest that can be merged."""


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as out:
        out.write(text.encode())


@app.callback(invoke_without_command=True)
def table(
    expert: Annotated[
        list[str] | None, typer.Option(help="NAME=DIR, or NAME=HUB/ID, of each domain's dense expert or PEFT adapter.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILES of each domain: a file, folder or pattern as in `worker run --data`; repeat."),
    ] = None,
    held_out: Annotated[
        list[str] | None, typer.Option(help="NAME=FILES to score. Default: a tenth of the documents of --text.")
    ] = None,
    other: Annotated[
        list[str] | None, typer.Option(help="NAME=FILES of each domain's other text, for dume-ood.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="DIR or HUB/ID of the experts' seed model.")] = None,
    preset: Annotated[
        Literal["demo", "standard", "smollm", "paper"] | None,
        typer.Option(help="Ready-made experts, texts and base; missing experts are trained."),
    ] = None,
    training_seed: Annotated[int, typer.Option(help="Seed for training a preset's experts.")] = 1,
    elsewhere: Annotated[
        list[str] | None,
        typer.Option(help="FILES of text of no domain, scored against --base in a separate column; repeat."),
    ] = None,
    split: Annotated[
        Literal["heldout", "tuning"],
        typer.Option(help="Text to score, hidden from recipes: heldout for reports, tuning for choices."),
    ] = "heldout",
    switch: Annotated[
        bool,
        typer.Option("--switch", help="Put half a context of another domain's text before the scored text."),
    ] = False,
    version: Annotated[
        Path | None, typer.Option(help="Folder of a published version, to score beside the recipes.")
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="NAME, or NAME:OPTION=VALUE,… such as dume:k=2,lambda=0.1; repeat. Default: all."),
    ] = None,
    trained: Annotated[
        bool,
        typer.Option("--trained", help="Recipes that train on all domains' pooled text, beside untrained ones."),
    ] = False,
    soups: Annotated[
        bool,
        typer.Option("--soups", help="Dense models for the texts of --other: Soup-of-Experts and its baselines."),
    ] = False,
    sweep: Annotated[
        str | None,
        typer.Option(help="OPTION=NUMBER,NUMBER,…: measure recipes with this option at each value, such as k=1,2,3."),
    ] = None,
    incremental: Annotated[
        bool,
        typer.Option("--incremental", help="Add experts one at a time, with the trunk kept and remerged."),
    ] = False,
    first: Annotated[
        int | None, typer.Option(min=1, help="With --incremental: experts in the first version. Default: 2.")
    ] = None,
    subsets: Annotated[
        bool,
        typer.Option("--subsets", help="With --incremental: also start from other experts, and add several at once."),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds for random choices. Default: 1; with --trained 3.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Row to compare the others' averages with. Default: dume; with --soups generic."),
    ] = None,
    statistics_tokens: Annotated[
        int | None,
        typer.Option(min=0, help="Statistics tokens per domain, drawn by seed; 0: all. Default: 20000, or a preset's."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=2, help="Context of the models, in tokens. Default: 256, or a preset's.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens between the starts of two windows. Default: half the context.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens to score per domain, over all documents. Default: 20000, or a preset's."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device of the models: cpu or cuda. Default: cpu, or a preset's.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "Q8_0", "Q4_0"],
        typer.Option(help="Number format of recipes' models; Q rounds as GGUF. Dense experts use float32."),
    ] = "float32",
    json_file: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
    svg_file: Annotated[
        Path | None, typer.Option("--svg", help="File for the figures as SVG; --sweep and --incremental give curves.")
    ] = None,
) -> None:
    """Print the papers' table: the score of each recipe on every domain's text.

    Cells are 100 x the perplexity of the domain's own dense expert, with --soups of the seed model / the model's.

    Example: moerge table --preset demo --recipe dume --recipe regmean
    """
    from transformers.utils import logging

    from moerge_lab.demo import corpora
    from moerge_lab.recipes import precision
    from moerge_lab.recipes.version_folder import VERSION, published
    from moerge_lab.table import arguments
    from moerge_lab.table.frame import SPECIALISTS
    from moerge_lab.table.joining import join, plan
    from moerge_lab.table.joining_results import Growth
    from moerge_lab.table.measure import Settings, measure
    from moerge_lab.table.plots import growth_picture, picture
    from moerge_lab.table.presets import PRESETS
    from moerge_lab.table.runs import asked, in_parts, possible, reference, specialised, swept
    from moerge_lab.table.table import Run, Table
    from moerge_lab.table.texts import Cut, read_elsewhere, read_targets

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    console = output()
    if preset is None:
        sources = arguments.sources(expert or (), text=text or (), held_out=held_out or (), other=other or ())
        start = None if base is None else checkpoint_folder(base)
        cut, most, place = Cut(), STATISTICS_TOKENS, "cpu"
        if elsewhere and start is None:
            raise MoergeError("needs the base model", where="--elsewhere", todo="name it with --base")
    elif expert or text or held_out or other or base or version or elsewhere:
        raise MoergeError("a preset has its own experts, texts and base", where="--preset", todo="omit those options")
    else:
        own = PRESETS[preset]
        sources, start = own.sources(cache_folder(), training_seed, progress(), device)
        cut, most, place = own.cut, own.statistics_tokens, own.device
        elsewhere = None if switch or incremental or soups else [str(corpora.write_elsewhere(cache_folder() / "texts"))]
    context = context or cut.context
    cut = Cut(context, stride or max(1, context // 2), tokens or cut.tokens)
    if cut.stride >= cut.context:
        found = f"expected less than the context, {cut.context}, found {cut.stride}"
        raise MoergeError(found, where="--stride", todo="give a smaller one")
    if switch and (stride or elsewhere):
        todo = f"leave --{'stride' if stride else 'elsewhere'} out"
        raise MoergeError("scores the second half of the domains' windows", where="--switch", todo=todo)
    precision.require(dtype)
    runs_each = seeds or (TRAINED_SEEDS if trained else 1)
    settings = Settings(
        start, runs_each, most if statistics_tokens is None else statistics_tokens, device or place, dtype
    )

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    option: str | None = None
    result: Table | Growth
    if incremental:
        if version is not None or sweep is not None or against is not None or elsewhere or trained:
            todo = "leave --version, --sweep, --against, --elsewhere and --trained out"
            raise MoergeError("can't be combined with these options", where="--incremental", todo=todo)
        runs, planned = (
            in_parts(recipe or JOINED, sources, start),
            plan(tuple(sources), first or FIRST, subsets=subsets),
        )
        texts = arguments.texts(sources, cut, split, switch=switch)
        result = join(runs, texts, planned, settings, progress())
    elif first is not None or subsets:
        raise MoergeError("needs --incremental", where="--first" if first is not None else "--subsets")
    elif soups:
        if version is not None or elsewhere or trained or switch:
            todo = "leave --version, --elsewhere, --trained and --switch out"
            raise MoergeError("can't be combined with these options", where="--soups", todo=todo)
        runs = specialised(recipe or SOUPS, sources, start)
        if sweep is not None:
            option, values = arguments.values(sweep)
            runs = swept(runs, option, values)
        compared = reference(against, runs, (), GENERIC)
        targets, generic = read_targets(sources, cut, split)
        measured = measure(runs, targets, settings, progress(), generic)
        result = replace(measured, against=compared, frame=SPECIALISTS)
    else:
        if version is not None:
            sources = arguments.in_slot_order(version, sources)
        if trained:
            runs = asked([*TRAINED, *(recipe or ())], sources, start)
        elif recipe or version is not None:
            runs = asked(recipe or WITH_VERSION, sources, start)
        else:
            runs = possible(sources, start, say)
        if sweep is not None:
            option, values = arguments.values(sweep)
            runs = swept(runs, option, values)
        if version is not None:
            runs.append(Run(published(version), {}, VERSION))
        compared = reference(against, runs, tuple(sources))
        pooled = any(run.recipe.trains for run in runs)
        texts = arguments.texts(sources, cut, split, switch=switch, training=pooled)
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
