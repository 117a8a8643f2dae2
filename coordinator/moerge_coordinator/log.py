"""The process' log on standard error: one JSON object a line, or readable lines on a terminal.

Lines name their request and workflow. Tokens and bodies are never logged.
"""

import logging
import sys
from typing import Literal

import structlog
from dbos import DBOS
from structlog.typing import EventDict, WrappedLogger

from moerge import log
from moerge.progress import LogProgress, Progress
from moerge.progress import progress as progress_of_terminal

_log = structlog.get_logger("moerge")


def _add_workflow(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if (workflow := DBOS.workflow_id) is not None:
        event["workflow"] = workflow
    return event


def configure(level: Literal["debug", "info"] = "info") -> None:
    """Sends all log lines of this process, including uvicorn's and DBOS's, to standard error.

    `level` applies to our own lines.
    """
    log.configure(_add_workflow, json=not sys.stderr.isatty())
    set_level(level)
    for name in ("alembic", "dbos"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("dbos").addHandler(logging.NullHandler())  # prevents its own handler


def set_level(level: Literal["debug", "info"]) -> None:
    """Of our own lines."""
    logging.getLogger("moerge").setLevel(level.upper())


def progress() -> Progress:
    """Bars on a terminal, lines in the log elsewhere."""
    return progress_of_terminal() if sys.stderr.isatty() else LogProgress(_log.info)
