"""`moerge merge`"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from moerge.errors import MoergeError
from moerge.merging.report import SCORED_TOKENS
from moerge.settings import named_values, single_values
from moerge.terminal import AsJson, output, show_json
from moerge_proto.digests import Name
from moerge_proto.messages import plainly
from moerge_proto.options import RECOMMENDED, VERSION_RECIPES, RecipeName, SolveOptions, VersionRecipe
from moerge_proto.statistics_file import StatisticsSettings
from moerge_proto.trunks import TrunkMethod

if TYPE_CHECKING:
    from moerge.merging.merge import Source

app = typer.Typer()
_DEFAULTS = StatisticsSettings()


@app.callback(invoke_without_command=True)
def merge(
    expert: Annotated[
        list[str],
        typer.Option(help="NAME=DIR or NAME=HUB/ID@REVISION: a domain's dense expert or PEFT adapter; repeat."),
    ],
    text: Annotated[
        list[str], typer.Option(help="NAME=FILES: a domain's documents, a file, folder or pattern; repeat.")
    ],
    out: Annotated[Path, typer.Option(help="New folder for the merged model.")],
    recipe: Annotated[RecipeName, typer.Option(help="moerge: the recommended one. dume: the paper's.")] = "moerge",
    method: Annotated[
        TrunkMethod | None, typer.Option(help=f"Trunk method. Default: the recipe's ({RECOMMENDED.method} for moerge).")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="DIR or HUB/ID of the base model, for the methods base, ties and dare.")
    ] = None,
    ridge_lambda: Annotated[
        float | None, typer.Option("--lambda", help="Ridge regulariser, in the recipe's scale. Default: the recipe's.")
    ] = None,
    top_k: Annotated[int | None, typer.Option("--k", min=1, help="Experts per token. Default: 1.")] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Fit every expert's MLPs to the trunk.")] = False,
    text_field: Annotated[str, typer.Option(help="Field or column with a document's text.")] = "text",
    chat: Annotated[
        str | None, typer.Option(help="Field or column with messages, read through the expert's chat template.")
    ] = None,
    context: Annotated[int, typer.Option(min=2, help="Context of the models, in tokens.")] = _DEFAULTS.context,
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Number format of the passes.")
    ] = _DEFAULTS.precision,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of the passes and scores.")] = "cpu",
    slots: Annotated[
        int | None, typer.Option(min=1, help="Shards at a time on a CPU. Default: one per core, or fewer by memory.")
    ] = None,
    license: Annotated[
        list[str] | None, typer.Option(help="NAME=SPDX: an expert's licence, for the model card; repeat.")
    ] = None,
    scored_tokens: Annotated[
        int, typer.Option(min=0, help="Scored tokens per domain for the final table; 0: no table.")
    ] = SCORED_TOKENS,
    keep_statistics: Annotated[bool, typer.Option("--keep-statistics", help="Keep the work folder, OUT.work.")] = False,
    as_json: AsJson = False,
) -> None:
    """Merges experts on this machine into one MoE model, without training and without a server.

    Statistics and unfinished work are in OUT.work, so an interrupted run continues there. A tenth of each domain's
    documents is held out. The final table has the merged model's scores on it.

    Exit status: 0 merged; 1 an input, an option or the machine is unsuitable; 2 wrong usage; 130 interrupted.

    Example: moerge merge --expert code=./code --text code='code/*.jsonl' --expert law=org/name --text law=law.txt
    --out merged
    """
    from transformers.utils import logging

    from moerge.merging.merge import MergeSettings
    from moerge.merging.merge import merge as run
    from moerge.models.expert_folder import DenseExpert
    from moerge.models.sources import checkpoint_folder, hub_id
    from moerge.progress import progress
    from moerge.statistics.contribution import Computing

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    told = Console(stderr=True)

    def say(line: str) -> None:
        told.print(line, highlight=False, markup=False)

    computing = Computing(device=device, slots=slots or os.cpu_count() or 1, progress=progress())
    settings = MergeSettings(
        recipe=_recipe(VERSION_RECIPES[recipe], method, ridge_lambda, top_k, fit=fit),
        base=None if base is None else DenseExpert("base", checkpoint_folder(base), hub_id=hub_id(base)),
        statistics=StatisticsSettings(context=context, precision=precision),
        scored_tokens=scored_tokens,
        computing=computing,
        keep_statistics=keep_statistics,
    )
    sources = _sources(expert, text, license or (), text_field, chat, say)
    report = run(sources, out, settings, say)
    if as_json:
        show_json(report.to_json())
        return
    for part in report.render():
        output().print(part, highlight=False, markup=False)


def _recipe(
    named: VersionRecipe, method: TrunkMethod | None, ridge_lambda: float | None, top_k: int | None, *, fit: bool
) -> VersionRecipe:
    """The recipe with the given options. The default method of a fit is the one with a head for fitted MLPs."""
    given = {"ridge_lambda": ridge_lambda, "top_k": top_k}
    solve = named.solve.model_dump() | {name: value for name, value in given.items() if value is not None}
    try:
        options = SolveOptions.model_validate(solve)
    except ValidationError as error:
        first = error.errors()[0]
        raise MoergeError(plainly(first), where="--lambda", todo="see --help") from error
    chosen = method or ("moerge" if fit else named.method)
    return named.model_copy(update={"method": chosen, "fit": fit or named.fit, "solve": options})


def _sources(
    experts: Sequence[str],
    texts: Sequence[str],
    licenses: Sequence[str],
    text_field: str,
    chat: str | None,
    say: Callable[[str], None],
) -> "list[Source]":
    from moerge.documents.corpus import Corpus
    from moerge.merging.merge import Source
    from moerge.models.expert_folder import DenseExpert
    from moerge.models.sources import checkpoint_folder, hub_id

    folders, files = _one_each("--expert", experts), named_values("--text", texts)
    spdx = _one_each("--license", licenses)
    for option, names in (("--text", files), ("--license", spdx)):
        _require_known(option, names, folders, every=option == "--text")
    found = []
    for name, place in folders.items():
        folder = checkpoint_folder(place)
        own = DenseExpert(name, folder, license=spdx.get(name, "unknown"), hub_id=hub_id(place))
        corpus = Corpus(files[name], folder, text_field=text_field, chat=chat, say=say, option=f"--text {name}")
        found.append(Source(own, corpus))
    return found


def _one_each(option: str, values: Sequence[str]) -> dict[str, str]:
    pairs = single_values(option, values)
    for name in pairs:
        try:
            TypeAdapter(Name).validate_python(name)
        except ValidationError as error:
            todo = "use at most 63 of a-z, 0-9, - and _"
            raise MoergeError(f"{name!r} is not a valid domain name", where=option, todo=todo) from error
    return pairs


def _require_known(option: str, names: Mapping[str, object], experts: Mapping[str, str], *, every: bool) -> None:
    """Requires that an option names domains with an expert; with `every`, all of them."""
    if unknown := sorted(names.keys() - experts.keys()):
        raise MoergeError(f"no expert of {', '.join(unknown)}", where=option, todo="give it with --expert NAME=DIR")
    if every and (missing := sorted(experts.keys() - names.keys())):
        raise MoergeError(f"no text of {', '.join(missing)}", where=option, todo="give it with --text NAME=FILES")
