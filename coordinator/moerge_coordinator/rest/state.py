"""The routes' shared state, made by the lifespan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, FastAPI, Request

from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.tokens import LastUses
from moerge_coordinator.metrics import Metrics
from moerge_coordinator.rest.demands import Waits
from moerge_coordinator.workflows.runner import Workflows


@dataclass
class Traffic:
    """Running calls, whether new ones are accepted, and whether this process runs the workflows."""

    running: int = 0
    stopping: bool = False
    leading: bool = False


@dataclass(frozen=True, kw_only=True)
class State(Ports):
    """A serving coordinator.

    Attributes:
        checks: name of a part -> raises an error unless it works.
    """

    last_uses: LastUses
    workflows: Workflows
    metrics: Metrics
    traffic: Traffic
    checks: Mapping[str, Callable[[], object]]
    waits: Waits


def state_of(app: FastAPI) -> State:
    return cast(State, app.state.coordinator)


def _state(request: Request) -> State:
    return state_of(request.app)


Coordinator = Annotated[State, Depends(_state)]
