"""Progress of long work: a bar with rate and estimate on a terminal, log lines with the same figures elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.filesize import decimal
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from moerge.terminal import Screen, echo

LOG_SECONDS = 5.0


class Tracker(Protocol):
    def advance(self, n: int) -> None:
        """Adds `n` finished units."""


class Progress(Protocol):
    def track(self, title: str, total: int, unit: str) -> AbstractContextManager[Tracker]:
        """Shows work of `total` units while the context is open. Unit "B" is shown as bytes."""


def amount(value: float, unit: str) -> str:
    if unit == "B":
        return decimal(int(value))
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        unit = str(task.fields["unit"])
        mean = task.completed / task.elapsed if task.elapsed else None  # of a bar with a single step
        speed = task.finished_speed or task.speed or mean
        return Text(f"{amount(speed, unit)}/s" if speed else "", style="cyan")


class TerminalProgress:
    def __init__(self, console: Screen) -> None:
        self._console = console

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[Tracker]:
        columns = (
            TextColumn("{task.description:<30}"),
            BarColumn(bar_width=18),
            TextColumn("{task.percentage:>3.0f}%"),
            _Rate(Column(no_wrap=True)),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        with Bars(*columns, console=self._console) as bars:
            task = bars.add_task(title, total=total, unit=unit)

            class Advance:
                def advance(self, n: int) -> None:
                    bars.advance(task, n)

            yield Advance()


def _print(line: str) -> None:
    echo(line, err=True)


class LogProgress:
    """A line every few seconds, and one at the end; to `say`, by default on standard error."""

    def __init__(self, say: Callable[[str], None] = _print) -> None:
        self._say = say

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[Tracker]:
        line = _Line(title, total, unit, self._say)
        yield line
        line.say()


class _Line:
    def __init__(self, title: str, total: int, unit: str, say: Callable[[str], None]) -> None:
        self._title, self._total, self._unit, self._say = title, total, unit, say
        self._done = 0
        self._start = self._said = time.monotonic()

    def advance(self, n: int) -> None:
        self._done += n
        if time.monotonic() - self._said >= LOG_SECONDS:
            self.say()

    def say(self) -> None:
        self._said = time.monotonic()
        seconds = max(self._said - self._start, 1e-9)
        rate = self._done / seconds
        left = (self._total - self._done) / rate if rate else float("inf")
        share = 100 * self._done / self._total if self._total else 100
        end = f"{seconds:.0f} s" if self._done >= self._total else f"{left:.0f} s left"
        self._say(f"{self._title}: {share:.0f} %, {amount(rate, self._unit)}/s, {end}")


def progress() -> Progress:
    """Progress on standard error: bars on a terminal, lines elsewhere."""
    console = Screen(stderr=True)
    return TerminalProgress(console) if console.is_terminal else LogProgress()


class NoProgress:
    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator["NoProgress"]:
        yield self

    def advance(self, n: int) -> None:
        pass
