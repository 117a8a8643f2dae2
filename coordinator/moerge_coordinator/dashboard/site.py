"""The site: its pages, and the visits of signed-in users."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from anyio import CapacityLimiter, from_thread, to_thread
from fastapi import FastAPI
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from moerge.client.client import Client
from moerge.client.http import optional
from moerge.errors import CoordinatorError
from moerge.versions.evaluations import figure
from moerge_coordinator.dashboard import formatting
from moerge_coordinator.dashboard.attention import Need, is_refusal
from moerge_coordinator.dashboard.rest import client_of
from moerge_coordinator.dashboard.session import ForeignFormError, read_form, sign_out, token_of
from moerge_coordinator.person import person_of
from moerge_proto.evaluations import Evaluation, VersionTable
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.versions import Version

R = TypeVar("R")
HOME = "/dashboard"
STATIC = Path(__file__).parent / "static"
_THREADS = 16
"""Pages at once. Their threads are not those of REST, which the pages wait for."""
FOREIGN = Problem.of(
    ProblemType.FORBIDDEN,
    "this form is not from a page of this coordinator",
    todo="open the page here, and try again; a proxy must pass on the header Host",
)
TOPICS = {
    "": "docs/dashboard.html",
    "versions": "docs/operators/versions.html",
    "compare": "docs/operators/versions.html",
    "aliases": "docs/operators/versions.html",
    "experts": "docs/operators/owners.html",
    "owners": "docs/operators/owners.html",
    "grants": "docs/owners/grants.html",
    "contributions": "docs/outgoing.html",
    "bodies": "docs/operators/start.html",
    "workflows": "docs/operators/keep.html",
    "audit": "docs/operators/keep.html",
    "settings": "docs/reference/settings.html",
}
"""The page of the documentation for each kind of page, by the first part of its path."""
_NOTICES = {
    "promoted": "Alias moved.",
    "rolled-back": "Alias rolled back.",
    "described": "Note and tags saved.",
    "retired": "Version retired.",
    "removed": "Alias removed.",
    "started": "Workflow started.",
    "withdrawn": "Withdrawn.",
    "purged": "Files purged.",
    "revoked": "Key and tokens revoked.",
    "granted": "Granted.",
    "ended": "Grant revoked.",
}
"""The notice of a finished action, by the parameter `said` of the next page's address."""


@dataclass(frozen=True)
class Visit:
    """One request of a signed-in user, with REST calls under their token; without one, a proxy signed them in."""

    request: Request
    rest: Client
    who: Identity
    token: str | None
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
        return self.query.get("after", "")

    @property
    def query(self) -> Mapping[str, str]:
        """The values in the address's query."""
        return self.request.query_params

    def form(self) -> Mapping[str, str]:
        """The fields of the sent form, which must be from a page of this coordinator."""
        return from_thread.run(read_form, self.request)

    def show(self, template: str, status: int = 200, **content: Any) -> Response:
        given = {
            "who": self.who,
            "operates": self.operates,
            "signs_out": self.token is not None,
            "menu": self.site.menu(self.who.role),
            "here": self.request.url.path,
            "said": _NOTICES.get(self.query.get("said", "")),
            **content,
        }
        return self.site.render(template, status, given)

    def domains(self, *versions: Version) -> dict[str, str]:
        """Digest -> domain of the visible experts, and of those in `versions`."""
        known = self.who.role is not Role.READER
        domains = {expert.digest: expert.domain for expert in self.rest.experts()} if known else {}
        for version in versions:
            domains |= zip(version.lineage.experts, version.lineage.domains, strict=True)
        return domains

    def table(self, version: Version) -> VersionTable:
        """A version's table; an empty one if the coordinator has no scores."""
        table = optional(self.rest.version_table, version.number)
        return table or VersionTable.of(version.number, version.lineage.domains, ())

    def scores(self, number: int) -> list[Evaluation]:
        """All reported scores of a version."""
        return optional(list[Evaluation], self.rest.evaluations(number)) or []


Handler = Callable[[Visit], Response]
FindNeeds = Callable[[Client, Version], list[Need]]


@dataclass(frozen=True)
class Page:
    """A page. With a `title` it is in the menu of the `roles`."""

    handler: Handler
    title: str = ""
    roles: tuple[Role, ...] = tuple(Role)
    methods: tuple[str, ...] = ("GET",)


class Site:
    """Pages by their paths, as routes for signed-in users. `app` answers their REST calls.

    `needs` find what a newest version needs of an operator before it is promoted. `documentation` is the address of a
    site of moerge's pages, with / at its end.
    """

    def __init__(
        self,
        app: FastAPI,
        pages: Mapping[str, Page],
        needs: Sequence[FindNeeds] = (),
        documentation: str | None = None,
    ) -> None:
        self._app, self._pages, self.needs, self._documentation = app, pages, needs, documentation
        self._templates = _templates()
        self._threads = CapacityLimiter(_THREADS)

    def routes(self) -> list[Route]:
        return [
            Route(path, partial(self._visit, page.handler), methods=page.methods) for path, page in self._pages.items()
        ]

    def menu(self, role: Role) -> list[tuple[str, str]]:
        """Title and address of each page in the menu of a role."""
        return [(page.title, HOME + path) for path, page in self._pages.items() if page.title and role in page.roles]

    def help(self, path: str) -> str | None:
        """The address of the documentation's page for a path; None without a site."""
        topic = TOPICS.get(path.removeprefix(HOME).strip("/").partition("/")[0], TOPICS[""])
        return None if self._documentation is None else self._documentation + topic

    def render(self, template: str, status: int, content: Mapping[str, Any]) -> HTMLResponse:
        given = {**content, "help": self.help(content.get("here", HOME))}
        return HTMLResponse(self._templates.get_template(template).render(given), status)

    def problem(self, problem: Problem) -> Response:
        """A problem's page for visitors who are not signed in."""
        return self.render("outside.html", problem.status, {"problem": problem})

    async def in_thread(self, call: Callable[..., R], *args: object) -> R:
        """The result of a call that waits for REST."""
        return await to_thread.run_sync(call, *args, limiter=self._threads)

    def client(self, request: Request, token: str | None) -> Client:
        """A client of REST with a token, or else for the person of the call, for a thread of `in_thread`."""
        person = person_of(request) if token is None else None
        return client_of(self._app, token, request.state.request_id, person)

    async def _visit(self, handler: Handler, request: Request) -> Response:
        token = token_of(request)
        if token is None and person_of(request) is None:
            return _to_sign_in(request)
        return await self.in_thread(self._answer, handler, request, token)

    def _answer(self, handler: Handler, request: Request, token: str | None) -> Response:
        with self.client(request, token) as rest:
            try:
                who = rest.identity()
            except CoordinatorError as error:
                problem = error.problem()
                return _to_sign_in(request, "&ended=1") if problem.status == 401 else self.problem(problem)
            visit = Visit(request, rest, who, token, self)
            try:
                return handler(visit)
            except CoordinatorError as error:
                problem = error.problem()
            except ForeignFormError:
                problem = FOREIGN
            return visit.show("problem.html", problem.status, problem=problem)


def _to_sign_in(request: Request, more: str = "") -> Response:
    place = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    response = RedirectResponse(f"{HOME}/sign-in?next={quote(place)}{more}", 303)
    sign_out(response)
    return response


def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("moerge_coordinator.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= formatting.FILTERS
    static = b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()) if path.is_file())
    stamp = sha256(static).hexdigest()[:12]  # in the addresses of static files, so that browsers can cache them
    templates.globals |= {"step": formatting.step, "stamp": stamp, "is_refusal": is_refusal, "figure": figure}
    return templates
