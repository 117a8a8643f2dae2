"""Grants: the readers of an owner's experts, the experts of a reader, and the parts of a version."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from moerge.client.http import optional
from moerge.errors import CoordinatorError
from moerge_coordinator.dashboard.site import Visit
from moerge_proto.grants import VersionPart
from moerge_proto.owners import Role
from moerge_proto.problems import Problem, ProblemType

_MOST_ROWS = 100
NO_PARTS: Mapping[str, Any] = {"version_parts": [], "averages": {}, "more_parts": 0}


@dataclass(frozen=True)
class Share:
    """A reader's share of a version: the part that it may use, or the refusal of all of it."""

    part: VersionPart | None
    refusal: Problem | None = None

    @property
    def whole(self) -> bool:
        return self.part is not None and not self.part.left_out


def share(visit: Visit, number: int) -> Share | None:
    """The visitor's share of a version; None if it isn't a reader, nobody can pull it, or there are no grants."""
    if visit.who.role is not Role.READER:
        return None
    try:
        part = optional(visit.rest.version_part, number)
    except CoordinatorError as error:
        if error.type == ProblemType.GONE.urn:
            return None
        if error.type not in (ProblemType.NOT_GRANTED.urn, ProblemType.CONFLICT.urn):
            raise
        return Share(None, error.problem())
    return None if part is None else Share(part)


def parts_of(visit: Visit, number: int) -> Mapping[str, Any]:
    """The parts of a served version that readers may use, with the averages of made ones; empty without any."""
    rows = (optional(visit.rest.version_parts, number) or []) if visit.operates else []
    if not any(row.left_out for row in rows):
        return NO_PARTS
    shown = sorted(rows, key=lambda row: (len(row.left_out), row.domains))[:_MOST_ROWS]
    tables = {row.name: optional(visit.rest.version_table, row.name) for row in shown if row.made}
    averages = {name: table.average for name, table in tables.items() if table is not None}
    return {"version_parts": shown, "averages": averages, "more_parts": len(rows[_MOST_ROWS:])}


def readers(visit: Visit, **content: Any) -> Response:
    """The readers of an owner's domains; for an operator, of the domains on which owners have decided."""
    history = list(visit.rest.grants())
    domains = visit.who.domains if not visit.operates else sorted({row.domain for row in history})
    rows = [visit.rest.readers(domain) for domain in domains[:_MOST_ROWS]]
    return visit.show("grants.html", domains=rows, history=history[: -_MOST_ROWS - 1 : -1], **content)
