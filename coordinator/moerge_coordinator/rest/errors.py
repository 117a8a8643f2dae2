"""Every error as a problem+json answer."""

from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from moerge.errors import MoergeError
from moerge_coordinator.problems import failure
from moerge_proto.messages import plainly
from moerge_proto.problems import MEDIA_TYPE, Problem, ProblemType

_KINDS = {404: ProblemType.NOT_FOUND, 408: ProblemType.UNAVAILABLE, 413: ProblemType.TOO_LARGE}


def respond(request: Request, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The problem as an answer; the request's audit row names its type."""
    request.state.problem = problem.type
    more = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    return Response(problem.model_dump_json(), problem.status, {**(headers or {}), **more}, MEDIA_TYPE)


async def _moerge(request: Request, error: Exception) -> Response:
    if not isinstance(error, MoergeError):
        raise error
    seconds = getattr(error, "retry_after", None)
    return respond(request, error.problem(), None if seconds is None else {"Retry-After": str(seconds)})


async def _validation(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    return respond(request, Problem.of(ProblemType.INVALID_REQUEST, plainly(first), field=field))


async def _http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    kind = _KINDS.get(error.status_code, ProblemType.INVALID_REQUEST)
    problem = Problem.of(kind, str(error.detail))
    if error.status_code != 400:  # a body that isn't text is as invalid as one that isn't JSON
        problem = problem.model_copy(update={"status": error.status_code})
    return respond(request, problem, error.headers)


def respond_failure(request: Request, error: Exception) -> Response:
    """The failure as an answer."""
    problem = failure(error, request.state.request_id)
    return respond(request, problem, {"Retry-After": "5"} if problem.status == 503 else None)


def install(app: FastAPI) -> None:
    """Makes `app` answer every refusal with a problem document; `Calls` does so for failures."""
    app.add_exception_handler(MoergeError, _moerge)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
