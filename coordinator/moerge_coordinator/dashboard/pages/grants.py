"""The page of grants: for owners and operators the readers of experts, for a reader its own experts."""

from starlette.responses import Response

from moerge.client.http import optional
from moerge_coordinator.dashboard.grants import readers, share
from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.owners import Role
from moerge_proto.versions import CHAMPION


def _grants(visit: Visit) -> Response:
    return _usable(visit) if visit.who.role is Role.READER else readers(visit)


def _usable(visit: Visit) -> Response:
    alias = optional(visit.rest.alias, CHAMPION)
    mine = None if alias is None else share(visit, alias.version)
    return visit.show("usable.html", usable=visit.rest.usable(), alias=alias, share=mine)


PAGES = {"/grants": Page(_grants, "Readers", (Role.OWNER,))}
