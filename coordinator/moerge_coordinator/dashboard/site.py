"""The site: its pages, and the visits of signed-in users."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from moerge_coordinator.dashboard import formatting
from moerge_coordinator.dashboard.attention import is_refusal
from moerge_coordinator.dashboard.rest import Rest, RestError, calls
from moerge_coordinator.dashboard.session import ForeignFormError, guard, sign_out, token_of
from moerge_proto.experts import Expert
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.versions import Version

HOME = "/dashboard"
STATIC = Path(__file__).parent / "static"
_NOTICES = {
    "promoted": "Alias moved.",
    "rolled-back": "Alias rolled back.",
    "described": "Note and tags saved.",
    "retired": "Version retired.",
    "removed": "Alias removed.",
    "started": "Workflow started.",
    "withdrawn": "Withdrawn.",
    "purged": "Files purged.",
    "opened": "Round opened.",
    "changed": "Round changed.",
    "revoked": "Key and tokens revoked.",
}
"""The notice of a finished action, by the parameter `said` of the next page's address."""


@dataclass(frozen=True)
class Visit:
    """One request of a signed-in user, with REST calls under their token."""

    request: Request
    rest: Rest
    who: Identity
    token: str
    site: "Site"

    @property
    def operates(self) -> bool:
        return self.who.role is Role.OPERATOR

    @property
    def path(self) -> Mapping[str, Any]:
        """The values in the address's path."""
        return self.request.path_params

    @property
    def after(self) -> str:
        """The cursor of a paged list."""
        return self.request.query_params.get("after", "")

    def show(self, template: str, status: int = 200, **content: Any) -> Response:
        """A page."""
        given = {
            "who": self.who,
            "operates": self.operates,
            "guard": guard(self.token),
            "menu": self.site.menu(self.who.role),
            "here": self.request.url.path,
            "said": _NOTICES.get(self.request.query_params.get("said", "")),
            **content,
        }
        return self.site.render(template, status, given)

    async def domains(self, *versions: Version) -> dict[str, str]:
        """Digest -> domain of the visible experts, and of those in `versions`."""
        experts = [] if self.who.role is Role.READER else await self.rest.all(Expert, "/v1/experts")
        found = {each.digest: each.domain for each in experts}
        for version in versions:
            found |= zip(version.lineage.experts, version.lineage.domains, strict=True)
        return found


Handler = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True)
class Page:
    """A page. With a `title` it is in the menu of the `roles`."""

    handler: Handler
    title: str = ""
    roles: tuple[Role, ...] = tuple(Role)
    methods: tuple[str, ...] = ("GET",)


class Site:
    """Pages by their paths, as routes for signed-in users. `app` answers their REST calls."""

    def __init__(self, app: FastAPI, pages: Mapping[str, Page]) -> None:
        self._app, self._pages = app, pages
        self._templates = _templates()

    def routes(self) -> list[Route]:
        return [
            Route(path, partial(self._visit, page.handler), methods=page.methods) for path, page in self._pages.items()
        ]

    def menu(self, role: Role) -> list[tuple[str, str]]:
        """Title and address of each page in the menu of a role."""
        return [(page.title, HOME + path) for path, page in self._pages.items() if page.title and role in page.roles]

    def render(self, template: str, status: int, content: Mapping[str, Any]) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(content), status)

    def problem(self, problem: Problem) -> Response:
        """A problem's page for visitors who are not signed in."""
        return self.render("outside.html", problem.status, {"problem": problem})

    async def _visit(self, handler: Handler, request: Request) -> Response:
        token = token_of(request)
        if token is None:
            return _to_sign_in(request)
        async with calls(self._app, token, request.state.request_id) as rest:
            try:
                who = await rest.get(Identity, "/v1/identity")
            except RestError as error:
                if error.problem.status == 401:
                    return _to_sign_in(request, "&ended=1")
                return self.problem(error.problem)
            visit = Visit(request, rest, who, token, self)
            try:
                return await handler(visit)
            except RestError as error:
                problem = error.problem
            except ForeignFormError:
                todo = "go back, reload the page, and try again"
                problem = Problem.of(ProblemType.FORBIDDEN, "this form is not from your session", todo=todo)
            return visit.show("problem.html", problem.status, problem=problem)


def _to_sign_in(request: Request, more: str = "") -> Response:
    place = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    response = RedirectResponse(f"{HOME}/sign-in?next={quote(place)}{more}", 303)
    sign_out(response)
    return response


def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("moerge_coordinator.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= formatting.FILTERS
    made.globals |= {"step": formatting.step, "stamp": _stamp(), "is_refusal": is_refusal}
    return made


def _stamp() -> str:
    """A digest of the static files, part of their addresses, so that browsers can cache them."""
    return sha256(b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()) if path.is_file())).hexdigest()[:12]
