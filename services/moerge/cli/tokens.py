"""`moerge token …`"""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from moerge.cli.common import Coordinator, Secret, Yes, confirm, minute, show_list
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.settings import valid
from moerge.terminal import AsJson, echo
from moerge_proto.owners import MONTH_SECONDS, NewToken, Role, TokenEntry

app = typer.Typer(no_args_is_help=True, help="Bearer tokens (operator).")
Id = Annotated[int, typer.Argument(help="The token's id; see `moerge token list`.")]


@app.command("add")
def add(
    role: Annotated[
        Role,
        typer.Argument(help="operator; reader, to pull versions; metrics, to scrape; owner, with --owner."),
    ],
    coordinator: Coordinator,
    secret: Secret,
    owner: Annotated[str | None, typer.Option(help="The owner's name, for the role owner.")] = None,
    name: Annotated[str | None, typer.Option(help="The person who has it, for log and histories.")] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="A group of the reader, to which owners may grant experts; repeat.")
    ] = None,
    note: Annotated[str, typer.Option(help="The token's purpose, shown in the list.")] = "",
    days: Annotated[float | None, typer.Option(help="Days until it expires. Default: never.")] = None,
) -> None:
    """Print a new token.

    Example: moerge token add operator --name anna --days 90
    """
    try:
        expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
    except OverflowError as error:
        raise MoergeError(f"{days} days are too many", where="--days", todo="give fewer, or omit --days") from error
    fields = {"role": role, "owner": owner, "name": name, "groups": group or [], "note": note, "expires": expires}
    new = valid(NewToken, fields)
    with Client(coordinator, secret) as client:
        echo(client.add_token(new).secret)


@app.command("list")
def list_tokens(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """List tokens, including expired and revoked ones. Secrets are not stored, so they can't be shown.

    Example: moerge token list
    """
    columns = ["id", "role", "owner or name", "groups", "note", "made", "valid"]
    with Client(coordinator, secret) as client:
        show_list("Tokens", columns, client.tokens(), _line, as_json=as_json)


def _line(row: TokenEntry) -> list[str]:
    return [
        str(row.id),
        row.role.value,
        row.owner or row.name or "",
        ", ".join(row.groups),
        row.note,
        minute(row.created),
        _end(row),
    ]


def _end(row: TokenEntry) -> str:
    if row.revoked is not None:
        return f"revoked {minute(row.revoked)}"
    if row.expires is None:
        return "until revoked"
    return f"until {minute(row.expires)}" if row.expires > datetime.now(UTC) else f"expired {minute(row.expires)}"


@app.command("revoke")
def revoke(token: Id, coordinator: Coordinator, secret: Secret, yes: Yes = False) -> None:
    """Revoke a token immediately. The last valid operator token can't be revoked.

    Example: moerge token revoke 7
    """
    confirm(f"Token {token} is revoked immediately, and its users are refused.", yes=yes)
    with Client(coordinator, secret) as client:
        echo(f"token {token}: {_end(client.revoke_token(token))}")


@app.command("rotate")
def rotate(
    token: Id,
    coordinator: Coordinator,
    secret: Secret,
    overlap_seconds: Annotated[
        int, typer.Option(min=0, max=MONTH_SECONDS, help="Seconds until the old token expires.")
    ] = 0,
    yes: Yes = False,
) -> None:
    """Replace a token: print a new one with the same role, owner and note, and end the old one.

    Without an overlap, asks for confirmation first.

    Example: moerge token rotate 7 --overlap-seconds 3600
    """
    if not overlap_seconds:
        confirm(f"Token {token} ends immediately: its users are refused until they have the new one.", yes=yes)
    with Client(coordinator, secret) as client:
        echo(client.rotate_token(token, overlap_seconds).secret)
