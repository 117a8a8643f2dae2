"""The base of all workflows, and of their steps."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from dbos import DBOSConfiguredInstance
from sqlalchemy.exc import SQLAlchemyError

from moerge.errors import MoergeError
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.problems import failure
from moerge_proto.problems import ProblemType

_log = logging.getLogger("moerge.coordinator")
INSTANCE = "coordinator"
Outcome = dict[str, Any]
GONE: Outcome = {"result": None}
"""The outcome of a step that must be repeated because its files were removed meanwhile."""
PASSING = (ProblemType.STORAGE_FULL.urn, ProblemType.UNAVAILABLE.urn)
"""Types of temporary problems."""
P = ParamSpec("P")


class Work(DBOSConfiguredInstance):
    """One kind of workflow. Its steps access rows and files through the ports; the log has its `title`."""

    title: str

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        super().__init__(INSTANCE)


S = TypeVar("S", bound=Work)


def telling_problems(step: Callable[Concatenate[S, P], object]) -> Callable[Concatenate[S, P], Outcome]:
    """A step that returns its result, or the problem of its input. Other errors fail the workflow.

    Problems are returned, not raised, because a workflow that resumes after a crash gets them back unchanged.
    """

    @wraps(step)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        try:
            with self.ports.blobs.holding():
                return {"result": step(self, *args, **kwargs)}
        except (MoergeError, OSError, SQLAlchemyError) as error:
            problem = error.problem() if isinstance(error, MoergeError) else failure(error)
            if not isinstance(error, MoergeError) and problem.type not in PASSING:
                raise
            _log.warning("%s failed: %s", self.title, error)
            return {"problem": problem.model_dump(mode="json")}

    return run
