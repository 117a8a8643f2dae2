"""Output for people and programs: tables, fitted to a terminal or uncut in pipes, or JSON."""

from typing import Annotated

import typer
from pydantic_core import to_json
from rich.console import Console

_WHOLE = 10_000  # columns
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


def output() -> Console:
    """Standard output. In a pipe or a file, nothing is cut or wrapped."""
    console = Console()
    return console if console.is_terminal else Console(width=_WHOLE)


def show_json(content: object) -> None:
    typer.echo(to_json(content, indent=1))
