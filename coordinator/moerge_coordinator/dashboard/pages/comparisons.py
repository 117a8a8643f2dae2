"""Two versions side by side."""

from typing import Any

from starlette.responses import Response

from moerge.versions.compare import compare, score_changes
from moerge.versions.evaluations import on_tasks
from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.evaluations import VersionTable

_DIGITS = 9  # of a version's number


def _compare(visit: Visit) -> Response:
    rest = visit.rest
    numbers = [version.number for version in rest.versions(newest=True).page().items]
    before, after = visit.query.get("before", ""), visit.query.get("version", "")
    content: dict[str, Any] = {"numbers": numbers, "before": before, "version": after, "comparison": None}
    if all(text.isdecimal() and len(text) <= _DIGITS for text in (before, after)):
        old, new = rest.version(int(before)), rest.version(int(after))
        one, other = visit.table(old), visit.table(new)
        changes = score_changes(one, other)
        content |= {"comparison": compare(old, new), "old": old, "new": new}
        content |= {"names": visit.domains(old, new), "rows": changes if one.scores or other.scores else []}
        content["tasks"] = on_tasks(visit.scores(old.number), visit.scores(new.number))
        content["own"] = {change.name: (_own(one, change.name), _own(other, change.name)) for change in changes}
    return visit.show("compare.html", **content)


def _own(table: VersionTable, domain: str) -> float | None:
    """The share of a domain's tokens routed to its own expert, over all layers."""
    for score in table.scores:
        if score.domain == domain:
            slot = table.domains.index(domain)
            return sum(layer[slot] for layer in score.shares) / len(score.shares)
    return None


PAGES = {"/compare": Page(_compare)}
