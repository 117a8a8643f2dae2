"""Long work at the coordinator, by the id of its durable workflow."""

from enum import StrEnum

from moerge_proto.messages import Message
from moerge_proto.problems import Problem


class WorkflowState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Workflow(Message):
    """`result` names what was made: an expert's or a trunk's digest, or a version's number."""

    id: str
    state: WorkflowState
    result: str | None = None
    problem: Problem | None = None
