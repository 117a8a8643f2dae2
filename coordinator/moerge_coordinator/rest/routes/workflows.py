"""How long work goes."""

from typing import Annotated

from fastapi import APIRouter, Path, Request

from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import Operator
from moerge_coordinator.rest.lists import PAGE, After
from moerge_coordinator.workflows.workflows import Workflows
from moerge_proto.messages import Page
from moerge_proto.problems import ProblemType
from moerge_proto.workflows import Workflow, WorkflowEntry, WorkflowState

router = APIRouter(prefix="/workflows", tags=["workflows"])
Id = Annotated[str, Path(alias="id", pattern="^[a-z0-9-]{1,200}$")]


def _workflows(request: Request) -> Workflows:
    workflows: Workflows = request.app.state.workflows
    return workflows


def _found(request: Request, id_: str) -> Workflow:
    workflow = _workflows(request).find(id_)
    if workflow is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"no workflow {id_!r}")
    return workflow


@router.get("")
def list_workflows(request: Request, caller: Operator, after: After = 0) -> Page[WorkflowEntry]:
    """Lists workflows, newest first; `after` so many of them. Role: operator."""
    found = _workflows(request).entries(after, PAGE + 1)
    return Page(items=found[:PAGE], next=after + PAGE if len(found) > PAGE else None)


@router.get("/{id}")
def show_workflow(request: Request, caller: Operator, id_: Id) -> Workflow:
    """How a workflow goes. Role: operator."""
    return _found(request, id_)


@router.post("/{id}/retry", status_code=202)
def retry(request: Request, caller: Operator, id_: Id) -> Workflow:
    """Starts a workflow that failed anew, with what it was given; what it had made, it finds. Role: operator."""
    found = _found(request, id_)
    started = _workflows(request).retry(id_)
    if started is None:
        what = f"workflow {id_!r} is {found.state.value}"
        todo = (
            "wait for it"
            if found.state is WorkflowState.RUNNING
            else "there is nothing to do; register an expert again"
        )
        raise RefusedError(ProblemType.CONFLICT, what, where="id", todo=todo)
    return started
