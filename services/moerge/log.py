"""The log of a long-running process, on standard error: one JSON object a line, or readable lines."""

import logging

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import Processor


def configure(*processors: Processor, json: bool) -> None:
    """Sends all log lines of this process, including libraries' and warnings, to standard error.

    The processors are the last ones for every line, before it is written; with `json` a line is a JSON object.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    plain: list[Processor] = [*processors, structlog.dev.ConsoleRenderer()]
    objects: list[Processor] = [
        structlog.processors.format_exc_info,
        *processors,
        structlog.processors.JSONRenderer(),
    ]
    chain = [ProcessorFormatter.remove_processors_meta, *(objects if json else plain)]
    handler = logging.StreamHandler()
    handler.setFormatter(ProcessorFormatter(foreign_pre_chain=shared, processors=chain))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.captureWarnings(True)
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
