"""Two versions side by side."""

import asyncio
from typing import Any

from starlette.responses import Response

from moerge.versions.compare import score_changes
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
        content |= _scores(tables[old.number], tables[new.number])
    return visit.show("compare.html", **content)


def _scores(old: VersionTable, new: VersionTable) -> dict[str, Any]:
    """Changes of scores, and shares of each domain's tokens routed to its own expert."""
    changes = score_changes(old, new)
    return {
        "rows": changes if old.scores or new.scores else [],
        "own": {each.name: (_own(old, each.name), _own(new, each.name)) for each in changes},
    }


def _own(table: VersionTable, domain: str) -> float | None:
    """The share of a domain's tokens routed to its own expert, over all layers."""
    for each in table.scores:
        if each.domain == domain:
            slot = table.domains.index(domain)
            return sum(layer[slot] for layer in each.shares) / len(each.shares)
    return None


PAGES = {"/compare": Page(_compare)}
