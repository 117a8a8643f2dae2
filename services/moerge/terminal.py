"""Output for people and programs: tables, fitted to a terminal or uncut in pipes, lines, or JSON.

All output of commands passes here, where control characters of names and messages are replaced.
"""

from collections.abc import Iterable
from typing import Annotated

import typer
from pydantic_core import to_json
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from moerge.printable import printable

_WHOLE = 10_000  # columns
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


class Screen(Console):
    """A console that replaces control characters in what it shows; colours and bars are its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def output() -> Screen:
    """Standard output. In a pipe or a file, nothing is cut or wrapped."""
    screen = Screen()
    return screen if screen.is_terminal else Screen(width=_WHOLE)


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """A line on standard output, or with `err` on standard error."""
    typer.echo(printable(str(text)), err=err, nl=nl)


def show_json(content: object) -> None:
    echo(to_json(content, indent=1).decode())
