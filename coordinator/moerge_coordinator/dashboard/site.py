"""One request to the dashboard by somebody who is signed in, and how it is answered."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from moerge_coordinator.dashboard.rest import Rest, RestError, calls
from moerge_coordinator.dashboard.session import ForeignFormError, form, guard, sign_out, token_of
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import Problem, ProblemType

HOME = "/dashboard"
SAID = {
    "promoted": "The alias has been moved.",
    "rolled-back": "The alias has been moved back.",
    "described": "Note and tags have been kept.",
    "retired": "The version has been retired.",
    "removed": "The alias has been removed.",
    "started": "The work has been started.",
    "withdrawn": "It has been withdrawn.",
    "purged": "The files have been purged.",
    "opened": "The round has been opened.",
    "changed": "The round has been changed.",
    "revoked": "Key and tokens have been revoked.",
}
"""What a page says after an action, by the word that its address ends with."""
_PAGES = (
    ("Versions", "/versions", set(Role)),
    ("Route a text", "/route", {Role.OPERATOR, Role.READER}),
    ("Experts", "/experts", {Role.OPERATOR, Role.OWNER}),
    ("Owners and rounds", "/owners", {Role.OPERATOR}),
    ("Contributions", "/contributions", {Role.OPERATOR, Role.OWNER}),
    ("Trunks", "/trunks", {Role.OPERATOR, Role.OWNER}),
    ("Workflows", "/workflows", {Role.OPERATOR}),
    ("Audit log", "/audit", {Role.OPERATOR}),
    ("Settings", "/settings", {Role.OPERATOR}),
)


@dataclass(frozen=True)
class Visit:
    """Who asks, for what, with REST calls of its own."""

    request: Request
    rest: Rest
    who: Identity
    token: str
    templates: Environment

    @property
    def operates(self) -> bool:
        return self.who.role is Role.OPERATOR

    def show(self, template: str, status: int = 200, **content: Any) -> Response:
        """A page."""
        given = {
            "who": self.who,
            "operates": self.operates,
            "guard": guard(self.token),
            "pages": [(name, HOME + path) for name, path, roles in _PAGES if self.who.role in roles],
            "here": self.request.url.path,
            "said": SAID.get(self.request.query_params.get("said", "")),
            **content,
        }
        return HTMLResponse(self.templates.get_template(template).render(given), status)


Page = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True)
class Field:
    """A field of a form. With `options` it is a choice, with `lines` a text of several lines."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    options: tuple[tuple[str, str], ...] = ()
    lines: bool = False
    kind: str = "text"
    required: bool = False


@dataclass(frozen=True)
class Form:
    """What is asked before something is done: a heading, what it means, fields, and the word on the button."""

    heading: str
    button: str
    back: str
    facts: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    danger: bool = False


@dataclass(frozen=True)
class Action:
    """Something that can be done: what is asked first, and the REST calls that do it; they say where to go then."""

    ask: Callable[[Visit], Awaitable[Form]]
    do: Callable[[Visit, Mapping[str, str]], Awaitable[str]]


class Site:
    """Turns pages and actions into routes, for those who are signed in."""

    def __init__(self, app: FastAPI, templates: Environment) -> None:
        self._app, self.templates = app, templates

    def page(self, path: str, page: Page, *methods: str) -> Route:
        return Route(path, partial(self._visited, page=page), methods=["GET", *methods])

    def action(self, path: str, action: Action) -> Route:
        return self.page(path, partial(_act, action), "POST")

    async def _visited(self, request: Request, page: Page) -> Response:
        token = token_of(request)
        if token is None:
            return self._to_sign_in(request)
        async with calls(self._app, token, request.state.request_id) as rest:
            try:
                who = await rest.get(Identity, "/v1/identity")
            except RestError as error:
                if error.problem.status == 401:
                    return self._to_sign_in(request, "&ended=1")
                return self.problem(error.problem)
            visit = Visit(request, rest, who, token, self.templates)
            try:
                return await page(visit)
            except RestError as error:
                return visit.show("problem.html", error.problem.status, problem=error.problem)
            except ForeignFormError:
                todo = "go back, load the page anew, and try again"
                problem = Problem.of(ProblemType.FORBIDDEN, "this form is not of your session", todo=todo)
                return visit.show("problem.html", 403, problem=problem)

    def problem(self, problem: Problem) -> Response:
        """A page for those who aren't signed in, or can't be known."""
        return HTMLResponse(self.templates.get_template("outside.html").render(problem=problem), problem.status)

    def _to_sign_in(self, request: Request, more: str = "") -> Response:
        place = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        response = RedirectResponse(f"{HOME}/sign-in?next={quote(place)}{more}", 303)
        sign_out(response)
        return response


async def _act(action: Action, visit: Visit) -> Response:
    if visit.request.method == "GET" or visit.request.method == "HEAD":
        return visit.show("form.html", form=await action.ask(visit), problem=None, given={})
    fields = await form(visit.request)
    try:
        return RedirectResponse(await action.do(visit, fields), 303)
    except RestError as error:
        asked = await action.ask(visit)
        return visit.show("form.html", error.problem.status, form=asked, problem=error.problem, given=fields)
