"""`moerge owner …`"""

import sys
from datetime import datetime
from typing import Annotated

import typer

from moerge.cli.common import Coordinator, Secret, Yes, confirm, show, show_list
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.terminal import AsJson, show_json
from moerge_proto.owners import NewOwner, NewToken, Owner, OwnerKey, Role
from moerge_proto.signatures import JoinRequest, fingerprint, in_groups

app = typer.Typer(no_args_is_help=True, help="Domain owners and their keys (operator).")
OwnerName = Annotated[str, typer.Argument(help="The owner's name; see: moerge owner list.")]
_HAND_OVER = "This token is shown once. Hand it to the owner over a safe channel."


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The owner's name: a-z, 0-9, - and _.")],
    domain: Annotated[list[str], typer.Option(help="A domain that the owner speaks for; repeat for more.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Adds an owner without a key, whose contributions are unsigned, and prints a token. Again: another token.

    Example: moerge owner add hospital --domain medicine
    """
    with Client(coordinator, secret) as client:
        client.add_owner(NewOwner(name=name, domains=domain))
        typer.echo(client.add_token(NewToken(role=Role.OWNER, owner=name)).secret)
    typer.echo(_HAND_OVER, err=True)


@app.command("approve")
def approve(
    request: Annotated[str, typer.Argument(help="The line that the owner's worker printed; - reads it from input.")],
    coordinator: Coordinator,
    secret: Secret,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let it take the place of a known owner's key, which is revoked.")
    ] = False,
) -> None:
    """Takes in the owner who made a join request, and prints a token for its worker. Again: another token.

    On a terminal it asks first whether the fingerprint is the one that the owner told.

    Example: moerge owner approve moerge-join-1.eyJjcmVhdGVkIjoi...
    """
    try:
        asked = JoinRequest.of_line(sys.stdin.read() if request == "-" else request)
    except ValueError as error:
        todo = "ask the owner for the whole line again: moerge worker init"
        raise MoergeError(str(error), where="REQUEST", todo=todo) from error
    typer.echo(
        f"Owner: {asked.owner}\nDomains: {', '.join(asked.domains)}\nMade: {_minute(asked.created)}\n"
        f"Fingerprint: {in_groups(fingerprint(asked.public_key))}",
        err=True,
    )
    if sys.stdin.isatty():
        typer.echo("Has the owner told you this fingerprint, by another way? [y/N] ", err=True, nl=False)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise MoergeError("not approved", where=asked.owner, todo="compare fingerprints with the owner first")
    with Client(coordinator, secret) as client:
        typer.echo(client.approve(asked, replace=replace).token.secret)
    typer.echo(_HAND_OVER, err=True)


@app.command("revoke")
def revoke(name: OwnerName, coordinator: Coordinator, secret: Secret, yes: Yes = False) -> None:
    """Revokes an owner's key and its tokens at once: nothing new is taken from it. What it contributed stays.

    Example: moerge owner revoke hospital
    """
    confirm(f"The key and the tokens of {name} end at once, for good.", yes=yes)
    with Client(coordinator, secret) as client:
        client.revoke_owner(name)
    typer.echo(f"{name}: key and tokens are revoked. To take its work out: moerge expert withdraw DOMAIN")


@app.command("list")
def list_owners(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """Lists owners, their domains and keys.

    Example: moerge owner list
    """
    with Client(coordinator, secret) as client:
        columns = ["name", "domains", "key", "last seen"]
        show_list("Owners", columns, client.owners(), _line, as_json=as_json)


def _line(row: Owner) -> list[str]:
    return [row.name, ", ".join(row.domains), _state(row), _minute(row.seen)]


@app.command("show")
def show_owner(name: OwnerName, coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """Shows an owner's domains, when it was last seen, and every key that it has had.

    Example: moerge owner show hospital
    """
    with Client(coordinator, secret) as client:
        row = next((row for row in client.owners() if row.name == name), None)
    if row is None:
        raise MoergeError(f"no owner {name!r}", where="NAME", todo="see: moerge owner list")
    if as_json:
        show_json(row)
        return
    lines = {"name": row.name, "domains": ", ".join(row.domains), "since": _minute(row.created)}
    lines |= {"last seen": _minute(row.seen), "key": "" if row.keys else "none; it contributes unsigned"}
    show("Owner", ["", ""], [list(line) for line in lines.items()])
    for key in row.keys:
        typer.echo(f"{in_groups(key.fingerprint)}\n  public key {key.public_key}\n  {_times(key)}")


def _minute(when: datetime | None) -> str:
    return "never" if when is None else f"{when:%Y-%m-%d %H:%M} UTC"


def _times(key: OwnerKey) -> str:
    end = "" if key.revoked is None else f", revoked or rotated {_minute(key.revoked)}"
    return f"since {_minute(key.created)}{end}"


def _state(row: Owner) -> str:
    if not row.keys:
        return "none"
    key = row.keys[-1]
    return f"{in_groups(key.fingerprint[:16])} {_times(key)}"
