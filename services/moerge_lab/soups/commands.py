"""`moerge soup`"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from moerge.files import require_new
from moerge.models.sources import checkpoint_folder
from moerge.settings import named_values, single_values, token_count
from moerge.terminal import output

app = typer.Typer(no_args_is_help=True)
Out = Annotated[Path, typer.Option(help="New folder.")]
TextField = Annotated[str, typer.Option(help="Field or column with a document's text.")]
Device = Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of the models.")]


@app.callback()
def soup() -> None:
    """Make dense specialists for new texts from one bank of parameters (Soup-of-Experts).

    A bank has shared parameters S and a few E_i of the same shape. A specialist is S + the sum of alpha_i E_i. The bank
    has learned the coefficients alpha for mixtures of its own text.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@app.command()
def train(
    base: Annotated[str, typer.Option(help="DIR or HUB/ID of the experts' seed model.")],
    text: Annotated[list[str], typer.Option(help="NAME=FILES: documents, a file, folder or pattern; repeat.")],
    tokens: Annotated[str, typer.Option(help="Tokens of the training, such as 250k or 1M.")],
    out: Out,
    expert: Annotated[
        list[str] | None, typer.Option(help="NAME=DIR or NAME=HUB/ID: an expert, whose task vector is an E_i; repeat.")
    ] = None,
    start: Annotated[
        Literal["experts", "seed", "scratch"],
        typer.Option(help="seed: random E_i, one per --text, around the seed model. scratch: S is random, too."),
    ] = "experts",
    rank: Annotated[int, typer.Option(min=0, help="Rank of every E_i's matrices; 0: full.")] = 0,
    clusters: Annotated[int, typer.Option(min=1, help="Pretraining domains: clusters of documents.")] = 8,
    support: Annotated[int, typer.Option(min=1, help="Pretraining domains in the mixture of a step.")] = 2,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 3e-4,
    batch: Annotated[int, typer.Option(min=1, help="Rows of a step.")] = 8,
    context: Annotated[
        int | None, typer.Option(min=2, help="Tokens of a row. Default: 512, or the models' context if shorter.")
    ] = None,
    text_field: TextField = "text",
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of clusters, mixtures and random parameters.")] = 0,
    device: Device = "cpu",
) -> None:
    """Train a bank, S and a few E_i, on pooled text.

    Every step draws a mixture of pretraining domains, and trains the model that the bank gives for it. A tenth of
    each text's documents is held out, the same one as in `moerge table`. Unfinished work is in OUT.work; the same
    command continues there.

    Exit status: 0 trained; 1 an input, an option or the machine is unsuitable; 2 wrong usage; 130 interrupted.

    Example: moerge soup train --expert code=code/ --expert law=law/ --base seed/ --text code='code/*.jsonl'
    --text law='law/*.jsonl' --tokens 250k --out bank
    """
    from moerge.progress import progress
    from moerge_lab.soups.run import Settings, read_request, train_bank

    require_new(out)
    request = read_request(
        checkpoint_folder(base),
        {name: checkpoint_folder(place) for name, place in single_values("expert", expert or []).items()},
        named_values("text", text),
        text_field,
        Settings(start, rank, clusters, support, rate, batch, seed),
        token_count(tokens),
        context,
        device,
        progress(),
    )
    first, last = train_bank(request, out, progress())
    output().print(
        f"{out}: trained on {request.record.tokens:,} tokens; loss {first:.4f} in the first tenth, {last:.4f} in the"
        " last",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@app.command()
def instantiate(
    bank: Annotated[Path, typer.Argument(metavar="BANK", help="Folder of a bank.")],
    text: Annotated[list[str], typer.Option(help="FILES of the new text, a file, folder or pattern; repeat.")],
    out: Out,
    fit: Annotated[
        bool, typer.Option("--fit", help="Fit the coefficients to the text by gradient descent; slower.")
    ] = False,
    finetune: Annotated[
        str | None, typer.Option(help="Tokens of a training of the specialist on the text, such as 10k. Default: none.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Highest learning rate of that training.")] = 3e-4,
    text_field: TextField = "text",
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of batches.")] = 0,
    device: Device = "cpu",
) -> None:
    """Make a specialist for a text from a bank: a dense model for stock transformers.

    Each document belongs to the nearest pretraining domain, and the domains' shares decide the coefficients. Without
    --fit and --finetune nothing is trained, so a few documents suffice.

    Exit status: 0 written; 1 an input, an option or the machine is unsuitable; 2 wrong usage; 130 interrupted.

    Example: moerge soup instantiate bank --text target.jsonl --out specialist
    """
    from moerge.progress import progress
    from moerge_lab.soups.run import Target
    from moerge_lab.soups.run import instantiate as run

    require_new(out)
    target = Target(fit, 0 if finetune is None else token_count(finetune, "finetune"), rate, seed, device)
    record = run(bank, text, text_field, target, out.absolute(), progress())
    coefficients = ", ".join(f"{coefficient:.3f}" for coefficient in record.coefficients)
    output().print(
        f"{out}: specialist for {record.documents:,} documents; coefficients {coefficients}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
