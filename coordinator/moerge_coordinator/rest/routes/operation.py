"""Health, readiness, figures and settings, for the coordinator's operator."""

from typing import Literal

from dbos._error import DBOSException
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from pydantic import JsonValue
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from moerge.build import build
from moerge.errors import MoergeError
from moerge_coordinator import metrics
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import Operator, Route, Scraper
from moerge_coordinator.rest.state import Coordinator
from moerge_proto.messages import Message
from moerge_proto.problems import ProblemType

router = APIRouter(tags=["operation"], route_class=Route)


class Health(Message):
    """An answer of this build. `commit` is None if unknown."""

    status: Literal["ok"] = "ok"
    version: str
    commit: str | None


@router.get("/healthz")
async def healthz() -> Health:
    """Answers while the process runs. Needs no token."""
    return Health(**vars(build()))


@router.get("/readyz", responses={503: {}})
def readyz(state: Coordinator) -> Health:
    """Answers while the coordinator accepts calls: database, blob store and workflows work. Needs no token."""
    if state.traffic.stopping:
        raise RefusedError(ProblemType.UNAVAILABLE, "the coordinator is stopping", where="process")
    for name, check in state.checks.items():
        try:
            check()
        except (MoergeError, OSError, SQLAlchemyError, DBOSException) as error:
            todo = "see the coordinator's log"
            raise RefusedError(ProblemType.UNAVAILABLE, f"{type(error).__name__}", where=name, todo=todo) from error
    return Health(**vars(build()))


@router.get("/metrics", response_class=PlainTextResponse)
def show_metrics(state: Coordinator, caller: Scraper) -> Response:
    """Figures for Prometheus.

    A scraper needs a token, of the role metrics, even on this machine, because behind a proxy all calls are local.
    """
    return Response(state.metrics.text(), media_type=metrics.MEDIA_TYPE)


@router.get("/v1/settings")
def show_settings(state: Coordinator, caller: Operator) -> dict[str, JsonValue]:
    """The settings in use, without passwords and the path of the webhook."""
    shown: dict[str, JsonValue] = state.settings.model_dump(mode="json")
    if "://" in (address := str(shown["database"])):
        shown["database"] = make_url(address).render_as_string(hide_password=True)
    if (webhook := state.settings.webhook) is not None:
        shown["webhook"] = {**webhook.model_dump(mode="json"), "url": webhook.place}
    return shown
