"""What the commands share: whom they speak to, how they ask, wait and show tables."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.terminal import output, show_json
from moerge_proto.workflows import Workflow

M = TypeVar("M")
Coordinator = Annotated[str, typer.Option(envvar="MOERGE_COORDINATOR", help="Address of the coordinator.")]
Secret = Annotated[str, typer.Option("--token", envvar="MOERGE_TOKEN", help="Bearer token; better in the environment.")]

Yes = Annotated[bool, typer.Option("--yes", help="Go on without asking; required where there is no terminal.")]


def confirm(consequence: str, *, yes: bool) -> None:
    """Asks on a terminal whether to go on. Elsewhere, `yes` is required.

    Raises:
        MoergeError: there is no terminal, and no `yes`.
        typer.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise MoergeError(f"not confirmed: {consequence}", todo="read this, and add --yes")
    typer.confirm(f"{consequence} Go on?", abort=True, err=True)


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*map(escape, row))
    output().print(table)


def show_list(
    title: str, columns: list[str], messages: Iterable[M], line: Callable[[M], list[str]], *, as_json: bool
) -> None:
    """Prints a line of a table for each message, or the messages as JSON."""
    if as_json:
        show_json(list(messages))
    else:
        show(title, columns, [line(each) for each in messages])


def the_one(kind: str, given: str, known: Iterable[str]) -> str:
    """The digest or id that is given, whole or by its first digits, as tables on a terminal cut it.

    Raises:
        MoergeError: none is known, or several.
    """
    start = given.rstrip("…")
    found = [name for name in dict.fromkeys(known) if name.startswith(start)]
    if given in found:
        return given
    if len(found) != 1 or not start:
        what = f"{len(found)} {kind}s begin with {start!r}" if found else f"no {kind} begins with {start!r}"
        raise MoergeError(what, where=kind, todo=f"see: moerge {kind} list")
    return found[0]


def wait(client: Client, workflow: Workflow) -> str:
    """The result of a workflow, once it is done; a terminal shows meanwhile that it runs.

    Raises:
        CoordinatorError: it failed; carries its problem.
    """
    with Console(stderr=True).status(f"{workflow.id} runs at the coordinator"):
        return client.wait(workflow)


def numbers(option: str, values: list[str]) -> dict[str, float]:
    """NAME=NUMBER pairs.

    Raises:
        MoergeError: one isn't.
    """
    numbers = {}
    for value in values:
        name, _, number = value.partition("=")
        try:
            numbers[name] = float(number)
        except ValueError as error:
            raise MoergeError(f"expected NAME=NUMBER, found {value!r}", where=option) from error
    return numbers


def digest_of_domain(option: str, domain: str, digests: Mapping[str, str]) -> str:
    if domain not in digests:
        known = ", ".join(sorted(digests)) or "none yet"
        raise MoergeError(f"no ready expert of {domain!r}", where=option, todo=f"the domains are: {known}")
    return digests[domain]
