"""One version: its quality, routing, routers and lineage."""

import math
from itertools import combinations
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from moerge.bodies.head_kinds import HEADS
from moerge.client.http import optional
from moerge.versions.compare import average_name, common_change
from moerge.versions.evaluations import on_tasks
from moerge_coordinator.dashboard import charts
from moerge_coordinator.dashboard.grants import NO_PARTS, parts_of, share
from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.evaluations import VersionTable
from moerge_proto.normalised import average
from moerge_proto.owners import Role
from moerge_proto.versions import CHAMPION, SolveReport

_MOST_ROWS = 100


def _version(visit: Visit) -> Response:
    number, rest = visit.path["number"], visit.rest
    version, domains = rest.version(number), visit.domains()
    table = visit.table(version)
    served = not (version.retired or version.withheld)
    contributions = [("router", digest) for digest in version.lineage.contributions]
    contributions += [("head", digest) for digest in version.lineage.head.contributions]
    mine = share(visit, number)
    readable = served and (mine is None or mine.whole)
    report = optional(rest.version_report, number) if readable and visit.who.role is not Role.OWNER else None
    before = optional(rest.version, number - 1) if number > 1 else None
    reported, alias = optional(rest.evaluations(number).page), optional(rest.alias, CHAMPION)
    champion = None if alias is None or alias.version == number else alias.version
    content: dict[str, Any] = {
        "version": version,
        "table": table,
        "card": rest.version_card(number) if readable else None,
        "share": mine,
        "report": report,
        "influence": optional(rest.version_influence, number) if visit.operates else None,
        "withdrawn": [domains.get(digest, digest[:10]) for digest in version.contains_withdrawn],
        "routing": _routing(table),
        "oracle": _oracle(table),
        "average_name": average_name(table),
        "tasks": on_tasks(visit.scores(champion) if champion else [], reported.items if reported else []),
        "more_tasks": reported is not None and reported.next is not None,
        "champion": champion,
        "before": before,
        "common": None,
        "head": HEADS[version.lineage.head.method].about,
        "contributions": contributions[:_MOST_ROWS],
        "more_contributions": len(contributions[_MOST_ROWS:]),
    }
    content |= parts_of(visit, number) if served else NO_PARTS
    if before is not None and set(before.lineage.domains) != set(table.domains):
        content["common"] = common_change(visit.table(before), table)
    if report is not None:
        content |= {"conditioning": _conditioning(report), "norms": _norms(report)}
        content |= {"cosines": _cosines(report), "pairs": _pairs(report)}
    return visit.show("version.html", **content)


def _oracle(table: VersionTable) -> float | None:
    """The oracle's average normalised score; None if a domain's score is missing or hidden."""
    scores = {score.domain: score.normalised_oracle for score in table.scores}
    return average(map(scores.get, table.averaged))


def _routing(table: VersionTable) -> list[tuple[str, Markup, list[list[float]]]]:
    """Each domain, its heat map, and its numbers, experts x layers."""
    result = []
    for score in table.scores:
        rows = [list(line) for line in zip(*score.shares, strict=True)]
        title = f"Tokens of {score.domain}: share of each expert, by layer"
        result.append((score.domain, charts.heat(title, table.domains, rows), rows))
    return result


def _layers(report: SolveReport) -> list[str]:
    return [str(index) for index in range(len(report.layers))]


def _conditioning(report: SolveReport) -> charts.Curves:
    title = "Condition number of each layer's ridge system"
    values: dict[str, list[float | None]] = {"condition": [math.log10(layer.condition) for layer in report.layers]}
    return charts.curves(title, ["condition"], values, _layers(report), "condition", powers=True)


def _norms(report: SolveReport) -> charts.Curves:
    values: dict[str, list[float | None]] = {
        domain: [layer.norms[index] for layer in report.layers] for index, domain in enumerate(report.domains)
    }
    return charts.curves("Norm of each router column, by layer", report.domains, values, _layers(report))


def _pairs(report: SolveReport) -> list[tuple[str, list[float]]]:
    """Each pair of domains, and the cosine of their router columns in every layer."""
    pairs = combinations(enumerate(report.domains), 2)
    return [(f"{one}, {other}", [layer.cosines[i][j] for layer in report.layers]) for (i, one), (j, other) in pairs]


def _cosines(report: SolveReport) -> Markup | None:
    pairs = _pairs(report)
    if not pairs:
        return None
    title = "Cosine between the router columns of each two domains, by layer"
    return charts.heat(title, [name for name, _ in pairs], [values for _, values in pairs], cosines=True)


PAGES = {"/versions/{number:int}": Page(_version)}
