"""Two versions side by side."""

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.evaluations import VersionTable
from moerge_proto.versions import Comparison, Version


async def _compare(visit: Visit) -> Response:
    rest, asked = visit.rest, visit.request.query_params
    listed = await rest.page(Version, "/v1/versions", {"newest": True})
    numbers = [each.number for each in listed.items]
    before, after = asked.get("before", ""), asked.get("version", "")
    content: dict[str, Any] = {"numbers": numbers, "before": before, "version": after, "comparison": None}
    if before.isdigit() and after.isdigit():
        comparison, old, new = await asyncio.gather(
            rest.get(Comparison, f"/v1/versions/{before}/compare/{after}"),
            rest.get(Version, f"/v1/versions/{before}"),
            rest.get(Version, f"/v1/versions/{after}"),
        )
        names, tables = await asyncio.gather(visit.domains(old, new), rest.tables([old, new]))
        content |= {"comparison": comparison, "old": old, "new": new, "names": names}
        content["rows"] = _differences(tables.get(old.number), tables.get(new.number))
    return visit.show("compare.html", **content)


@dataclass(frozen=True)
class Difference:
    """A domain in two tables: normalised scores, and the share of its tokens that its own expert got."""

    domain: str
    before: float | None
    after: float | None
    own_before: float | None
    own_after: float | None

    @property
    def points(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


def _differences(old: VersionTable | None, new: VersionTable | None) -> list[Difference]:
    domains = dict.fromkeys([*(old.domains if old else ()), *(new.domains if new else ())])
    rows = [
        Difference(each, _score(old, each), _score(new, each), _own(old, each), _own(new, each)) for each in domains
    ]
    if old is not None and new is not None:
        rows.append(Difference("average", old.average, new.average, None, None))
    return rows


def _score(table: VersionTable | None, domain: str) -> float | None:
    return next((each.normalised for each in table.scores if each.domain == domain), None) if table else None


def _own(table: VersionTable | None, domain: str) -> float | None:
    """The share of a domain's tokens that went to its own expert, over all layers."""
    for each in table.scores if table else ():
        if table is not None and each.domain == domain:
            slot = table.domains.index(domain)
            return sum(layer[slot] for layer in each.shares) / len(each.shares)
    return None


PAGES = {"/compare": Page(_compare)}
