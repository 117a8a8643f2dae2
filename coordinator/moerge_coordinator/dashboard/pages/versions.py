"""All versions: the serving one, needs of attention, running work, scores, the timeline."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from starlette.responses import RedirectResponse, Response

from moerge_coordinator.dashboard import charts
from moerge_coordinator.dashboard.attention import needs
from moerge_coordinator.dashboard.site import HOME, Page, Visit
from moerge_proto.evaluations import VersionTable
from moerge_proto.experts import Expert
from moerge_proto.history import TrunkHistory
from moerge_proto.influence import VersionInfluence
from moerge_proto.progress import DomainProgress
from moerge_proto.rounds import Round
from moerge_proto.trunks import Trunk
from moerge_proto.versions import CHAMPION, Alias, AliasMove, Version
from moerge_proto.workflows import WorkflowEntry, WorkflowKind, WorkflowState

_PER_PAGE = 25


@dataclass(frozen=True)
class Change:
    """A difference of a version from the one before it, in words."""

    text: str
    kind: str


async def _home(visit: Visit) -> Response:
    return RedirectResponse(f"{HOME}/versions", 303)


async def _versions(visit: Visit) -> Response:
    rest, after = visit.rest, visit.after
    listed = await rest.page(Version, "/v1/versions", {"after": after, "newest": True})
    shown, before = list(listed.items[:_PER_PAGE]), listed.items[_PER_PAGE : _PER_PAGE + 1]
    further = shown[-1].number if before or listed.next else None
    domains, tables, aliases = await asyncio.gather(
        visit.domains(*shown, *before), rest.tables(shown), rest.all(Alias, "/v1/aliases")
    )
    changes = {
        each.number: _changes(each, earlier, domains)
        for each, earlier in zip(shown, [*shown[1:], *before, None], strict=False)
    }
    content: dict[str, Any] = {
        "versions": shown,
        "tables": tables,
        "changes": changes,
        "further": further,
        "chart": _timeline(shown, tables),
        "champion": None,
        "moves": [],
    }
    champion = next((alias for alias in aliases if alias.name == CHAMPION), None)
    if champion is not None:
        content["champion"] = serving = await rest.get(Version, f"/v1/versions/{champion.version}")
        content["champion_table"] = (await rest.tables([serving])).get(serving.number)
    if visit.operates:
        content |= await _state_of_affairs(visit, content["champion"], shown[0] if shown and not after else None)
        if champion is not None:
            history = await rest.all(AliasMove, f"/v1/aliases/{CHAMPION}/history")
            content["moves"] = list(reversed(history))[:1]
    return visit.show("versions.html", **content)


async def _state_of_affairs(visit: Visit, champion: Version | None, newest: Version | None) -> dict[str, object]:
    rest = visit.rest
    if newest is None:
        found = await rest.page(Version, "/v1/versions", {"newest": True})
        newest = next(iter(found.items), None)
    trunk, history, experts, rounds, workers, pages = await asyncio.gather(
        rest.find(Trunk, "/v1/trunks/current"),
        rest.find(TrunkHistory, "/v1/trunks/current/history"),
        rest.all(Expert, "/v1/experts"),
        rest.all(Round, "/v1/rounds"),
        rest.all(DomainProgress, "/v1/progress"),
        asyncio.gather(*(rest.page(WorkflowEntry, "/v1/workflows", {"kind": kind}) for kind in get_args(WorkflowKind))),
    )
    influence = None
    if newest is not None and newest != champion and newest.retired is None:
        influence = await rest.find(VersionInfluence, f"/v1/versions/{newest.number}/influence")
    workflows = [each for page in pages for each in page.items]
    remerge = history.remerge if history else None
    running = [each for each in workflows if each.state is WorkflowState.RUNNING]
    return {
        "needs": needs(champion, newest, trunk, experts, rounds, workflows, remerge, workers, influence),
        "running": running,
        "open_rounds": [each for each in rounds if each.state == "open"],
    }


def _changes(version: Version, before: Version | None, domains: Mapping[str, str]) -> list[Change]:
    if before is None:
        return [Change("first version", "note")] if version.number == 1 else []
    old, new = before.lineage, version.lineage
    found = [Change(f"+ {domains[each]}", "added") for each in new.experts if each not in old.experts]
    found += [Change(f"- {domains[each]}", "gone") for each in old.experts if each not in new.experts]
    if old.trunk != new.trunk:
        found.append(Change("new trunk", "note"))
    options, earlier = new.options.model_dump(), old.options.model_dump()
    found += [
        Change(f"{name.replace('ridge_lambda', 'lambda').replace('_', ' ')} {earlier[name]} → {value}", "note")
        for name, value in options.items()
        if earlier[name] != value
    ]
    if not found and set(old.contributions) != set(new.contributions):
        found.append(Change("other contributions", "note"))
    return found or [Change("other order of experts", "note")]


def _timeline(shown: Sequence[Version], tables: Mapping[int, VersionTable]) -> charts.Curves | None:
    """Normalised scores over versions: a line for each domain, and the average."""
    oldest_first = list(reversed(shown))
    names = list(dict.fromkeys(domain for each in oldest_first for domain in each.lineage.domains))
    if not any(table.scores for table in tables.values()):
        return None
    scores = {number: {score.domain: score.normalised for score in table.scores} for number, table in tables.items()}
    lines: dict[str, list[float | None]] = {
        name: [scores.get(each.number, {}).get(name) for each in oldest_first] for name in names
    }
    averages = [tables[each.number].average if each.number in tables else None for each in oldest_first]
    lines["average"] = averages
    across = [str(each.number) for each in oldest_first]
    title = "Normalised score of each version, by domain and on average"
    return charts.curves(title, [*names, "average"], lines, across, "average")


PAGES = {"/": Page(_home), "/versions": Page(_versions, "Versions")}
