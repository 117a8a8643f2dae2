"""Common parts of the commands: options, confirmation, waiting and tables."""

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Annotated, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from moerge.bearer import bearer_token
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.printable import printable
from moerge.terminal import Screen, output, show_json
from moerge_proto.workflows import Workflow

M = TypeVar("M")
Coordinator = Annotated[str, typer.Option(envvar="MOERGE_COORDINATOR", help="Address of the coordinator.")]


def token_given(context: typer.Context, option: typer.CallbackParam, value: str | None) -> str | None:
    """The callback of an option for a token: it refuses one that can't be sent, by the name of option or variable."""
    if value is None:
        return None
    source = context.get_parameter_source(str(option.name))
    is_variable = source is not None and source.name == "ENVIRONMENT"
    return bearer_token(value, "MOERGE_TOKEN" if is_variable else "--token")


Secret = Annotated[
    str,
    typer.Option("--token", envvar="MOERGE_TOKEN", callback=token_given, help="Bearer token; safer as a variable."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation; required without a terminal.")]


def confirm(consequence: str, *, yes: bool) -> None:
    """Asks for confirmation on a terminal; without one, `yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise MoergeError(f"not confirmed: {consequence}", todo="to confirm, add --yes")
    typer.confirm(printable(f"{consequence} Continue?"), abort=True, err=True)


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*map(escape, row))
    output().print(table)


def show_list(
    title: str, columns: list[str], messages: Iterable[M], line: Callable[[M], list[str]], *, as_json: bool
) -> None:
    if as_json:
        show_json(list(messages))
    else:
        show(title, columns, [line(message) for message in messages])


_LISTS = {"expert": "expert list", "workflow": "workflow list", "body": "body", "key": "version keys"}
"""Kind of a thing -> the command that lists all."""
LEAST_DIGITS = 8
"""Digits of a digest that name what a command can't restore."""


def the_one(kind: str, given: str, known: Iterable[str]) -> str:
    """The known digest or id that is, or begins with, the given one; `…` at its end is ignored."""
    start = given.rstrip("…")
    result = [name for name in dict.fromkeys(known) if name.startswith(start)]
    if given in result:
        return given
    if len(result) != 1 or not start:
        what = f"{len(result)} {kind}s begin with {start!r}" if result else f"no {kind} begins with {start!r}"
        raise MoergeError(what, where=kind, todo=f"run: moerge {_LISTS[kind]}")
    return result[0]


def wait(client: Client, workflow: Workflow) -> str:
    """Waits for a workflow and returns its result; a terminal shows a spinner meanwhile."""
    with Screen(stderr=True).status(f"the coordinator is running {workflow.id}"):
        return client.wait(workflow)


def minute(when: datetime | None) -> str:
    return "never" if when is None else f"{when:%Y-%m-%d %H:%M} UTC"


def points(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1f}"


def digest_of_domain(option: str, domain: str, digests: Mapping[str, str]) -> str:
    if domain not in digests:
        known = ", ".join(sorted(digests)) or "none yet"
        raise MoergeError(f"no ready expert of {domain!r}", where=option, todo=f"use one of: {known}")
    return digests[domain]
