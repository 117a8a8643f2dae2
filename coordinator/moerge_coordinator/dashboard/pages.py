"""The pages. Each shows what REST calls return, and changes nothing."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from moerge_coordinator.dashboard import charts
from moerge_coordinator.dashboard.attention import needs
from moerge_coordinator.dashboard.rest import Rest
from moerge_coordinator.dashboard.site import HOME, Visit
from moerge_proto.audit import AuditEntry
from moerge_proto.contributions import Contribution
from moerge_proto.evaluations import VersionTable
from moerge_proto.experts import Expert
from moerge_proto.history import TrunkHistory
from moerge_proto.owners import Owner, Role
from moerge_proto.progress import DomainProgress
from moerge_proto.rounds import Round
from moerge_proto.trunks import Trunk
from moerge_proto.versions import CHAMPION, Alias, AliasMove, Comparison, SolveReport, Version
from moerge_proto.workflows import WorkflowEntry, WorkflowState

_PER_PAGE = 25
_MOST_ROWS = 100
_MOST_BOXES = 12


@dataclass(frozen=True)
class Change:
    """What a version has that the one before it hadn't, in words."""

    text: str
    kind: str


async def home(visit: Visit) -> Response:
    return RedirectResponse(f"{HOME}/versions", 303)


def _after(visit: Visit) -> str:
    return visit.request.query_params.get("after", "")


async def _tables(rest: Rest, versions: Sequence[Version]) -> dict[int, VersionTable]:
    tables = await rest.each(VersionTable, [f"/v1/versions/{each.number}/table" for each in versions])
    return {table.version: table for table in tables if table is not None}


async def versions(visit: Visit) -> Response:
    rest, after = visit.rest, _after(visit)
    listed = await rest.page(Version, "/v1/versions", {"after": after, "newest": True})
    shown, before = list(listed.items[:_PER_PAGE]), listed.items[_PER_PAGE : _PER_PAGE + 1]
    further = shown[-1].number if before or listed.next else None
    domains, tables, aliases = await asyncio.gather(
        _domains(visit), _tables(rest, shown), rest.all(Alias, "/v1/aliases")
    )
    earlier = [*shown[1:], *before]
    changes = {
        each.number: _changes(each, earlier[index] if index < len(earlier) else None, domains)
        for index, each in enumerate(shown)
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
        content["champion_table"] = (await _tables(rest, [serving])).get(serving.number)
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
    trunk, history, experts, rounds, workflows = await asyncio.gather(
        rest.find(Trunk, "/v1/trunks/current"),
        rest.find(TrunkHistory, "/v1/trunks/current/history"),
        rest.all(Expert, "/v1/experts"),
        rest.all(Round, "/v1/rounds"),
        rest.page(WorkflowEntry, "/v1/workflows"),
    )
    remerge = history.remerge if history else None
    running = [each for each in workflows.items if each.state is WorkflowState.RUNNING]
    return {
        "needs": needs(champion, newest, trunk, experts, rounds, workflows.items, remerge),
        "running": running,
        "open_rounds": [each for each in rounds if each.state == "open"],
    }


async def _domains(visit: Visit) -> dict[str, str]:
    """Digest -> domain of every expert that the caller may see."""
    if visit.who.role is Role.READER:
        return {}
    return {each.digest: each.domain for each in await visit.rest.all(Expert, "/v1/experts")}


def _named(version: Version) -> dict[str, str]:
    return dict(zip(version.lineage.experts, version.lineage.domains, strict=True))


def _changes(version: Version, before: Version | None, domains: dict[str, str]) -> list[Change]:
    if before is None:
        return [Change("first version", "note")] if version.number == 1 else []
    old, new, names = before.lineage, version.lineage, {**domains, **_named(before), **_named(version)}
    found = [Change(f"+ {names[each]}", "added") for each in new.experts if each not in old.experts]
    found += [Change(f"- {names[each]}", "gone") for each in old.experts if each not in new.experts]
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


def _timeline(shown: Sequence[Version], tables: dict[int, VersionTable]) -> charts.Curves | None:
    """Normalised scores over versions: the average, and a line for each domain."""
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


async def version(visit: Visit) -> Response:
    number = visit.request.path_params["number"]
    rest = visit.rest
    found = await rest.get(Version, f"/v1/versions/{number}")
    domains, tables, report, card, trunk = await asyncio.gather(
        _domains(visit), _tables(rest, [found]), _report(visit, found), _card(visit, found), _trunk(visit, found)
    )
    table = tables.get(number)
    content: dict[str, Any] = {"version": found, "table": table, "card": card, "report": None}
    content |= {"withdrawn": [domains.get(each, each[:10]) for each in found.contains_withdrawn]}
    content["routing"] = [] if table is None else _routing(table)
    content["oracle"] = None if table is None else _oracle(table)
    content["before"] = await rest.find(Version, f"/v1/versions/{number - 1}") if number > 1 else None
    if report is not None:
        content |= {"report": report, "conditioning": _conditioning(report), "norms": _norms(report)}
        content |= {"cosines": _cosines(report), "pairs": _pairs(report)}
    made_of = found.lineage.contributions
    content |= {
        "lineage": _lineage(found, trunk),
        "parts_of": made_of[:_MOST_ROWS],
        "more_parts": len(made_of[_MOST_ROWS:]),
    }
    return visit.show("version.html", **content)


def _oracle(table: VersionTable) -> float | None:
    """The oracle's normalised score over all domains, if all are there to see."""
    scores = [score.normalised_oracle for score in table.scores]
    return sum(scores) / len(scores) if len(scores) == len(table.domains) else None


async def _report(visit: Visit, found: Version) -> SolveReport | None:
    if visit.who.role is Role.OWNER or found.retired or found.withheld:
        return None
    return await visit.rest.find(SolveReport, f"/v1/versions/{found.number}/report")


async def _trunk(visit: Visit, found: Version) -> Trunk | None:
    if visit.who.role is Role.READER:
        return None
    return await visit.rest.find(Trunk, f"/v1/trunks/{found.lineage.trunk}")


async def _card(visit: Visit, found: Version) -> str | None:
    if found.retired or found.withheld:
        return None
    return (await visit.rest.send("GET", f"/v1/versions/{found.number}/card")).decode()


def _routing(table: VersionTable) -> list[tuple[str, Markup, list[list[float]]]]:
    """For each domain: its heat map, and the numbers behind it, experts x layers."""
    found = []
    for score in table.scores:
        rows = [list(line) for line in zip(*score.shares, strict=True)]
        title = f"Where {score.domain}'s tokens went: share of each expert, layer by layer"
        found.append((score.domain, charts.heat(title, table.domains, rows), rows))
    return found


def _layers(report: SolveReport) -> list[str]:
    return [str(index) for index in range(len(report.layers))]


def _conditioning(report: SolveReport) -> charts.Curves:
    values: dict[str, list[float | None]] = {"condition": [math.log10(layer.condition) for layer in report.layers]}
    return charts.curves(
        "Condition number of each layer's ridge system",
        ["condition"],
        values,
        _layers(report),
        "condition",
        powers=True,
    )


def _norms(report: SolveReport) -> charts.Curves:
    values: dict[str, list[float | None]] = {
        domain: [layer.norms[index] for layer in report.layers] for index, domain in enumerate(report.domains)
    }
    return charts.curves("Norm of each router column, by layer", report.domains, values, _layers(report))


def _pairs(report: SolveReport) -> list[tuple[str, list[float]]]:
    """Each two domains, and the cosine between their router columns in every layer."""
    indexes = combinations(range(len(report.domains)), 2)
    return [
        (f"{report.domains[i]}, {report.domains[j]}", [layer.cosines[i][j] for layer in report.layers])
        for i, j in indexes
    ]


def _cosines(report: SolveReport) -> Markup | None:
    pairs = _pairs(report)
    if not pairs:
        return None
    title = "Cosine between the router columns of each two domains, by layer"
    return charts.heat(title, [name for name, _ in pairs], [values for _, values in pairs], -1, 1, percent=False)


def _lineage(found: Version, trunk: Trunk | None) -> Markup:
    """Contributions and trunk -> sums -> solve -> files. Without the trunk, what it was merged from is left open."""
    made = found.lineage
    few = list(zip(made.domains, made.experts, strict=True))[:_MOST_BOXES]
    owners = [charts.Node(domain, f"expert {digest[:10]}") for domain, digest in few]
    merged = [at for at, (_, digest) in enumerate(few) if trunk is not None and digest in trunk.contains]
    if len(made.domains) > _MOST_BOXES:
        owners.append(charts.Node(f"and {len(made.domains) - _MOST_BOXES} more", "experts"))
    count = len(owners)
    how = made.trunk[:10] if trunk is None else f"{trunk.method} of {len(trunk.contains)}, {made.trunk[:10]}"
    summed = f"of {len(made.contributions)} contributions"
    columns = [
        ("experts", owners),
        (
            "merged, summed",
            [charts.Node("trunk", how, tuple(merged)), charts.Node("sums", summed, tuple(range(count)))],
        ),
        (
            "solved",
            [charts.Node("solve", f"lambda {made.options.ridge_lambda:g}, top {made.options.top_k}", (count + 1,))],
        ),
        ("published", [charts.Node(f"{len(found.files)} files", f"version {found.number}", (count, count + 2))]),
    ]
    return charts.graph(f"How version {found.number} was made", columns)


async def compare(visit: Visit) -> Response:
    rest, asked = visit.rest, visit.request.query_params
    listed = await rest.page(Version, "/v1/versions", {"newest": True})
    numbers = [each.number for each in listed.items]
    before, after = asked.get("before", ""), asked.get("version", "")
    content: dict[str, Any] = {"numbers": numbers, "before": before, "version": after, "comparison": None}
    if before.isdigit() and after.isdigit():
        path = f"/v1/versions/{before}/compare/{after}"
        comparison, old, new, domains = await asyncio.gather(
            rest.get(Comparison, path),
            rest.get(Version, f"/v1/versions/{before}"),
            rest.get(Version, f"/v1/versions/{after}"),
            _domains(visit),
        )
        tables = await _tables(rest, [old, new])
        names = {**domains, **_named(old), **_named(new)}
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


async def alias(visit: Visit) -> Response:
    name = visit.request.path_params["name"]
    found, history = await asyncio.gather(
        visit.rest.find(Alias, f"/v1/aliases/{name}"), visit.rest.all(AliasMove, f"/v1/aliases/{name}/history")
    )
    return visit.show("alias.html", name=name, alias=found, moves=list(reversed(history))[:_MOST_ROWS])


async def experts(visit: Visit) -> Response:
    page = await visit.rest.page(Expert, "/v1/experts", {"after": _after(visit)})
    return visit.show("experts.html", experts=page.items, further=page.next)


async def owners(visit: Visit) -> Response:
    rest = visit.rest
    page, rounds, experts, told = await asyncio.gather(
        rest.page(Owner, "/v1/owners", {"after": _after(visit)}),
        rest.all(Round, "/v1/rounds"),
        rest.all(Expert, "/v1/experts"),
        rest.all(DomainProgress, "/v1/progress"),
    )
    state = {each.domain: each.state.value for each in experts if each.state != "withdrawn" and each.fitted is None}
    newest = list(reversed(rounds))[:_MOST_ROWS]
    workers = {each.domain: each for each in told}
    return visit.show("owners.html", owners=page.items, further=page.next, rounds=newest, state=state, workers=workers)


async def contributions(visit: Visit) -> Response:
    page = await visit.rest.page(Contribution, "/v1/contributions", {"after": _after(visit), "newest": True})
    current = await visit.rest.find(Trunk, "/v1/trunks/current")
    trunk = current.digest if current else None
    return visit.show("contributions.html", contributions=page.items, further=page.next, trunk=trunk)


async def trunks(visit: Visit) -> Response:
    page, domains, history = await asyncio.gather(
        visit.rest.page(Trunk, "/v1/trunks", {"after": _after(visit)}),
        _domains(visit),
        visit.rest.find(TrunkHistory, "/v1/trunks/current/history"),
    )
    shown = list(reversed(page.items))
    content: dict[str, Any] = {"trunks": shown, "further": page.next, "domains": domains, "history": history}
    content["versions"] = list(reversed(history.versions))[:_PER_PAGE] if history else []
    return visit.show("trunks.html", **content)


async def workflows(visit: Visit) -> Response:
    page = await visit.rest.page(WorkflowEntry, "/v1/workflows", {"after": _after(visit)})
    return visit.show("workflows.html", workflows=page.items, further=page.next)


async def audit(visit: Visit) -> Response:
    asked = visit.request.query_params
    given = {name: asked.get(name, "") for name in ("owner", "path", "failed")}
    page = await visit.rest.page(AuditEntry, "/v1/audit", {"after": _after(visit), "newest": True, **given})
    return visit.show("audit.html", entries=page.items, further=page.next, given=given)


async def settings(visit: Visit) -> Response:
    found = json.loads(await visit.rest.send("GET", "/v1/settings"))
    return visit.show("settings.html", settings=found)
