"""`moerge keeper …`"""

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.cli.common import show
from moerge.cli.owners import confirmed
from moerge.masks.keeper import Keeper, make_key
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.signatures import fingerprint, in_groups

app = typer.Typer(no_args_is_help=True, help="Keep owners' masks, so that a coordinator sees only sums of many owners.")
Home = Annotated[Path, typer.Argument(help="The keeper's folder: its key and journal.")]


@app.callback()
def _group() -> None:
    """Keep owners' masks, so that a coordinator sees only sums of many owners."""
    os.umask(0o077)


@app.command()
def init(home: Home) -> None:
    """Make a keeper's key, and print its public half for worker.toml. Uses an existing key.

    A keeper is of use only if neither the coordinator's operator nor its machine can read this folder.

    Example: moerge keeper init /srv/keeper
    """
    echo(make_key(home))
    echo(f"Send this key to the owners. Next: moerge keeper approve {quote(str(home))} REQUEST", err=True)


@app.command()
def approve(
    home: Home,
    request: Annotated[str, typer.Argument(help="The owner's join request; - reads standard input.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace the owner's existing key.")] = False,
) -> None:
    """Let an owner's masks count: the owner's join request is that of `moerge worker init`.

    Approve only owners whom you know. A coordinator that invents owners could otherwise ask for the sum of a real one
    and of inventions. On a terminal, first asks you to confirm the fingerprint.

    Example: moerge keeper approve /srv/keeper moerge-join-1.eyJjcmVhdGVkIjoi...
    """
    join = confirmed(request)
    Keeper(home).approve(join, replace=replace)
    echo(f"{join.owner}: masks signed by {in_groups(fingerprint(join.public_key))} count")


@app.command()
def answer(
    home: Home,
    request: Annotated[Path, typer.Argument(help="The coordinator's request, by `moerge coordinator cohort`.")],
    out: Annotated[Path, typer.Option(help="File of the answer, for `moerge coordinator unmask`.")],
) -> None:
    """Answer a coordinator's request with the sums of a cohort's masks.

    A cohort is answered whole. No other cohort may share a contribution with it, or a domain under the same body. Only
    the coordinator can use the answer.

    Example: moerge keeper answer /srv/keeper request.json --out answer
    """
    from moerge.masks.answer_file import answer as answered

    asked = answered(Keeper(home), request, out)
    names = ", ".join(sorted(f"{part.owner}/{part.domain}" for part in asked.parts))
    echo(f"{out}: {decimal(asked.answer_bytes)}, the sums of the masks of {names}")


@app.command("show")
def show_journal(home: Home, as_json: AsJson = False) -> None:
    """Show the keeper's key, approved owners, and answered cohorts.

    Example: moerge keeper show /srv/keeper
    """
    keeper = Keeper(home)
    owners, cohorts = keeper.owners(), keeper.cohorts()
    if as_json:
        show_json({"key": keeper.public_key, "owners": owners, "cohorts": [item._asdict() for item in cohorts]})
        return
    echo(f"Key: {keeper.public_key}")
    show("Owners", ["name", "key"], [[name, in_groups(fingerprint(key))] for name, key in owners.items()])
    rows = [[item.at, item.cohort[:12], ", ".join(item.parts)] for item in cohorts]
    show("Answered", ["time, UTC", "cohort", "owner/domain"], rows)
