"""All versions: the serving one, needs attention, running workflows, scores, the timeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from starlette.responses import RedirectResponse, Response

from moerge.client.http import optional
from moerge.versions.compare import average_name, averages, common_change, domain_changes
from moerge_coordinator.dashboard import charts
from moerge_coordinator.dashboard.attention import Need, needs
from moerge_coordinator.dashboard.first_steps import Step, first_steps
from moerge_coordinator.dashboard.grants import share
from moerge_coordinator.dashboard.site import HOME, Page, Visit
from moerge_proto.evaluations import VersionTable
from moerge_proto.versions import CHAMPION, Lineage, Version
from moerge_proto.workflows import WorkflowKind, WorkflowState

_PER_PAGE = 25
_DOTS = "Dots: the average of each version's own domains, which differ."


@dataclass(frozen=True)
class Change:
    """A difference of a version from the one before it, in words."""

    text: str
    kind: str


def _home(visit: Visit) -> Response:
    return RedirectResponse(f"{HOME}/versions", 303)


def _versions(visit: Visit) -> Response:
    rest, after = visit.rest, visit.after
    listed = rest.versions(newest=True).page(after)
    shown, before = list(listed.items[:_PER_PAGE]), listed.items[_PER_PAGE : _PER_PAGE + 1]
    further = shown[-1].number if before or listed.next else None
    tables = {version.number: visit.table(version) for version in [*shown, *before]}
    earlier = [*shown[1:], *before]
    changes = {new.number: _changes(new, old) for new, old in zip(shown, [*earlier, None], strict=False)}
    pairs = [(tables[old.number], tables[new.number]) for new, old in zip(shown, earlier, strict=False)]
    common = {new.version: common_change(old, new) for old, new in pairs}
    chart, hint = _timeline(shown, tables)
    content: dict[str, Any] = {"versions": shown, "tables": tables, "changes": changes, "common": common}
    content |= {"further": further, "chart": chart, "chart_hint": hint, "champion": None, "steps": [], "moves": []}
    content |= {"share": None, "ends": None}
    champion = optional(rest.alias, CHAMPION)
    if champion is not None:
        content["champion"] = serving = rest.version(champion.version)
        table = visit.table(serving)
        content |= {"score": table.average, "score_name": average_name(table)}
        content |= _for_reader(visit, serving)
    if visit.operates:
        content |= _state_of_affairs(visit, content["champion"], [] if after else listed.items)
        if champion is not None:
            content["moves"] = list(rest.alias_history(CHAMPION))[-1:]
    return visit.show("versions.html", **content)


def _for_reader(visit: Visit, champion: Version) -> dict[str, object]:
    """A reader's share of the champion, and the first end of a grant of its experts."""
    if (mine := share(visit, champion.number)) is None:
        return {}
    domains = champion.lineage.domains
    ends = [row.until for row in visit.rest.usable() if row.until is not None and row.domain in domains]
    return {"share": mine, "ends": min(ends, default=None)}


def _state_of_affairs(visit: Visit, champion: Version | None, newest: Sequence[Version]) -> dict[str, object]:
    """Needs, running workflows and, without a champion, the first steps. `newest`: the first page, if known."""
    rest = visit.rest
    versions = newest or rest.versions(newest=True).page().items
    body, experts, workers = rest.current_body(), list(rest.experts()), list(rest.progress())
    workflows = [item for kind in get_args(WorkflowKind) for item in rest.workflows(kind).page().items]
    steps, of_sides = list[Step](), list[Need]()
    if versions and versions[0] != champion and versions[0].retired is None:
        of_sides = [need for find in visit.site.needs for need in find(rest, versions[0])]
    if champion is None:
        contributed = rest.contributors().contributed if body else []
        steps = first_steps(list(rest.owners()), experts, body, contributed, versions)
    return {
        "needs": needs(champion, versions, body, experts, workflows, workers, of_sides),
        "steps": steps,
        "can_solve": body is not None,
        "running": [workflow for workflow in workflows if workflow.state is WorkflowState.RUNNING],
    }


def _changes(version: Version, before: Version | None) -> list[Change]:
    if before is None:
        return [Change("first version", "note")] if version.number == 1 else []
    old, new = before.lineage, version.lineage
    by_domain = domain_changes(old, new)
    result = [Change(f"+ {domain}", "added") for domain in by_domain.added]
    result += [Change(f"- {domain}", "gone") for domain in by_domain.removed]
    if by_domain.replaced:
        result.append(Change(f"other MLPs: {', '.join(by_domain.replaced)}", "note"))
    if old.body != new.body:
        result.append(Change("new body", "note"))
    if old.head.method != new.head.method:
        result.append(Change(f"head {old.head.method} → {new.head.method}", "note"))
    options, earlier = new.options.model_dump(), old.options.model_dump()
    result += [
        Change(f"{name.replace('ridge_lambda', 'lambda').replace('_', ' ')} {earlier[name]} → {value}", "note")
        for name, value in options.items()
        if earlier[name] != value
    ]
    if not result and _contributions(old) != _contributions(new):
        result.append(Change("other contributions", "note"))
    return result or [Change("other order of experts", "note")]


def _contributions(lineage: Lineage) -> set[str]:
    return {*lineage.contributions, *lineage.head.contributions}


def _timeline(shown: Sequence[Version], tables: Mapping[int, VersionTable]) -> tuple[charts.Curves | None, str]:
    """Normalised scores over versions: a line for each domain, and the averages, with a caption."""
    oldest_first = list(reversed(shown))
    names = list(dict.fromkeys(domain for item in oldest_first for domain in tables[item.number].domains))
    if not any(tables[item.number].scores for item in shown):
        return None, ""
    scores = {number: {score.domain: score.normalised for score in table.scores} for number, table in tables.items()}
    lines: dict[str, list[float | None]] = {
        name: [scores.get(item.number, {}).get(name) for item in oldest_first] for name in names
    }
    result = averages([tables[item.number] for item in oldest_first])
    own, common = result.names
    lines[own] = result.over_own
    across = [str(item.number) for item in oldest_first]
    title = "Normalised score of each version, by domain and on average"
    if not common:
        return charts.curves(title, [*names, own], lines, across, own), "Heavy line: the average."
    if not result.over_common:
        return charts.curves(title, [*names, own], lines, across, dots=own), _DOTS
    lines[common] = result.over_common
    picture = charts.curves(title, [*names, own, common], lines, across, common, dots=own)
    return picture, f"{_DOTS} Heavy line: the {common} domains that all these versions have."


PAGES = {"/": Page(_home), "/versions": Page(_versions, "Versions")}
