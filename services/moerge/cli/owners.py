"""`moerge owner …`"""

import sys
from typing import Annotated

import typer

from moerge.cli.common import Coordinator, Secret, Yes, confirm, minute, show, show_list
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.owners import NewOwner, NewToken, Owner, OwnerKey, Role
from moerge_proto.signatures import JoinRequest, fingerprint, in_groups

app = typer.Typer(no_args_is_help=True, help="Domain owners and their keys (operator).")
OwnerName = Annotated[str, typer.Argument(help="The owner's name; see `moerge owner list`.")]
_HAND_OVER = "This token is shown only once. Send it to the owner over a secure channel."


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The owner's name: a-z, 0-9, - and _.")],
    domain: Annotated[list[str], typer.Option(help="A domain of the owner; repeat for more.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Add an owner without a key, with unsigned contributions, and print a token. A repetition prints another one.

    Example: moerge owner add hospital --domain medicine
    """
    with Client(coordinator, secret) as client:
        client.add_owner(NewOwner(name=name, domains=domain))
        echo(client.add_token(NewToken(role=Role.OWNER, owner=name)).secret)
    echo(_HAND_OVER, err=True)


@app.command("approve")
def approve(
    request: Annotated[str, typer.Argument(help="The join request from the owner's worker; - reads standard input.")],
    coordinator: Coordinator,
    secret: Secret,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the owner's existing key, which is revoked.")
    ] = False,
) -> None:
    """Approve a join request, and print a token for the owner's worker. A repetition prints another one.

    On a terminal, first asks you to confirm the fingerprint.

    Example: moerge owner approve moerge-join-1.eyJjcmVhdGVkIjoi...
    """
    join = confirmed(request)
    with Client(coordinator, secret) as client:
        echo(client.approve(join, replace=replace).token.secret)
    echo(_HAND_OVER, err=True)


def confirmed(request: str) -> JoinRequest:
    """The join request of a line, or of standard input (-), once a person at a terminal has confirmed its key."""
    try:
        join = JoinRequest.of_line(sys.stdin.read() if request == "-" else request)
    except ValueError as error:
        todo = "ask the owner to run `moerge worker init` again and to send the complete line"
        raise MoergeError(str(error), where="REQUEST", todo=todo) from error
    echo(
        f"Owner: {join.owner}\nDomains: {', '.join(join.domains)}\nMade: {minute(join.created)}\n"
        f"Fingerprint: {in_groups(fingerprint(join.public_key))}",
        err=True,
    )
    if sys.stdin.isatty():
        echo("Has the owner told you this fingerprint over another channel? [y/N] ", err=True, nl=False)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise MoergeError("not approved", where=join.owner, todo="first compare fingerprints with the owner")
    return join


@app.command("revoke")
def revoke(name: OwnerName, coordinator: Coordinator, secret: Secret, yes: Yes = False) -> None:
    """Revoke an owner's key and tokens immediately. Its contributions stay.

    Example: moerge owner revoke hospital
    """
    confirm(f"The key and tokens of {name} are revoked immediately and permanently.", yes=yes)
    with Client(coordinator, secret) as client:
        client.revoke_owner(name)
    echo(f"{name}: key and tokens are revoked. To remove its expert: moerge expert withdraw DOMAIN")


@app.command("list")
def list_owners(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """List owners, their domains and keys.

    Example: moerge owner list
    """
    with Client(coordinator, secret) as client:
        columns = ["name", "domains", "key", "last seen"]
        show_list("Owners", columns, client.owners(), _line, as_json=as_json)


def _line(row: Owner) -> list[str]:
    return [row.name, ", ".join(row.domains), _state(row), minute(row.seen)]


@app.command("show")
def show_owner(name: OwnerName, coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """Show an owner's domains, last call and keys, including former ones.

    Example: moerge owner show hospital
    """
    with Client(coordinator, secret) as client:
        row = next((row for row in client.owners() if row.name == name), None)
    if row is None:
        raise MoergeError(f"no owner {name!r}", where="NAME", todo="run: moerge owner list")
    if as_json:
        show_json(row)
        return
    lines = {"name": row.name, "domains": ", ".join(row.domains), "since": minute(row.created)}
    lines |= {"last seen": minute(row.seen), "key": "" if row.keys else "none; contributions are unsigned"}
    show("Owner", ["", ""], [list(line) for line in lines.items()])
    for key in row.keys:
        echo(f"{in_groups(key.fingerprint)}\n  public key {key.public_key}\n  {_times(key)}")


def _times(key: OwnerKey) -> str:
    end = "" if key.revoked is None else f", revoked or rotated {minute(key.revoked)}"
    return f"since {minute(key.created)}{end}"


def _state(row: Owner) -> str:
    if not row.keys:
        return "none"
    key = row.keys[-1]
    return f"{in_groups(key.fingerprint[:16])} {_times(key)}"
