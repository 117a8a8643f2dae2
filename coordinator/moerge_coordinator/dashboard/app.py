"""The dashboard as an ASGI app, mounted below /dashboard of the coordinator."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from moerge.bearer import bearer_token
from moerge.errors import MoergeError
from moerge_coordinator.dashboard.actions import ACTIONS
from moerge_coordinator.dashboard.pages import PAGES
from moerge_coordinator.dashboard.session import (
    ForeignFormError,
    Guarded,
    read_form,
    sign_in,
    sign_out,
    token_of,
)
from moerge_coordinator.dashboard.site import FOREIGN, HOME, STATIC, FindNeeds, Site
from moerge_coordinator.problems import failure
from moerge_proto.problems import Problem, ProblemType

_YEAR = 365 * 24 * 3600


class _Static(StaticFiles):
    """Files with a digest in their addresses, so that browsers can cache them."""

    def file_response(self, *given: object, **more: object) -> Response:
        response = super().file_response(*given, **more)  # type: ignore[arg-type]  # passed on
        response.headers["Cache-Control"] = f"public, max-age={_YEAR}, immutable"
        return response


def make_dashboard(app: FastAPI, needs: Sequence[FindNeeds], documentation: str | None) -> Starlette:
    """The dashboard of a coordinator, a client of the REST calls of `app`.

    `needs` are those of side rooms, `documentation` is the address of a site of moerge's pages.
    """
    pages = {path: action.page() for path, action in ACTIONS.items()} | PAGES
    site = Site(app, pages, needs, documentation)

    def sign_in_page(request: Request, problem: Problem | None) -> Response:
        query = request.query_params
        given = {"next": _own_place(query.get("next", "")), "ended": "ended" in query, "problem": problem}
        return site.render("sign_in.html", problem.status if problem else 200, given)

    def identify(request: Request, token: str) -> None:
        with site.client(request, token) as rest:
            rest.identity()

    async def show_sign_in(request: Request) -> Response:
        return sign_in_page(request, None)

    async def do_sign_in(request: Request) -> Response:
        if token_of(request) is not None:
            return _leave(HOME)
        try:
            fields = await read_form(request)
        except ForeignFormError:
            return sign_in_page(request, FOREIGN)
        try:
            token = bearer_token(fields.get("token", ""), "token")
            await site.in_thread(identify, request, token)
        except MoergeError as error:
            return sign_in_page(request, error.problem())
        response = RedirectResponse(_own_place(fields.get("next", "")), 303)
        sign_in(request, response, token)
        return response

    async def do_sign_out(request: Request) -> Response:
        try:
            await read_form(request)
        except ForeignFormError:
            return RedirectResponse(HOME, 303)
        return _leave(f"{HOME}/sign-in")

    async def failed(request: Request, error: Exception) -> Response:
        return site.problem(failure(error, request.state.request_id))

    async def not_there(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        kind, what, todo = ProblemType.NOT_FOUND, f"there is no page {request.url.path}", "start from Versions"
        if error.status_code in (408, 413):  # the form was too long or too slow
            kind, what, todo = ProblemType.TOO_LARGE, error.detail, ""
        return site.problem(Problem.of(kind, what, todo=todo).model_copy(update={"status": error.status_code}))

    dashboard = Starlette(
        routes=[
            Mount("/static", _Static(directory=STATIC)),
            Route("/sign-in", show_sign_in, methods=["GET"]),
            Route("/sign-in", do_sign_in, methods=["POST"]),
            Route("/sign-out", do_sign_out, methods=["POST"]),
            *site.routes(),
        ],
        middleware=[Middleware(Guarded)],
        exception_handlers={HTTPException: not_there, Exception: failed},
    )
    dashboard.router.redirect_slashes = False  # such a redirect repeats the caller's Host header
    return dashboard


def _leave(place: str) -> Response:
    response = RedirectResponse(place, 303)
    sign_out(response)
    return response


def _own_place(place: str) -> str:
    """`place` if it is on the dashboard, else its home."""
    parts = urlsplit(place)
    own = not parts.scheme and not parts.netloc and (parts.path == HOME or parts.path.startswith(f"{HOME}/"))
    return place if own and "\\" not in place else HOME
