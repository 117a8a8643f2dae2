"""A keeper's service: one call, which answers with sums of masks."""

import logging
from collections.abc import Awaitable, Callable

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from moerge.errors import MoergeError
from moerge.keeper.journal import Keeper, KeeperError
from moerge.network import require_free
from moerge_proto.masks import MasksRequest, summed
from moerge_proto.messages import plainly
from moerge_proto.problems import MEDIA_TYPE, Problem, ProblemType

MAX_REQUEST_BYTES = 2**24
_log = logging.getLogger("uvicorn.error")


def make_app(keeper: Keeper) -> Starlette:
    return Starlette(routes=[Route("/v1/masks", _masks(keeper), methods=["POST"])])


def _masks(keeper: Keeper) -> Callable[[Request], Awaitable[Response]]:
    async def masks(request: Request) -> Response:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_REQUEST_BYTES:
                return _refused(Problem.of(ProblemType.TOO_LARGE, f"expected at most {MAX_REQUEST_BYTES} bytes"))
        try:
            asked = MasksRequest.model_validate_json(bytes(body))
            seeds = await run_in_threadpool(keeper.seeds, asked)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            return _refused(Problem.of(ProblemType.INVALID_REQUEST, plainly(first), field=place))
        except KeeperError as error:
            return _refused(error.problem())
        owners = ", ".join(sorted({part.owner for part in asked.parts}))
        _log.info("cohort %s: sums of the masks of %s", asked.digest[:12], owners)
        headers = {"Content-Length": str(asked.answer_bytes)}
        return StreamingResponse(summed(asked, seeds), headers=headers, media_type="application/octet-stream")

    return masks


def _refused(problem: Problem) -> Response:
    _log.warning("refused: %s", MoergeError(problem.detail, where=problem.field))
    return JSONResponse(problem.model_dump(mode="json"), problem.status, media_type=MEDIA_TYPE)


def serve(keeper: Keeper, host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT; running answers end first."""
    require_free(host, port)
    uvicorn.run(make_app(keeper), host=host, port=port, server_header=False)
