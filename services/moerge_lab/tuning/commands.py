"""`moerge tune`"""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.filesize import decimal

from moerge.files import require_new
from moerge.settings import named_numbers, named_values, single_values, token_count
from moerge.terminal import Screen, output

app = typer.Typer(subcommand_metavar="")


@app.callback(invoke_without_command=True, context_settings={"allow_interspersed_args": True})
def tune(
    text: Annotated[
        list[str], typer.Option(help="NAME=FILES: a domain's documents, a file, folder or pattern; repeat.")
    ],
    recipe: Annotated[
        str,
        typer.Option(
            help="For a version: dume-plus, dume-plus-gate, btx-router, btx-gate or btx. For a mixture: bam, "
            "bam-adapters, bts or mergeme-heterogeneous. With NAME:OPTION=VALUE,…."
        ),
    ],
    tokens: Annotated[str, typer.Option(help="Tokens of the training, such as 250k or 1M.")],
    out: Annotated[Path, typer.Option(help="New folder for the tuned model.")],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Folder of a pulled or merged version. Default: a mixture is trained."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="Folder or hub id of a mixture's seed model; mergeme-heterogeneous needs none."),
    ] = None,
    expert: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=DIR: an expert of a mixture; repeat. In mergeme-heterogeneous experts may differ in "
            "architecture, and the first one gives the tokenizer."
        ),
    ] = None,
    weight: Annotated[
        list[str] | None, typer.Option(help="NAME=NUMBER: a domain's share of the training; repeat. Default: 1.")
    ] = None,
    text_field: Annotated[str, typer.Option(help="Field or column with a document's text.")] = "text",
    context: Annotated[
        int | None, typer.Option(min=2, help="Tokens of a row. Default: 512, or the model's context if shorter.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of the order of texts, new routers and noise.")] = 0,
    workers: Annotated[
        int, typer.Option(min=1, help="Training processes, each with one thread or one GPU and a part of every batch.")
    ] = 1,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Parts of a process's batch, computed one after another to save memory.")
    ] = 1,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of the processes.")] = "cpu",
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Number format of the passes; parameters are float32.")
    ] = "float32",
    ray_address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster that shares these folders. Default: a local Ray.")
    ] = None,
) -> None:
    """Train a version further, or a mixture of dense models, on pooled text of its domains.

    The result is a folder, not a version: no coordinator publishes it. A tuned version is a stock model; a mixture
    needs `import moerge_lab.mixtures`. A tenth of each domain's documents is held out, as in `moerge table`.
    Unfinished work is in OUT.work; the same command continues there.

    Exit status: 0 tuned; 1 an input, an option or the machine is unsuitable; 2 wrong usage; 130 interrupted.

    Example: moerge tune my-model --text code='code/*.jsonl' --text law=law/ --recipe dume-plus --tokens 1M --out tuned

    Example: moerge tune --base seed --expert code=code --expert law=law --text code='code/*.jsonl' --text law=law/
    --recipe bts --tokens 1M --out stitched
    """
    from transformers.utils import logging

    from moerge.progress import progress
    from moerge_lab.training.job import LOG
    from moerge_lab.training.loop import losses
    from moerge_lab.tuning.request import Wanted
    from moerge_lab.tuning.tune import read_request
    from moerge_lab.tuning.tune import tune as run

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    require_new(out)
    wanted = Wanted(
        recipe=recipe,
        texts=named_values("text", text),
        field=text_field,
        tokens=token_count(tokens),
        weights=named_numbers("weight", weight or []),
        context=context,
        precision=precision,
        device=device,
        accumulate=accumulate,
        workers=workers,
        seed=seed,
    )
    messages = Screen(stderr=True)
    request = read_request(folder, single_values("expert", expert or []), base, wanted, progress())
    done = run(request, out, ray_address, progress(), lambda line: messages.print(line, highlight=False, markup=False))
    memory = "" if done.peak_memory is None else f"; peak memory {decimal(done.peak_memory)} per process"
    first, last = losses(out / LOG)
    output().print(
        f"{out}: trained {done.parameters:,} parameters on {request.record.tokens:,} tokens; "
        f"loss {first:.4f} in the first tenth, {last:.4f} in the last{memory}",
        highlight=False,
        markup=False,
    )
