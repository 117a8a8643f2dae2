"""Refusals and failures of the coordinator, as problems."""

import psycopg
from sqlalchemy.exc import TimeoutError as PoolTimeout

from moerge.errors import MoergeError
from moerge.files import is_of_full_disk
from moerge_proto.problems import Problem, ProblemType


class RefusedError(MoergeError):
    """The coordinator won't do what was asked."""

    def __init__(
        self, kind: ProblemType, what: str, *, where: str = "", todo: str = "", retry_after: int | None = None
    ) -> None:
        super().__init__(what, where=where, todo=todo)
        self.kind = kind
        self.retry_after = retry_after  # seconds


def failure(error: Exception, request: str = "") -> Problem:
    """The problem of an error of the coordinator's own: storage full, no database, or unexpected.

    `request` is the id under which the log has it.
    """
    cause = getattr(error, "orig", error)  # of what SQLAlchemy raises
    if is_of_full_disk(cause) or isinstance(cause, psycopg.errors.DiskFull):
        todo = "tell its operator; once there is room, the same call may be made again"
        return Problem.of(ProblemType.STORAGE_FULL, "the coordinator's storage is full", todo=todo)
    if str(getattr(cause, "sqlite_errorname", "")).startswith("SQLITE_BUSY") or isinstance(cause, PoolTimeout):
        return Problem.of(ProblemType.UNAVAILABLE, "the database is busy", todo="try again in some seconds")
    if isinstance(cause, psycopg.OperationalError):
        return Problem.of(ProblemType.UNAVAILABLE, "the database doesn't answer", todo="try again in a minute")
    todo = f"tell its operator: the log has the cause{f', under request {request}' if request else ''}"
    return Problem.of(ProblemType.INTERNAL, f"the coordinator failed: {type(error).__name__}", todo=todo)
