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
"""The outcome of a step whose files were removed meanwhile: they are to be made again."""
PASSING = (ProblemType.STORAGE_FULL.urn, ProblemType.UNAVAILABLE.urn)
"""Types of problems that pass without a change of the input."""
P = ParamSpec("P")


class Work(DBOSConfiguredInstance):
    """One kind of long work. Its steps reach rows and files by the ports.

    Attributes:
        title: of the work, in the log.
    """

    title: str

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        super().__init__(INSTANCE)


S = TypeVar("S", bound=Work)


def telling_problems(step: Callable[Concatenate[S, P], object]) -> Callable[Concatenate[S, P], Outcome]:
    """A step that returns its result, or the problem of its input. Other errors break the workflow.

    Problems are returned, not raised, because a workflow that goes on after a crash gets them back as they were.
    """

    @wraps(step)
    def told(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        try:
            with self.ports.blobs.holding():
                return {"result": step(self, *args, **kwargs)}
        except MoergeError as error:
            _log.warning("%s failed: %s", self.title, error)
            return {"problem": error.problem().model_dump(mode="json")}
        except (OSError, SQLAlchemyError) as error:
            problem = failure(error)
            if problem.type not in PASSING:
                raise
            _log.warning("%s failed: %s", self.title, error)
            return {"problem": problem.model_dump(mode="json")}

    return told
