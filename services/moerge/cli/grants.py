"""`moerge expert grant …`: who may use an owner's expert."""

from datetime import datetime
from typing import Annotated

import typer

from moerge.cli.common import Coordinator, Secret, Yes, confirm, minute, show, show_list
from moerge.client.client import Client
from moerge.settings import valid
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.grants import ALL, Decided, Grant, NewGrant

Of = Annotated[str, typer.Argument(metavar="DOMAIN", help="The domain of your expert.")]
To = Annotated[str, typer.Option(help=f"The name of a reader's token, or of a group of them; {ALL}: all readers.")]


def grant(
    domain: Of,
    to: To,
    coordinator: Coordinator,
    secret: Secret,
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="End, in UTC. Default: until you revoke it."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Let a reader use your expert: pull versions with its MLPs (owner). It holds for the domain's later experts, too.

    Your first decision ends the federation's default for the domain. At the end of a grant the reader's next pull has
    no MLPs of the expert; what it has pulled before can't be taken back.

    Example: moerge expert grant law --to clinic --until 2027-06-30
    """
    end = valid(NewGrant, {"until": None if until is None else f"{until.isoformat()}Z"}).until
    with Client(coordinator, secret) as client:
        before = client.readers(domain)
        closes = "" if before.own_rule or not before.readers else f" Until now all readers could use {domain}."
        ends = "you revoke it" if end is None else minute(end)
        kept = "What is pulled until then can't be taken back."
        confirm(f"{to} may use the expert of {domain} until {ends}.{closes} {kept}", yes=yes)
        done = client.grant(domain, to, end)
    echo(f"{domain} is granted to {to}. {_readers(done)}")


def revoke(domain: Of, to: To, coordinator: Coordinator, secret: Secret, yes: Yes = False) -> None:
    """End a grant now (owner). Readers' next pulls have no MLPs of your expert; what they have pulled stays with them.

    Example: moerge expert revoke law --to clinic
    """
    with Client(coordinator, secret) as client:
        confirm(f"{to} may no longer use the expert of {domain}. What was pulled before can't be taken back.", yes=yes)
        done = client.revoke_grant(domain, to)
    echo(f"{domain} is no longer granted to {to}. {_readers(done)}")
    if done.still:
        echo(f"{to} may still use it, because it is granted to: {', '.join(done.still)}", err=True)


def _readers(done: Decided) -> str:
    return f"Readers who may use it now: {', '.join(done.readers) or 'none'}."


def grants(
    coordinator: Coordinator,
    secret: Secret,
    history: Annotated[bool, typer.Option("--history", help="List all decisions, with those that ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """List who may use which expert: all for operators, their own for owners; for readers, those that they may use.

    Example: moerge expert grants
    """
    with Client(coordinator, secret) as client:
        role = client.identity().role
        if history:
            columns = ["when", "domain", "owner", "", "reader", "until"]
            show_list("Decisions, times in UTC", columns, client.grants(), _decision, as_json=as_json)
            return
        if role == "reader":
            columns = ["domain", "until"]
            show_list(
                "Experts that you may use",
                columns,
                client.usable(),
                lambda row: [row.domain, _end(row.until)],
                as_json=as_json,
            )
            return
        domains = client.identity().domains if role == "owner" else sorted({row.domain for row in client.experts()})
        rows = [client.readers(domain) for domain in domains]
    if as_json:
        show_json(rows)
        return
    lines = []
    for row in rows:
        granted = [f"{item.reader} until {_end(item.until)}" for item in row.readers]
        rule = "its owner's" if row.own_rule else "the default"
        lines.append([row.domain, row.owner, rule, "; ".join(granted) or "none", ", ".join(row.people) or "none"])
    show("Readers of experts", ["domain", "owner", "rule", "granted to", "readers now"], lines)


def _decision(row: Grant) -> list[str]:
    done = "granted to" if row.granted else "revoked from"
    until = minute(row.until) if row.until is not None else ""
    return [f"{row.created:%Y-%m-%d %H:%M}", row.domain, row.owner, done, row.reader, until]


def _end(until: datetime | None) -> str:
    return "revoked" if until is None else minute(until)
