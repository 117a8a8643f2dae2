"""The process' log: one JSON object a line on standard error, or readable lines where that is a terminal.

Lines name the request and the workflow that they belong to. Neither tokens nor bodies are ever logged.
"""

import logging
import sys

import structlog
from dbos import DBOS
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, WrappedLogger

from moerge.progress import LogProgress, Progress
from moerge.progress import progress as progress_of_terminal

_QUIET = ("alembic", "httpx", "dbos")
_log = structlog.get_logger("moerge")


def _add_workflow(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if (workflow := DBOS.workflow_id) is not None:
        event["workflow"] = workflow
    return event


def configure() -> None:
    """Sends all log lines of this process, those of uvicorn and DBOS too, to standard error."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _add_workflow,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    lines: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if sys.stderr.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        ProcessorFormatter(foreign_pre_chain=shared, processors=[ProcessorFormatter.remove_processors_meta, *lines])
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.captureWarnings(True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("dbos").addHandler(logging.NullHandler())  # else it makes a handler of its own


def progress() -> Progress:
    """Bars on a terminal, lines in the log elsewhere."""
    return progress_of_terminal() if sys.stderr.isatty() else LogProgress(_log.info)
