"""Pages of one list each: experts, owners, contributions, bodies, workflows, calls, settings, an alias."""

from starlette.responses import Response

from moerge.client.http import optional
from moerge.statistics.kinds import CONTRIBUTIONS, ROUTER
from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role

_MOST_ROWS = 100


def _alias(visit: Visit) -> Response:
    name = visit.path["name"]
    moves = list(visit.rest.alias_history(name))[: -_MOST_ROWS - 1 : -1]
    return visit.show("alias.html", name=name, alias=optional(visit.rest.alias, name), moves=moves)


def _experts(visit: Visit) -> Response:
    page = visit.rest.experts().page(visit.after)
    return visit.show("experts.html", experts=page.items, further=page.next)


def _owners(visit: Visit) -> Response:
    rest = visit.rest
    page = rest.owners().page(visit.after)
    state = {expert.domain: expert.state.value for expert in rest.experts() if expert.state != "withdrawn"}
    workers = {item.domain: item for item in rest.progress()}
    return visit.show("owners.html", owners=page.items, further=page.next, state=state, workers=workers)


def _contributions(visit: Visit) -> Response:
    kind = CONTRIBUTIONS.get(visit.query.get("kind", ""), ROUTER)
    page, body = visit.rest.contributions(kind.name, newest=True).page(visit.after), visit.rest.current_body()
    return visit.show(
        "contributions.html",
        contributions=page.items,
        further=page.next,
        body=body.digest if body else None,
        kind=kind,
        kinds=CONTRIBUTIONS.values(),
    )


def _bodies(visit: Visit) -> Response:
    page = visit.rest.bodies().page(visit.after)
    return visit.show("bodies.html", bodies=list(reversed(page.items)), further=page.next)


def _workflows(visit: Visit) -> Response:
    page = visit.rest.workflows().page(visit.after)
    return visit.show("workflows.html", workflows=page.items, further=page.next)


def _audit(visit: Visit) -> Response:
    given = {name: visit.query.get(name, "") for name in ("owner", "path", "failed")}
    calls = visit.rest.audit(newest=True, owner=given["owner"], path=given["path"], failed=given["failed"] == "true")
    page = calls.page(visit.after)
    return visit.show("audit.html", entries=page.items, further=page.next, given=given)


def _settings(visit: Visit) -> Response:
    return visit.show("settings.html", settings=visit.rest.settings())


PAGES = {
    "/aliases/{name}": Page(_alias),
    "/experts": Page(_experts, "Experts", (Role.OPERATOR, Role.OWNER)),
    "/owners": Page(_owners, "Owners", (Role.OPERATOR,)),
    "/contributions": Page(_contributions, "Contributions", (Role.OPERATOR, Role.OWNER)),
    "/bodies": Page(_bodies, "Bodies", (Role.OPERATOR, Role.OWNER)),
    "/workflows": Page(_workflows, "Workflows", (Role.OPERATOR,)),
    "/audit": Page(_audit, "Audit log", (Role.OPERATOR,)),
    "/settings": Page(_settings, "Settings", (Role.OPERATOR,)),
}
