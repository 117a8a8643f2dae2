"""`moerge round …`"""

import time
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from moerge.cli.common import Coordinator, Secret, minute, show
from moerge.client.client import Client
from moerge.settings import valid
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.rounds import NewRound, Round, RoundChange, RoundState
from moerge_proto.statistics_file import Kind

app = typer.Typer(no_args_is_help=True, help="Rounds: requests for contributions by a deadline.")
Name = Annotated[str, typer.Argument(help="The round's name.")]
_LONGEST_PAUSE = 5.0
Hours = Annotated[float, typer.Option(help="Hours from now until the deadline.")]


def _in_hours(hours: float) -> datetime:
    return (datetime.now(UTC) + timedelta(hours=hours)).replace(microsecond=0)


def _reasons(client: Client) -> dict[str, str]:
    return {item.domain: f" ({item.obstacle.words})" for item in client.progress() if item.obstacle is not None}


def wait_for_contributions(client: Client, round: str | None) -> None:
    """Waits for `missing_domains`, or for the end of a round; prints the missing domains."""
    shown, pause = "", 0.1
    while missing := missing_domains(client, round):
        why = _reasons(client)
        line = f"Waiting for the contributions of {', '.join(domain + why.get(domain, '') for domain in missing)}."
        if line != shown:
            echo(line, err=True)
        shown = line
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def missing_domains(client: Client, round: str | None) -> list[str]:
    """The domains that have not contributed: of an open round, or of the current body."""
    if round is None:
        return client.contributors().missing
    row = client.round(round)
    return row.missing if row.state is RoundState.OPEN else []


def _show(client: Client, rows: list[Round]) -> None:
    why = _reasons(client)
    columns = ["name", "for", "deadline", "minimum", "contributed", "missing", "state"]
    lines = [
        [
            row.name,
            f"{row.kind} contributions",
            minute(row.deadline),
            f"{row.minimum} of {len(row.contributed) + len(row.missing)}",
            ", ".join(row.contributed),
            ", ".join(domain + why.get(domain, "") for domain in row.missing),
            row.state.value,
        ]
        for row in rows
    ]
    show("Rounds", columns, lines)


@app.command("open")
def open_round(
    name: Name,
    domains: Annotated[list[str], typer.Option("--domain", help="A domain to ask; repeat.")],
    coordinator: Coordinator,
    secret: Secret,
    hours: Hours = 24.0,
    minimum: Annotated[int | None, typer.Option(help="Required contributions at the deadline. Default: all.")] = None,
    kind: Annotated[Kind, typer.Option(help="The kind of contribution.")] = "router",
) -> None:
    """Ask domains for contributions under the current body. Then: moerge version solve --round NAME

    Example: moerge round open spring --domain law --domain art --minimum 1 --hours 48
    """
    fields = {"name": name, "kind": kind, "domains": domains, "minimum": minimum or len(domains)}
    new = valid(NewRound, {**fields, "deadline": _in_hours(hours)})
    with Client(coordinator, secret) as client:
        _show(client, [client.open_round(new)])


@app.command("list")
def list_rounds(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """List rounds, with the domains that have contributed and the missing ones.

    Example: moerge round list
    """
    with Client(coordinator, secret) as client:
        rows = list(client.rounds())
        if as_json:
            show_json(rows)
        else:
            _show(client, rows)


@app.command("change")
def change_round(
    name: Name,
    coordinator: Coordinator,
    secret: Secret,
    hours: Annotated[
        float | None, typer.Option(help="Hours from now until the new deadline. Default: unchanged.")
    ] = None,
    minimum: Annotated[
        int | None, typer.Option(help="Required contributions at the deadline. Default: unchanged.")
    ] = None,
) -> None:
    """Change a round's deadline or its minimum.

    Example: moerge round change spring --hours 24 --minimum 1
    """
    change = RoundChange(minimum=minimum, deadline=None if hours is None else _in_hours(hours))
    with Client(coordinator, secret) as client:
        _show(client, [client.change_round(name, change)])
