"""The owner's view of a run on standard error: messages and progress, or JSON objects."""

import sys
from contextlib import AbstractContextManager
from typing import Protocol

import structlog
from rich.console import RenderableType
from rich.prompt import Confirm

from moerge.progress import LogProgress, Progress, TerminalProgress, Tracker
from moerge.terminal import Screen
from moerge_workers.watching.status import Status


class View(Protocol):
    """The display of a run's messages, progress and questions."""

    def say(self, text: str) -> None: ...

    def track(self, title: str, total: int, unit: str) -> AbstractContextManager[Tracker]:
        """As `Progress.track`."""

    def show(self, part: RenderableType) -> None:
        """Show a longer text or table."""

    def ask(self, question: str) -> bool | None:
        """The owner's answer; None without a terminal."""


class Lines:
    """Lines, with bars on a terminal."""

    def __init__(self) -> None:
        self.console = Screen(stderr=True)

    def say(self, text: str) -> None:
        self.console.out(text, highlight=False)

    def track(self, title: str, total: int, unit: str) -> AbstractContextManager[Tracker]:
        terminal = sys.stderr.isatty() and not self.console.is_dumb_terminal
        progress: Progress = TerminalProgress(self.console) if terminal else LogProgress(self.say)
        return progress.track(title, total, unit)

    def show(self, part: RenderableType) -> None:
        self.console.print(part)

    def ask(self, question: str) -> bool | None:
        return Confirm.ask(question, console=self.console) if sys.stdin.isatty() else None


class Json:
    """Lines of the log, each with the figures of the run."""

    def __init__(self, status: Status) -> None:
        self._status, self._log = status, structlog.get_logger("moerge")

    def say(self, text: str) -> None:
        state = self._status.state
        figures = state.progress.model_dump(mode="json", exclude_none=True)
        self._log.info(text, body=state.body, sent_bytes=state.sent, **figures)

    def track(self, title: str, total: int, unit: str) -> AbstractContextManager[Tracker]:
        return LogProgress(self.say).track(title, total, unit)

    def show(self, part: RenderableType) -> None:
        """Nothing: the previous message names the file."""

    def ask(self, question: str) -> None:
        """No answer: the owner answers with `moerge worker approve`."""
