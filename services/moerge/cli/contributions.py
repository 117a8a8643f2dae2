"""`moerge contribution …`"""

from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.cli.common import LEAST_DIGITS, Coordinator, Secret, Yes, confirm, show
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.statistics.kinds import CONTRIBUTIONS
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.contributions import Contribution
from moerge_proto.signatures import in_groups

app = typer.Typer(no_args_is_help=True, help="Contributions (operators; owners see their own).")


def _state(row: Contribution) -> str:
    if row.active and row.cohort is not None:
        return f"in cohort {row.cohort}"
    return "counts" if row.active else "withdrawn" if row.withdrawn else "superseded"


def _line(row: Contribution) -> list[str]:
    key = "unsigned" if row.fingerprint is None else in_groups(row.fingerprint[:8])
    place = [row.owner, row.split or "", (row.body or "")[:12]]
    rank = "" if row.effective_rank is None else f"{row.effective_rank:.1f}"
    amount = [f"{row.tokens:,}", f"{row.documents:,}", rank, decimal(row.size)]
    return [row.domain, *place, *amount, _state(row), key, row.digest]


@app.command("list")
def list_contributions(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """List contributions for routers and heads.

    Columns: key, the start of the signing key's fingerprint; rank, the effective rank of the grams (operators only).

    Example: moerge contribution list
    """
    amount = ["tokens", "documents", "rank", "size"]
    columns = ["domain", "owner", "split", "body", *amount, "state", "key", "digest"]
    with Client(coordinator, secret) as client:
        tables = {kind.name: [*client.contributions(kind.name)] for kind in CONTRIBUTIONS.values()}
    if as_json:
        show_json([row for rows in tables.values() for row in rows])
        return
    for kind, rows in tables.items():
        show(f"{kind.capitalize()} contributions", columns, [*map(_line, rows)])


@app.command("withdraw")
def withdraw(
    digest: Annotated[str, typer.Argument(help=f"The contribution's digest, or at least {LEAST_DIGITS} digits of it.")],
    coordinator: Coordinator,
    secret: Secret,
    yes: Yes = False,
) -> None:
    """Exclude a contribution from later versions.

    Example: moerge contribution withdraw 67b22c2264b8
    """
    if len(digest) < LEAST_DIGITS:
        problem = f"expected at least {LEAST_DIGITS} digits, found {digest!r}"
        raise MoergeError(problem, where="digest", todo="run: moerge contribution list")
    with Client(coordinator, secret) as client:
        every = (row for kind in CONTRIBUTIONS.values() for row in client.contributions(kind.name))
        rows = [row for row in every if row.digest.startswith(digest)]
        if len(rows) != 1:
            problem = f"{len(rows)} contributions begin with {digest!r}"
            raise MoergeError(problem, where="digest", todo="run: moerge contribution list")
        [row] = rows
        effect = CONTRIBUTIONS[row.kind].withdrawal
        confirm(f"Withdraw {row.kind} contribution {row.digest[:12]} of {row.domain}. {effect}", yes=yes)
        client.withdraw_contribution(row.digest)
    echo("Withdrawn: later versions exclude it.")
