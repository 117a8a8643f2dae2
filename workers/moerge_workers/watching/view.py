"""The owner's view of a run: live on a terminal, lines elsewhere, or JSON objects."""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

from moerge.progress import LogProgress, Tracker, amount
from moerge_proto.progress import Stage
from moerge_workers.watching.status import State, Status

_SLOTS = 8  # with their own line
_BAR = 20


class View(Protocol):
    """The display of a run's messages, progress and questions."""

    def say(self, text: str) -> None:
        """Show one message."""

    def track(self, title: str, total: int, unit: str) -> AbstractContextManager[Tracker]:
        """Show work, as `Progress.track` does."""

    def show(self, part: RenderableType) -> None:
        """Show a longer text or table."""

    def ask(self, question: str) -> bool | None:
        """The owner's answer; None without a terminal."""


class Lines:
    """Lines on standard error."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def track(self, title: str, total: int, unit: str) -> AbstractContextManager[Tracker]:
        return LogProgress(self.say).track(title, total, unit)

    def show(self, part: RenderableType) -> None:
        self.console.print(part)

    def ask(self, question: str) -> bool | None:
        return Confirm.ask(question, console=self.console) if sys.stdin.isatty() else None


class Json:
    """Lines of the log, each with the figures of the run."""

    def __init__(self, status: Status) -> None:
        import structlog

        self._status, self._log = status, structlog.get_logger("moerge")

    def say(self, text: str) -> None:
        state = self._status.state
        figures = state.progress.model_dump(mode="json", exclude_none=True)
        self._log.info(text, trunk=state.trunk, sent_bytes=state.sent, **figures)

    def track(self, title: str, total: int, unit: str) -> AbstractContextManager[Tracker]:
        return LogProgress(self.say).track(title, total, unit)

    def show(self, part: RenderableType) -> None:
        """Nothing: the previous message names the file."""

    def ask(self, question: str) -> None:
        """No answer: the owner answers with `moerge worker approve`."""


@dataclass
class _Work:
    """Work in progress: units done since `begin`."""

    title: str
    total: int
    unit: str
    begin: float
    done: int = 0

    def advance(self, n: int) -> None:
        self.done += n


class Terminal(Lines):
    """A live view at the foot of a terminal, with the messages above it."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self._status, self._works = status, list[_Work]()
        self._live = Live(self, console=self.console, transient=True, refresh_per_second=4)

    @contextmanager
    def shown(self) -> Iterator["Terminal"]:
        """Context that shows the view, and restores the terminal."""
        with self._live:
            yield self

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[Tracker]:
        work = _Work(title, total, unit, time.monotonic())
        self._works.append(work)
        try:
            yield work
        finally:
            self._works.remove(work)
        self.say(f"{title}: done in {timedelta(seconds=round(time.monotonic() - work.begin))}")

    def ask(self, question: str) -> bool | None:
        self._live.stop()
        try:
            return super().ask(question)
        finally:
            self._live.start()

    def __rich__(self) -> RenderableType:
        state = self._status.state
        head = f"{state.domain}: {state.stage}" + (f", trunk {state.trunk[:12]}" if state.trunk else "")
        sent = ", ".join(f"{kind} {decimal(size)}" for kind, size in sorted(state.sent.items()))
        foot = [*_slots(state), f"sent from this home: {sent or 'nothing'}"]
        bars = [_bar(work, state) for work in list(self._works)]
        return Group(_line(head), *bars, *map(_line, foot))


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _bar(work: _Work, state: State) -> RenderableType:
    """One line: title, bar, share, rate, time left; estimated from finished shards while computing."""
    share = 100 * work.done // work.total if work.total else 100
    rate = work.done / max(time.monotonic() - work.begin, 1e-9)
    left = round((work.total - work.done) / rate) if rate else None
    if state.stage is Stage.COMPUTING and work.unit == "tokens":
        rate, left = state.tokens_per_second, state.seconds_left
    line = Table.grid(padding=(0, 1))
    for justify in ("left", "left", "right", "right", "right"):
        line.add_column(no_wrap=True, overflow="ellipsis", justify=justify)
    bar = ProgressBar(work.total, work.done, width=_BAR)
    pace = f"{amount(rate, work.unit)}/s" if rate else ""
    time_left = "" if left is None else f"{timedelta(seconds=left)}"
    line.add_row(Text(f"{work.title:.30}"), bar, f"{share} %", pace, time_left)
    return line


def _slots(state: State) -> list[str]:
    if state.stage is not Stage.COMPUTING:
        return []
    lines = [f"shards: {state.shards_done:,} of {state.shards_total:,}"]
    slots = sorted(state.slots.items())
    shown = slots if len(slots) <= _SLOTS else slots[: _SLOTS - 1]
    lines += [f"  slot {number}, {slot.device}: {_rate(slot.tokens_per_second)}" for number, slot in shown]
    if not slots:
        lines.append("  Ray and its actors are starting")
    if rest := slots[len(shown) :]:
        lines.append(f"  {len(rest)} more slots: {_rate(sum(slot.tokens_per_second for _, slot in rest))}")
    return lines


def _rate(tokens: float) -> str:
    return f"{amount(tokens, 'tokens')}/s" if tokens else "no shard finished yet"


@contextmanager
def view(log_format: Literal["text", "json"], status: Status) -> Iterator[View]:
    """The view for standard error and the settings."""
    if log_format == "json":
        yield Json(status)
    elif sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal:
        with Terminal(status).shown() as terminal:
            yield terminal
    else:
        yield Lines()
