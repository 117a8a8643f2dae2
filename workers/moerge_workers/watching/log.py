"""The worker's log with `log_format = "json"`: each line on standard error is a JSON object without private names."""

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import structlog
import typer
from structlog.typing import EventDict, WrappedLogger

from moerge import log
from moerge.errors import MoergeError
from moerge.files import user_path

_logger = structlog.get_logger("moerge")
_ENDS = r"(?=, (?:line|row|record|after)\b|: |['\"]|\n|$)"
"""The text that can follow a file's name in a message."""


def configure(sources: Sequence[str]) -> None:
    """Send all lines of this process through the log, without names of files under the data's `sources`.

    Import libraries that add handlers before this call.
    """
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
    roots = "|".join(re.escape(root) for root in map(_root, sources))
    names = re.compile(rf"(?:{roots}).*?{_ENDS}")

    def hide(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        return {
            key: names.sub("(a data file)", value) if sources and isinstance(value, str) else value
            for key, value in event.items()
        }

    log.configure(hide, json=True)
    sys.excepthook = _log_failure


def _root(source: str) -> str:
    """The common prefix of all files of a path, glob or URL."""
    fixed = re.split(r"[*?\[]", source.removeprefix("file://"))[0]
    return fixed if "://" in fixed else str(user_path(fixed).absolute())


def _log_failure(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _logger.critical("failed", exc_info=(kind, error, trace))


@contextmanager
def logging_errors() -> Iterator[None]:
    """Log an expected error as one line, and end the command with 1."""
    try:
        yield
    except MoergeError as error:
        _logger.error(error.what, where=error.where, todo=error.todo)
        raise typer.Exit(1) from error
