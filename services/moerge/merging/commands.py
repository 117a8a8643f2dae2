"""`moerge merge`"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from moerge.documents.chat_templates import DATE
from moerge.merging.places import require_places
from moerge.merging.recipe import OF_MERGE, Recipe
from moerge.merging.recipe_file import FILE, recipe_of, recipe_text
from moerge.settings import byte_count, named_values, single_values
from moerge.terminal import AsJson, Screen, echo, output, show_json
from moerge_proto.bodies import BodyMethod, HeadMethod
from moerge_proto.recipes import RECOMMENDED, RecipeName
from moerge_proto.statistics_file import StatisticsSettings

if TYPE_CHECKING:
    from moerge.merging.dry_run import Costs
    from moerge.merging.report import Report

app = typer.Typer(subcommand_metavar="")


@app.callback(invoke_without_command=True)
def merge(
    out: Annotated[Path, typer.Option(help="New folder for the merged model.")],
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with these options and rarer ones as keys. Options override it."),
    ] = None,
    expert: Annotated[
        list[str] | None,
        typer.Option(help="NAME=DIR or NAME=HUB/ID@REVISION: a domain's dense expert or PEFT adapter; repeat."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILES: a domain's documents, a file, folder or pattern; repeat."),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=PROMPT, or NAME=@FILE with a prompt per line, in place of --text: the expert writes texts. "
            "With a chat template, a prompt is the user's turn. Repeat."
        ),
    ] = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FILES: documents to score that the expert wasn't trained on. Default: a tenth of --text; repeat."
        ),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(help="NAME=DIR or NAME=HUB/ID: an expert to add to --from, whose recipe it follows; repeat."),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Output of a merge with --keep-statistics, for --add; its files are linked, not copied."
        ),
    ] = None,
    recipe: Annotated[RecipeName | None, typer.Option(help="recommended: the default. dume: the paper's.")] = None,
    body: Annotated[
        BodyMethod | None,
        typer.Option(
            help="Method of the body: embedding, attention, and norms but the last. seed: --base's own, unchanged. "
            f"Default: the recipe's ({RECOMMENDED.body} for recommended)."
        ),
    ] = None,
    head: Annotated[
        HeadMethod | None,
        typer.Option(
            help="Method of the last norm and language model head. A solved head is separate from the embedding. "
            f"Default: the recipe's ({RECOMMENDED.head} for recommended)."
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="DIR or HUB/ID of the base model, for the bodies seed, ties and dare. Under seed, --add needs "
            "it too. Adapters on a quantised base are merged with it."
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", min=1, help="Experts per token. Default: 1.")] = None,
    fit: Annotated[
        bool | None,
        typer.Option(
            "--fit/--no-fit",
            help="Fit new experts' MLPs to the body. Default: under the body seed, and with --add.",
        ),
    ] = None,
    chat: Annotated[
        str | None,
        typer.Option(
            help=f"Field or column with messages, read through the expert's chat template, with {DATE} as the date."
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=2, help=f"Context of the models, in tokens. Default: {StatisticsSettings().context}."),
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None, typer.Option(help="Device of the passes and scores. Default: cpu.")
    ] = None,
    keep_statistics: Annotated[
        bool, typer.Option("--keep-statistics", help="Keep OUT.work, so that experts can be added.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the recipe and the costs, write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Merge experts on this machine into one MoE model, without training and without a server.

    Statistics and unfinished work are in OUT.work, so an interrupted run continues there. The final table has the
    merged model's scores on --held-out, or on a tenth of each domain's documents, which is then in no statistics.

    --add needs neither the other experts nor their texts. The body stays, new experts' MLPs are fitted to it, and the
    head is made again from all experts'.

    --dry-run prints the recipe, reads experts and texts, and measures a layer of each pass. Experts don't write texts
    by prompts.

    OUT/merge.yaml has all options of the merge: --config OUT/merge.yaml repeats it. In such a file options are keys,
    with _ for -, and relative paths start from its folder. NAME=VALUE options override the file's entry of this name.
    All keys are in docs/reference/recipe.md.

    Exit status: 0 merged or checked; 1 an input, an option or the machine is unsuitable; 2 wrong usage; 130
    interrupted.

    Example: moerge merge --expert code=./code --text code='code/*.jsonl' --expert law=org/name --text law=law.txt
    --out merged
    """
    one_each = {"expert": expert, "add": add}
    several = {"text": text, "prompt": prompt, "held_out": held_out}
    options = {
        **{name: single_values(name, values) if values else None for name, values in one_each.items()},
        **{name: named_values(name, values) if values else None for name, values in several.items()},
        "from_": None if from_ is None else str(from_),
        "recipe": recipe,
        "body": body,
        "head": head,
        "base": base,
        "top_k": top_k,
        "fit": fit,
        "chat": chat,
        "context": context,
        "device": device,
        "keep_statistics": keep_statistics or None,
    }
    with recipe_of(config, options, OF_MERGE, "moerge merge") as chosen:
        report, written = _merged(chosen, out, dry_run=dry_run)
    if as_json:
        show_json({**report.to_json(), **({"recipe": written} if dry_run else {})})
        return
    if dry_run:
        echo(f"{out / FILE}:\n\n{written}")
    for part in report.render():
        output().print(part, highlight=False, markup=False)


def _merged(recipe: Recipe, out: Path, *, dry_run: bool) -> "tuple[Report | Costs, str]":
    """The report of a merge, or its costs, and the content of its recipe file."""
    require_places(recipe)

    from transformers.utils import logging

    from moerge.merging import arguments
    from moerge.merging import dry_run as dry
    from moerge.merging.merge import MergeSettings, settings_of
    from moerge.merging.merge import merge as run_merge
    from moerge.progress import progress
    from moerge.statistics.contribution import Computing

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    version = arguments.version(recipe)
    seed = arguments.base_model(recipe)
    settings = MergeSettings(
        recipe=recipe.followed,
        body=recipe.body_options,
        fit=recipe.fit,
        base=seed,
        statistics=recipe.statistics,
        scored_tokens=recipe.scored_tokens,
        computing=Computing(
            device=recipe.device,
            slots=recipe.slots or os.cpu_count() or 1,
            host_memory=byte_count(recipe.host_memory, "host_memory") if recipe.host_memory else None,
            progress=progress(),
        ),
        keep_statistics=recipe.keep_statistics,
        chat_template=recipe.chat_template,
        automatic=recipe.body is None and recipe.recipe != "dume",
        automatic_head=recipe.head is None and recipe.recipe != "dume",
    )
    say = _said_once()
    sources = arguments.sources(recipe, say, seed)
    followed = settings_of(sources, out, settings, version)
    settings = replace(settings, keeping=followed.keeping)
    named = recipe.recipe or (None if version else "recommended")
    written = recipe_text(recipe.model_copy(update={"recipe": named, **arguments.determined(followed)}), out)
    if dry_run:
        return dry.merge(sources, out, settings, say, version), written
    return run_merge(sources, out, settings, say, version, written), written


def _said_once() -> Callable[[str], None]:
    """Prints messages; of equal ones, such as those of several domains, the first."""
    errors = Screen(stderr=True)

    @cache
    def say(line: str) -> None:
        errors.print(line, highlight=False, markup=False)

    return say
