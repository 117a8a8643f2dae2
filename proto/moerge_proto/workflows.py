"""Long work at the coordinator, by the id of its durable workflow."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from moerge_proto.messages import Message
from moerge_proto.problems import Problem

WorkflowKind = Literal["expert", "contribution", "version"]


class WorkflowState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Workflow(Message):
    """A workflow.

    Attributes:
        result: the digest of an expert, or a contribution; or a version's number.
        problem: the reason if it failed.
    """

    id: str
    state: WorkflowState
    result: str | None = None
    problem: Problem | None = None


class WorkflowEntry(Workflow):
    """A workflow in a list, with its kind, its start and its last change."""

    kind: WorkflowKind
    created: datetime
    updated: datetime
