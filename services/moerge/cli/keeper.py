"""`moerge keeper …`"""

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from moerge.cli.common import show
from moerge.cli.owners import confirmed
from moerge.errors import TerminatedError
from moerge.keeper.journal import Keeper, make_key
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
    """Make a keeper's key, and print its public half for worker.toml and coordinator.toml. Uses an existing key.

    A keeper is of use only if neither the coordinator's operator nor its machine can read this folder.

    Example: moerge keeper init /srv/keeper
    """
    echo(make_key(home))
    echo(f"Send this key to owners and operator. Next: moerge keeper approve {quote(str(home))} REQUEST", err=True)


@app.command()
def approve(
    home: Home,
    request: Annotated[str, typer.Argument(help="The owner's join request; - reads standard input.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace the owner's existing key.")] = False,
) -> None:
    """Let an owner's masks count: the owner's join request is that of `moerge worker init`.

    Approve only owners whom you know. A coordinator that invents owners could otherwise ask for the sum of a real one
    and of inventions. On a terminal, first asks you to confirm the fingerprint. A running keeper needs no restart.

    Example: moerge keeper approve /srv/keeper moerge-join-1.eyJjcmVhdGVkIjoi...
    """
    join = confirmed(request)
    Keeper(home).approve(join, replace=replace)
    echo(f"{join.owner}: masks signed by {in_groups(fingerprint(join.public_key))} count")


@app.command()
def serve(
    home: Home,
    host: Annotated[str, typer.Option(help="Listening address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port; 0 chooses a free one.")] = 8090,
) -> None:
    """Answer a coordinator's requests for sums of masks, until SIGTERM.

    A cohort is answered whole. No other cohort under the same body may share a domain with it. Requests need no token,
    since only the coordinator has the sealed seeds. Coordinators elsewhere need a proxy with TLS in front.

    Example: moerge keeper serve /srv/keeper
    """
    from moerge.keeper import server

    try:
        server.serve(Keeper(home), host, port)
    except TerminatedError:
        return


@app.command("show")
def show_journal(home: Home, as_json: AsJson = False) -> None:
    """Show the keeper's key, approved owners, and the journal of requests, refused ones included.

    Example: moerge keeper show /srv/keeper
    """
    keeper = Keeper(home)
    owners, answers = keeper.owners(), keeper.answers()
    if as_json:
        show_json({"key": keeper.public_key, "owners": owners, "answers": [item._asdict() for item in answers]})
        return
    echo(f"Key: {keeper.public_key}")
    show("Owners", ["name", "key"], [[name, in_groups(fingerprint(key))] for name, key in owners.items()])
    rows = [[item.at, item.cohort[:12], ", ".join(item.parts), item.refusal or "answered"] for item in answers]
    show("Requests", ["time, UTC", "cohort", "owner/domain", ""], rows)
