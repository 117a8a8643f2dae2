"""Long work at the coordinator, by the id of its durable workflow."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from moerge_proto.messages import Message
from moerge_proto.problems import Problem

WorkflowKind = Literal["expert", "contribution", "trunk", "version"]
"""What a workflow makes."""


class WorkflowState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Workflow(Message):
    """`result` names what was made: the digest of an expert, a contribution or a trunk, or a version's number."""

    id: str
    state: WorkflowState
    result: str | None = None
    problem: Problem | None = None


class WorkflowEntry(Workflow):
    """A workflow as it is listed: what it makes, since when, and when it last changed."""

    kind: WorkflowKind
    created: datetime
    updated: datetime
