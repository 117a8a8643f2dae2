"""Texts routed through a version."""

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from moerge_coordinator.rest.auth import OperatorOrReader
from moerge_coordinator.rest.lists import Number
from moerge_coordinator.rest.routes.versions import find_version, require_served
from moerge_coordinator.storage.database import reading
from moerge_coordinator.workflows.text_routing import TextRouter
from moerge_proto.routing import RoutedText, TextToRoute
from moerge_proto.versions import VersionFile

router = APIRouter(tags=["versions"])


@router.post("/versions/{number}/route", response_model=RoutedText)
async def route_text(request: Request, caller: OperatorOrReader, number: Number, new: TextToRoute) -> Response:
    """What each router of the version says of each token of a text; the text is neither kept nor logged.

    Off unless the operator sets a memory limit. One text at a time, for at most a minute. Role: operator or reader.
    """
    texts: TextRouter = request.app.state.texts
    texts.require_on()
    files = await run_in_threadpool(_files, request, number)
    return Response(await texts.route(number, files, new.text, request.is_disconnected), media_type="application/json")


def _files(request: Request, number: int) -> list[VersionFile]:
    with reading(request.app.state.engine) as session:
        row = find_version(session, number)
    require_served(row)
    return [VersionFile.model_validate(file) for file in row.files]
