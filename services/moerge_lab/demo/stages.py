"""The demo's stages on the terminal: titles, times, state and commands."""

import json
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from moerge.files import atomic_file
from moerge_proto.options import RecipeName

STAGES = (
    ("Train a small seed model, and four experts from it", "5 minutes"),
    ("Start a coordinator; three owners join", "15 seconds"),
    ("Merge a trunk; publish a version of three experts", "1 minute"),
    ("The fourth owner joins; publish a version of four", "1 minute"),
    ("Score that version beside other ways to merge", "1 minute"),
)
"""Title, and estimated time on two cores."""
INTRODUCTION = (
    "Four owners each have a language model for one domain. moerge makes them one Mixture-of-Experts model;"
    " every owner's text stays with its worker."
)


class Stages:
    """The stages of one run.

    Args:
        home: the demo's; a file in it stores the finished stages.
        trained: whether the experts exist; without them no stage counts as finished.
    """

    def __init__(self, home: Path, recipe: RecipeName, console: Console, *, trained: bool) -> None:
        self._path, self._console = home / f"stages-{recipe}.json", console
        kept = json.loads(self._path.read_text(encoding="utf-8")) if trained and self._path.is_file() else []
        self._before = {1, *kept} if trained else set()
        self._done = set[int]()

    def introduce(self) -> None:
        """Prints every stage with its estimated time."""
        self._console.print("\nStages, with estimated times on two cores:\n")
        for number, (title, time) in enumerate(STAGES, 1):
            told = "done in an earlier run" if number in self._before else time
            self._console.print(f"  {number}. {title:<52}{told}", highlight=False)
        self._console.print()

    def begin(self, number: int) -> None:
        """Prints a stage's title; marks the stages before it as done."""
        self._finish(range(1, number))
        self._console.rule(f"[bold]Stage {number} of {len(STAGES)}: {STAGES[number - 1][0]}", align="left")

    def finish(self) -> None:
        """Marks all stages as done."""
        self._finish(range(1, len(STAGES) + 1))

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
        """Prints how to continue, unless all stages are done."""
        if len(self._done) < len(STAGES):
            self.tell("\nStopped. Run the same command again: it continues from here.")

    def _finish(self, numbers: Iterable[int]) -> None:
        self._done |= set(numbers)
        if self._done - {1}:
            with atomic_file(self._path) as out:
                out.write(json.dumps(sorted(self._before | self._done)).encode())


def _shown(word: object) -> str:
    """The word; a path below the working directory becomes relative."""
    if isinstance(word, Path) and word.is_relative_to(Path.cwd()):
        return os.path.relpath(word)
    return str(word)
