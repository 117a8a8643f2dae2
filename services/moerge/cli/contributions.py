"""`moerge contribution …`"""

from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.cli.common import Coordinator, Secret, show
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge_proto.contributions import Contribution, TrunkContribution
from moerge_proto.signatures import in_groups

app = typer.Typer(no_args_is_help=True, help="Contributions (operator; an owner its own).")


def _state(row: Contribution | TrunkContribution) -> str:
    return "counts" if row.active else "withdrawn" if row.withdrawn else "superseded"


def _key(row: Contribution | TrunkContribution) -> str:
    return "unsigned" if row.fingerprint is None else in_groups(row.fingerprint[:8])


@app.command("list")
def list_contributions(coordinator: Coordinator, secret: Secret) -> None:
    """Lists router contributions, then trunk contributions, each with the first digits of the key that signed it.

    Example: moerge contribution list
    """
    with Client(coordinator, secret) as client:
        rows = [
            [
                row.domain,
                row.split,
                row.trunk[:12],
                f"{row.tokens:,}",
                decimal(row.size),
                _state(row),
                _key(row),
                row.digest,
            ]
            for row in client.contributions()
        ]
        own = [
            [row.domain, "", "", f"{row.tokens:,}", decimal(row.size), _state(row), _key(row), row.digest]
            for row in client.trunk_contributions()
        ]
    columns = ["domain", "split", "trunk", "tokens", "size", "state", "key", "digest"]
    show("Router contributions", columns, rows)
    if own:
        show("Trunk contributions", columns, own)


@app.command("withdraw")
def withdraw(
    digest: Annotated[str, typer.Argument(help="The contribution's digest, or its first digits.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Takes a contribution out of every later version. Trunks that were solved from it are retired.

    Example: moerge contribution withdraw 67b22c2264b8
    """
    with Client(coordinator, secret) as client:
        routers = [row.digest for row in client.contributions() if row.digest.startswith(digest)]
        trunks = [row.digest for row in client.trunk_contributions() if row.digest.startswith(digest)]
        if len(routers) + len(trunks) != 1:
            found = f"{len(routers) + len(trunks)} contributions begin with {digest!r}"
            raise MoergeError(found, where="digest", todo="see: moerge contribution list")
        if routers:
            client.withdraw_contribution(routers[0])
        else:
            client.withdraw_trunk_contribution(trunks[0])
    typer.echo("Withdrawn: the next version is solved without it.")
