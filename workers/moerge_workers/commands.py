"""`moerge worker …`"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from moerge.checkpoint.sources import checkpoint_folder
from moerge.client import Client
from moerge.errors import MoergeError
from moerge.progress import progress
from moerge_proto.signatures import fingerprint, in_groups
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers import identity
from moerge_workers.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Run a domain owner's worker.")


@app.callback()
def _group() -> None:
    """Run a domain owner's worker."""


Coordinator = Annotated[str, typer.Option(envvar="MOERGE_COORDINATOR", help="Address of the coordinator.")]
Token = Annotated[str, typer.Option(envvar="MOERGE_TOKEN", help="The owner's token; better in the environment.")]
KeyHome = Annotated[Path | None, typer.Option("--home", help="Folder of the owner's key; default ~/.moerge.")]


@app.command()
def init(
    owner: Annotated[str, typer.Option(help="Your name as an owner: a-z, 0-9, - and _.")],
    domain: Annotated[list[str], typer.Option(help="A domain that you speak for; repeat for more.")],
    home: KeyHome = None,
) -> None:
    """Makes your key, which never leaves this machine, and prints the request to send to the operator.

    A key that is there already stays, and the request is made with it. Nobody is spoken to.

    Example: moerge worker init --owner hospital --domain medicine
    """
    path = (home or identity.default_home()) / f"{owner}.pem"
    request = identity.join_request(path, owner, domain)
    typer.echo(request.line())
    typer.echo(
        f"Your key is {path}; keep a copy where only you can read it.\n"
        f"Its fingerprint: {in_groups(fingerprint(request.public_key))}\n"
        "Send the line above to the operator by any way, and tell the fingerprint by another one, such as a call.\n"
        "The operator approves it and sends you a token; then start: moerge worker run",
        err=True,
    )


@app.command()
def rotate(
    coordinator: Coordinator,
    token: Token,
    home: KeyHome = None,
) -> None:
    """Puts a new key in the place of yours, here and at the coordinator. Killed at any moment, run it again.

    What was signed before stays signed. Workers that run take the new key by themselves.

    Example: moerge worker rotate
    """
    with Client(coordinator, token) as client:
        owner = client.identity().owner
        if owner is None:
            raise MoergeError("the token is not an owner's", where="--token", todo="use your worker's token")
        made = identity.rotate(client, owner, identity.key_file(home or identity.default_home(), owner))
    typer.echo(f"Your key's fingerprint is now: {in_groups(made)}")


def _settings(
    coordinator: Coordinator,
    token: Token,
    domain: Annotated[str, typer.Option(help="The domain to contribute for.")],
    expert: Annotated[str, typer.Option(help="The domain's dense checkpoint: a folder, or a hub id (name/model).")],
    data: Annotated[list[str], typer.Option(help="File, quoted glob, folder or fsspec URL of documents; repeatable.")],
    text_field: Annotated[str, typer.Option(help="Field or column with a document's text.")] = "text",
    chat: Annotated[str | None, typer.Option(help="Read messages in this field instead, as the model's chat.")] = None,
    chat_turns: Annotated[
        Literal["all", "assistant"], typer.Option(help="Whose tokens count, in a chat; the model reads all.")
    ] = "all",
    bad_share: Annotated[
        float, typer.Option(min=0, max=0.99, help="Skip unreadable documents up to this share of all; then stop.")
    ] = 0.01,
    tuning_share: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of the documents to choose lambda with; sent apart.")
    ] = 0.0,
    held_out_share: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of the documents that nothing is sent of.")
    ] = 0.0,
    trunk_contribution: Annotated[
        bool, typer.Option("--trunk-contribution", help="Send grams and token counts for a regmean trunk too.")
    ] = False,
    rare_below: Annotated[int, typer.Option(help="Withhold counts of tokens that stand fewer times.")] = 10,
    home: Annotated[Path | None, typer.Option(help="Key, journal, downloads; default ~/.moerge/worker-DOMAIN.")] = None,
    license: Annotated[str, typer.Option(help="SPDX identifier of the expert's licence, for the card.")] = "unknown",
    tokens_per_document: Annotated[int | None, typer.Option(help="Use each document's first tokens only.")] = None,
    context: Annotated[int, typer.Option(help="Tokens that the model sees at once.")] = 512,
    precision: Annotated[Literal["float32", "bfloat16"], typer.Option(help="What the model computes in.")] = "float32",
    batch_tokens: Annotated[int, typer.Option(help="Tokens in a micro-batch; fewer need less memory.")] = 2048,
    slots: Annotated[int, typer.Option(help="Ray actors: one CPU thread each, or one GPU.")] = 1,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where the model runs.")] = "cpu",
    ray_address: Annotated[str | None, typer.Option(help="Your own Ray cluster; by default one starts.")] = None,
    max_stray: Annotated[float, typer.Option(help="Refuse a trunk further than this from your expert.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Stop after one contribution.")] = False,
) -> Settings:
    """A worker's options."""
    if tuning_share + held_out_share >= 1:
        found = "together they leave no documents for the statistics"
        raise MoergeError(found, where="--tuning-share, --held-out-share", todo="give shares below 1 in sum")
    return Settings(
        coordinator=coordinator,
        token=token,
        domain=domain,
        expert=checkpoint_folder(expert),
        data=data,
        text_field=text_field,
        chat=chat,
        chat_turns=chat_turns,
        bad_share=bad_share,
        tuning_share=tuning_share,
        held_out_share=held_out_share,
        trunk_contribution=trunk_contribution,
        rare_below=rare_below,
        home=home or Path.home() / ".moerge" / f"worker-{domain}",
        license=license,
        slots=slots,
        device=device,
        ray_address=ray_address,
        max_stray=max_stray,
        once=once,
        statistics=StatisticsSettings(
            tokens_per_document=tokens_per_document, context=context, batch_tokens=batch_tokens, precision=precision
        ),
    )


def _with_settings(do: Callable[[Settings], None], **defaults: str) -> None:
    """Adds a command that takes a worker's options; `defaults` are of those that it can do without."""

    def command(**options: Any) -> None:
        do(_settings(**options))

    given = inspect.signature(_settings)
    options = [each.replace(default=defaults.get(name, each.default)) for name, each in given.parameters.items()]
    needed = [each for each in options if each.default is each.empty]
    options = [*needed, *(each for each in options if each.default is not each.empty)]
    command.__signature__ = given.replace(parameters=options)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {**_settings.__annotations__, "return": None}
    app.command(do.__name__, help=do.__doc__)(command)


def run(settings: Settings) -> None:
    """Registers the expert, then contributes ridge statistics under every trunk that the operator merges.

    Killed at any moment and started again, it goes on where it was; while the coordinator can't be reached it waits.
    Documents that came since it last ran are sent as a further contribution; if some are gone, one takes the place of
    all before it.

    Example: moerge worker run --coordinator https://example.org --domain law --expert expert/ --data 'text/*.jsonl'
    """
    from moerge_workers import contribute  # it brings torch and Ray, which the other commands need not wait for

    contribute.run(settings, progress())


def check(settings: Settings) -> None:
    """Tells what would keep `moerge worker run`, with the same options, from working; exits with 1 if anything would.

    Looks at the expert, the data (of which it reads the first part), disk, memory, devices and Ray, where it computes
    one micro-batch; then at the coordinator, its clock, your token and key, and whether the expert is like the trunk.
    Without --coordinator only this machine is looked at. Nothing is sent but the token.

    Example: moerge worker check --domain law --expert expert/ --data 'text/*.jsonl'
    """
    from moerge_workers.check import checks

    failed = 0
    for line in checks(settings):
        typer.echo(line)
        failed += line.problem is not None
    if failed:
        raise typer.Exit(1)


_with_settings(run)
_with_settings(check, coordinator="", token="")
