"""The demo's stages on the terminal: titles, times and commands."""

import os
import shlex
import time
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from moerge.terminal import Screen

STAGES = (
    "Train a small seed model, and four experts from it",
    "Start a coordinator; three owners join",
    "Publish a version of three experts",
    "Evaluate it; publish a version of four experts",
    "Score that version beside other ways to merge",
)
INTRODUCTION = (
    "Four owners each have a language model for one domain. moerge makes them one Mixture-of-Experts model;"
    " every owner's text stays with its worker."
)


class Stages:
    def __init__(self, console: Screen) -> None:
        self._console, self._done = console, False
        self._begun: dict[int, float] = {}

    def introduce(self) -> None:
        self._console.print("\nStages, about two minutes on two cores (less where an earlier run was stopped):\n")
        for number, title in enumerate(STAGES, 1):
            self._console.print(f"  {number}. {title}", highlight=False)
        self._console.print()

    def begin(self, number: int) -> None:
        self._begun[number] = time.monotonic()
        self._console.rule(f"[bold]Stage {number} of {len(STAGES)}: {STAGES[number - 1]}", align="left")

    def finish(self) -> None:
        """Prints the seconds of each stage."""
        self._done = True
        ends = [*list(self._begun.values())[1:], time.monotonic()]
        self._console.print()
        for (number, begun), end in zip(self._begun.items(), ends, strict=True):
            self._console.print(f"  {number}. {STAGES[number - 1]:<52}{end - begun:5.0f} s", highlight=False)

    def show(self, content: RenderableType) -> None:
        self._console.print(content, highlight=False)

    def tell(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def command(self, *words: object) -> None:
        """Prints a user's equivalent command, dim, on one line."""
        line = shlex.join(["moerge", *map(_shown, words)])
        cut = self._console.is_terminal
        self._console.print(
            Text(f"$ {line}", style="dim"), no_wrap=True, overflow="ellipsis" if cut else "ignore", crop=cut
        )

    def interrupted(self) -> None:
        if not self._done:
            self.tell("\nStopped. Run the same command again: it continues from here.")


def _shown(word: object) -> str:
    """The word; a path below the working directory becomes relative."""
    if isinstance(word, Path) and word.is_relative_to(Path.cwd()):
        return os.path.relpath(word)
    return str(word)
