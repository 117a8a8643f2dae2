"""`moerge merge`"""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import typer

from moerge.documents.chat_templates import DATE
from moerge.merging.recipe_command import RecipeCommand, keys_of
from moerge.merging.recipe_file import (
    CHECKPOINT,
    CHECKPOINTS,
    FILE,
    FOLDER,
    NAMED_FILES,
    NUMBERS,
    PROMPTS,
    WORDS,
    recipe_text,
)
from moerge.merging.report import SCORED_TOKENS
from moerge.settings import byte_count, named_numbers
from moerge.terminal import AsJson, Screen, echo, output, show_json
from moerge_proto.bodies import BodyMethod, HeadMethod
from moerge_proto.options import RECOMMENDED, RecipeName
from moerge_proto.statistics_file import StatisticsSettings

app = typer.Typer(subcommand_metavar="", cls=RecipeCommand)
_DEFAULTS = StatisticsSettings()
PROMPT_TOKENS = 10_000


@app.callback(invoke_without_command=True)
def merge(
    run: typer.Context,
    out: Annotated[Path, typer.Option(help="New folder for the merged model.")],
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with these options as keys. Options override it."),
    ] = None,
    expert: Annotated[
        list[str] | None,
        typer.Option(help="NAME=DIR or NAME=HUB/ID@REVISION: a domain's dense expert or PEFT adapter; repeat."),
        CHECKPOINTS,
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILES: a domain's documents, a file, folder or pattern; repeat."),
        NAMED_FILES,
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=PROMPT, or NAME=@FILE with a prompt per line, in place of --text: the expert writes texts. "
            "With a chat template, a prompt is the user's turn. Repeat."
        ),
        PROMPTS,
    ] = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FILES: documents to score that the expert wasn't trained on. Default: a tenth of --text; repeat."
        ),
        NAMED_FILES,
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of text that an expert writes by its prompts.")
    ] = PROMPT_TOKENS,
    add: Annotated[
        list[str] | None,
        typer.Option(help="NAME=DIR or NAME=HUB/ID: an expert to add to --from, whose recipe it follows; repeat."),
        CHECKPOINTS,
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Output of a merge with --keep-statistics, for --add; its files are linked, not copied."
        ),
        FOLDER,
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
        CHECKPOINT,
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option("--weight", help="NAME=NUMBER: an expert's weight, for the body weighted."),
        NUMBERS,
    ] = None,
    ridge_lambda: Annotated[
        float | None, typer.Option("--lambda", help="Ridge regulariser, in the recipe's scale. Default: the recipe's.")
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", min=1, help="Experts per token. Default: 1.")] = None,
    fit: Annotated[
        bool | None,
        typer.Option(
            "--fit/--no-fit",
            help="Fit new experts' MLPs to the body. Default: under the body seed, and with --add.",
        ),
    ] = None,
    before: Annotated[
        bool | None,
        typer.Option(
            "--before/--no-before",
            help="Take router statistics behind short public texts of moerge, so that routers hear less of what stood "
            "before. Default: no.",
        ),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            help="auto, a domain, or base (--base): whose chat template, tokenizer and generation settings the model "
            "gets. auto: the base's under the body seed, else the first expert's. Default: auto, or as --from has it."
        ),
    ] = None,
    text_field: Annotated[str, typer.Option(help="Field or column with a document's text.")] = "text",
    chat: Annotated[
        str | None,
        typer.Option(
            help=f"Field or column with messages, read through the expert's chat template, with {DATE} as the date."
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=2, help=f"Context of the models, in tokens. Default: {_DEFAULTS.context}.")
    ] = None,
    precision: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help=f"Number format of the passes. Default: {_DEFAULTS.precision}."),
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of the passes and scores.")] = "cpu",
    slots: Annotated[
        int | None, typer.Option(min=1, help="Shards at a time on a CPU. Default: one per core, or fewer by memory.")
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(help="Memory for hidden states, such as 16GB. Default: half of the free memory.")
    ] = None,
    license: Annotated[
        list[str] | None,
        typer.Option(help="NAME=SPDX: an expert's licence, for the model card; base=SPDX: --base's. Repeat."),
        WORDS,
    ] = None,
    scored_tokens: Annotated[
        int, typer.Option(min=0, help="Scored tokens per domain for the final table; 0: no table.")
    ] = SCORED_TOKENS,
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

    Exit status: 0 merged or checked; 1 an input, an option or the machine is unsuitable; 2 wrong usage; 130
    interrupted.

    Example: moerge merge --expert code=./code --text code='code/*.jsonl' --expert law=org/name --text law=law.txt
    --out merged
    """
    from moerge.merging.places import require_places

    require_places(expert, add, base, from_, {"text": text, "held_out": held_out}, prompt)

    from transformers.utils import logging

    from moerge.merging import arguments
    from moerge.merging import dry_run as dry
    from moerge.merging.merge import MergeSettings, settings_of
    from moerge.merging.merge import merge as run_merge
    from moerge.merging.report import Report
    from moerge.progress import progress
    from moerge.statistics.contribution import Computing

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    errors = Screen(stderr=True)

    @cache  # of equal lines, such as those of several domains, one is enough
    def say(line: str) -> None:
        errors.print(line, highlight=False, markup=False)

    numbers = named_numbers("weights", weights or [])
    chosen = arguments.Choices(recipe, body, head, base, numbers, ridge_lambda, top_k, fit, context, precision, before)
    texts = arguments.Texts(text or (), prompt or (), prompt_tokens, text_field, chat, say, held_out or ())
    licenses = arguments.licenses(license or ())
    version = arguments.version(from_, add or (), expert or (), chosen)
    seed = arguments.base_model(base, licenses)
    settings = MergeSettings(
        recipe=chosen.followed,
        body=chosen.body_options,
        fit=fit,
        base=seed,
        statistics=chosen.statistics,
        scored_tokens=scored_tokens,
        computing=Computing(
            device=device,
            slots=slots or os.cpu_count() or 1,
            host_memory=byte_count(host_memory, "host_memory") if host_memory else None,
            progress=progress(),
        ),
        keep_statistics=keep_statistics,
        chat_template=chat_template,
        automatic=body is None and recipe != "dume",
        automatic_head=head is None and recipe != "dume",
    )
    report: Report | dry.Costs
    field, named = ("expert", expert) if version is None else ("add", add)
    sources = arguments.sources(field, named or (), texts, licenses, seed)
    followed = settings_of(sources, out, settings, version)
    settings = replace(settings, keeping=followed.keeping)
    determined = {"recipe": recipe or (None if version else "recommended"), **arguments.determined(followed)}
    written = recipe_text(keys_of(run.command), {**run.params, **determined}, out)
    if dry_run:
        report = dry.merge(sources, out, settings, say, version)
    else:
        report = run_merge(sources, out, settings, say, version, written)
    if as_json:
        show_json({**report.to_json(), **({"recipe": written} if dry_run else {})})
        return
    if dry_run:
        echo(f"{out / FILE}:\n\n{written}")
    for part in report.render():
        output().print(part, highlight=False, markup=False)
