"""The state of workflows."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from moerge_coordinator.domain.owners import own_name
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.rest.auth import Anyone, Operator, Route
from moerge_coordinator.rest.lists import PAGE, After
from moerge_coordinator.rest.state import Coordinator
from moerge_proto.messages import Page
from moerge_proto.owners import Role
from moerge_proto.problems import ProblemType
from moerge_proto.workflows import Workflow, WorkflowEntry, WorkflowKind, WorkflowState

router = APIRouter(prefix="/workflows", tags=["workflows"], route_class=Route)
Id = Annotated[str, Path(alias="id", pattern="^[a-z0-9-]{1,200}$")]


@router.get("")
def list_workflows(
    state: Coordinator,
    caller: Operator,
    after: After = 0,
    kind: Annotated[WorkflowKind | None, Query(description="Only workflows of this kind.")] = None,
) -> Page[WorkflowEntry]:
    """Lists workflows, newest first, without the `after` first ones."""
    result = state.workflows.entries(after, PAGE + 1, kind)
    return Page(items=result[:PAGE], next=after + PAGE if len(result) > PAGE else None)


@router.get("/{id}")
def show_workflow(state: Coordinator, caller: Anyone, id_: Id) -> Workflow:
    """The state of a workflow; for an owner, only of its contributions, for a reader, only of parts of versions."""
    if caller.role is Role.READER:
        found = state.workflows.find_part(id_)
    else:
        found = state.workflows.find(id_, own_name(caller) if caller.role is Role.OWNER else None)
    return existing(found, f"workflow {id_!r}")


@router.post("/{id}/retry", status_code=202)
def retry(state: Coordinator, caller: Operator, id_: Id) -> Workflow:
    """Restarts a failed workflow with the same input; reuses its results."""
    result = existing(state.workflows.find(id_), f"workflow {id_!r}")
    started = state.workflows.retry(id_)
    if started is None:
        running = result.state is WorkflowState.RUNNING
        todo = "wait for it" if running else "there is nothing to do; its owner sends the files again"
        raise RefusedError(ProblemType.CONFLICT, f"workflow {id_!r} is {result.state.value}", where="id", todo=todo)
    return started
