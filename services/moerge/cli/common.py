"""What the commands share: whom they speak to, how they ask, wait and show tables."""

import sys
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge_proto.workflows import Workflow

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
    Console().print(table)


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
