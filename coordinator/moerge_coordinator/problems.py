"""Refusals and failures of the coordinator, as problems."""

from typing import TypeVar

import psycopg
from sqlalchemy.exc import TimeoutError as PoolTimeout

from moerge.errors import MoergeError
from moerge.files import is_of_full_disk
from moerge_proto.problems import Problem, ProblemType

R = TypeVar("R")


class RefusedError(MoergeError):
    """The coordinator refuses the request."""

    def __init__(
        self, kind: ProblemType, what: str, *, where: str = "", todo: str = "", retry_after: int | None = None
    ) -> None:
        super().__init__(what, where=where, todo=todo)
        self.kind = kind
        self.retry_after = retry_after  # seconds


def existing(item: R | None, name: str, where: str = "", todo: str = "") -> R:
    """The item, refused as not found if it is None; `name` describes it."""
    if item is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"no {name}", where=where, todo=todo)
    return item


def failure(error: Exception, request: str = "") -> Problem:
    """The problem of an internal error: storage full, no database, or unexpected; `request` is its id in the log."""
    cause = getattr(error, "orig", error)  # inside SQLAlchemy's errors
    if is_of_full_disk(cause) or isinstance(cause, psycopg.errors.DiskFull):
        todo = "tell its operator, and try again when there is space"
        return Problem.of(ProblemType.STORAGE_FULL, "the coordinator's storage is full", todo=todo)
    if str(getattr(cause, "sqlite_errorname", "")).startswith("SQLITE_BUSY") or isinstance(cause, PoolTimeout):
        return Problem.of(ProblemType.UNAVAILABLE, "the database is busy", todo="try again in a few seconds")
    if isinstance(cause, psycopg.OperationalError):
        return Problem.of(ProblemType.UNAVAILABLE, "the database doesn't answer", todo="try again in a minute")
    todo = f"tell its operator: the log has the cause{f', under request {request}' if request else ''}"
    return Problem.of(ProblemType.INTERNAL, f"the coordinator failed: {type(error).__name__}", todo=todo)
