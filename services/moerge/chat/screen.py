"""A conversation on a terminal, in a pipe, or as JSON."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic_core import to_json
from rich.text import Text

from moerge.chat.replies import Piece
from moerge.terminal import Screen, echo, output

_COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "red", "bright_blue", "bright_green")
"""Colours of experts by slot; a terminal has its own shade of each. Further experts have the first ones again."""


class Lines:
    """Pieces as plain text, or in their experts' colours on a terminal that has colours.

    Legend and shares are on standard error.
    """

    def __init__(self, experts: Sequence[str]) -> None:
        self._experts = experts
        self._styles = {name: _COLOURS[slot % len(_COLOURS)] for slot, name in enumerate(experts)}
        self._screen, self._notes = output(), Screen(stderr=True)

    def legend(self) -> None:
        if _coloured(self._screen):
            self._note("", dict.fromkeys(self._experts, ""))

    def show(self, piece: Piece) -> None:
        if _coloured(self._screen):
            self._screen.print(Text(piece.text, self._styles[piece.expert]), end="", soft_wrap=True)
        else:
            echo(piece.text, nl=False)

    def end(self, reply: str, counts: Counter[str]) -> None:
        echo("")

    def shares(self, counts: Mapping[str, int]) -> None:
        total = max(1, sum(counts.values()))
        self._note(
            f"{sum(counts.values()):,} tokens: ",
            {name: f" {100 * counts[name] / total:.0f} %" for name in self._experts},
        )

    def _note(self, before: str, after: Mapping[str, str]) -> None:
        names = Text(", ").join(Text(name + text, self._styles[name]) for name, text in after.items())
        line = Text.assemble(before, names)
        if _coloured(self._notes):
            self._notes.print(line, soft_wrap=True)
        else:
            echo(line.plain, err=True)


class Objects:
    """A JSON object on a line for each piece and each reply."""

    def legend(self) -> None: ...

    def show(self, piece: Piece) -> None:
        _object({"text": piece.text, "expert": piece.expert, "layers": piece.layers})

    def end(self, reply: str, counts: Counter[str]) -> None:
        _object({"reply": reply, "tokens": counts})

    def shares(self, counts: Mapping[str, int]) -> None: ...


def asked() -> str | None:
    """The next line of standard input; None at its end. A terminal shows a prompt."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _coloured(screen: Screen) -> bool:
    return screen.is_terminal and screen.color_system is not None and not screen.no_color


def _object(content: object) -> None:
    echo(to_json(content).decode())
