"""Routing of texts through a version."""

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from moerge_coordinator.domain import versions
from moerge_coordinator.rest.auth import OperatorOrReader, Route
from moerge_coordinator.rest.lists import Number
from moerge_coordinator.rest.state import Coordinator, State
from moerge_proto.routing import RoutedText, TextToRoute
from moerge_proto.versions import VersionFile

router = APIRouter(tags=["versions"], route_class=Route)


@router.post("/versions/{number}/route", response_model=RoutedText)
async def route_text(
    request: Request, state: Coordinator, caller: OperatorOrReader, number: Number, new: TextToRoute
) -> Response:
    """Scores and choices of each router of the version for each token of a text, which is neither stored nor logged.

    Off without the operator's memory limit. One text at a time, for at most a minute. Role: operator or reader.
    """
    state.texts.require_on()
    files = await run_in_threadpool(_files, state, number)
    routed = await state.texts.route(number, files, new.text, request.is_disconnected)
    return Response(routed, media_type="application/json")


def _files(state: State, number: int) -> list[VersionFile]:
    with state.database.reading() as session:
        return versions.find_served(session, number).files
