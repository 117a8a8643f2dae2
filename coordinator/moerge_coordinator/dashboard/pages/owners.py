"""The owners with their workers, and the rounds."""

import asyncio

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.experts import Expert
from moerge_proto.owners import Owner, Role
from moerge_proto.progress import DomainProgress
from moerge_proto.rounds import Round

_MOST_ROWS = 100


async def _owners(visit: Visit) -> Response:
    rest = visit.rest
    page, rounds, experts, progress = await asyncio.gather(
        rest.page(Owner, "/v1/owners", {"after": visit.after}),
        rest.all(Round, "/v1/rounds"),
        rest.all(Expert, "/v1/experts"),
        rest.all(DomainProgress, "/v1/progress"),
    )
    state = {each.domain: each.state.value for each in experts if each.state != "withdrawn" and each.fitted is None}
    newest = list(reversed(rounds))[:_MOST_ROWS]
    workers = {each.domain: each for each in progress}
    return visit.show("owners.html", owners=page.items, further=page.next, rounds=newest, state=state, workers=workers)


PAGES = {"/owners": Page(_owners, "Owners and rounds", (Role.OPERATOR,))}
