"""Each call's id, log line, figures and row in the audit log. Read calls are logged at level debug."""

import re
import secrets
import time
from urllib.parse import quote

import structlog
from fastapi import FastAPI, Request
from fastapi.routing import iter_route_contexts
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moerge_coordinator.rest import audit
from moerge_coordinator.rest.errors import respond, respond_failure
from moerge_coordinator.rest.state import state_of
from moerge_proto.problems import Problem, ProblemType

HEADER = "X-Request-Id"
_ALWAYS = {"/healthz", "/readyz"}
_SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_REFUSED_LINES, _REFUSED_SECONDS = 60, 60
_log = structlog.get_logger("moerge")


def _request_id(asked: str | None) -> str:
    return asked if asked is not None and _SANE.fullmatch(asked) else secrets.token_hex(8)


class _Refusals:
    """Log lines of calls without a valid token or the right role: 60 a minute. The next minute counts the omitted ones.

    The figures count all these calls.
    """

    def __init__(self) -> None:
        self._begin, self._count = 0.0, 0

    def note(self, fields: dict[str, object]) -> None:
        if (now := time.monotonic()) - self._begin >= _REFUSED_SECONDS:
            if (left_out := self._count - _REFUSED_LINES) > 0:
                _log.warning("calls without a valid token or the right role, not logged", count=left_out)
            self._begin, self._count = now, 0
        self._count += 1
        if self._count <= _REFUSED_LINES:
            _log.info("request", **fields)


class Calls:
    """Wraps the app. During its stop, new calls get 503 while running ones finish."""

    def __init__(self, app: ASGIApp, *, owner: FastAPI) -> None:
        self._app, self._owner = app, owner
        self._routes: dict[object, str] | None = None
        self._refusals = _Refusals()

    def _route(self, scope: Scope) -> str | None:
        """The template of the path, or None if no route matches."""
        if self._routes is None:
            contexts = iter_route_contexts(self._owner.routes)
            self._routes = {item.endpoint: item.path_format or "" for item in contexts if item.endpoint is not None}
        return self._routes.get(scope.get("endpoint"))

    def _is_poll(self, scope: Scope, method: str, status: int) -> bool:
        """Tell whether a call is a successful read or progress report: workers and pages repeat these every second."""
        route = self._route(scope)
        well = status < 400 or (status == 404 and route is not None)
        return well and not audit.is_audited(method, route, 200)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = state_of(self._owner)
        request = Request(scope, receive)
        request.state.request_id = _request_id(request.headers.get(HEADER))
        structlog.contextvars.bind_contextvars(request=request.state.request_id)
        path, start = quote(scope["path"]), time.perf_counter()
        status, received, sent, recorded, answered = 500, 0, 0, False, False

        async def record() -> None:
            nonlocal recorded
            if not recorded and audit.is_audited(request.method, self._route(scope), status):
                await run_in_threadpool(audit.record, state.database, request, path, status)
                recorded = True

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, sent, answered
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request.state.request_id
                try:
                    await record()
                except Exception:
                    if status < 400:  # no success without its row: the caller must repeat the call
                        raise
                    _log.exception("no row in the audit log", path=path, status=status)
                answered = True
            sent += len(message.get("body", b""))
            await send(message)

        state.traffic.running += 1
        try:
            if state.traffic.stopping and path not in _ALWAYS:
                problem = Problem.of(ProblemType.UNAVAILABLE, "the coordinator is stopping", todo="try again soon")
                await respond(request, problem, {"Retry-After": "10"})(scope, counted_receive, counted_send)
            else:
                await self._app(scope, counted_receive, counted_send)
        except Exception as error:
            _log.exception("failed", path=path)
            if answered:
                request.state.problem = ProblemType.INTERNAL.urn
                raise
            await respond_failure(request, error)(scope, counted_receive, counted_send)
        finally:
            state.traffic.running -= 1
            route, seconds = self._route(scope) or "none", time.perf_counter() - start
            method = request.method if request.method in _METHODS else "other"
            state.metrics.count_request(method, route, status, seconds, received, sent)
            fields = {"method": request.method, "path": path, "status": status, "seconds": round(seconds, 4)}
            fields |= {"received": received, "sent": sent, "address": audit.address_of(request)}
            fields |= {name: getattr(request.state, name, None) for name in ("token", "problem")}
            if status in audit.UNADMITTED:
                self._refusals.note(fields)
            elif self._is_poll(scope, request.method, status):
                _log.debug("request", **fields)
            else:
                _log.info("request", **fields)
