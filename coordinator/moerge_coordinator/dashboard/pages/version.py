"""One version: its quality, routing, routers and lineage."""

import math
from itertools import combinations
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from moerge.client.http import optional
from moerge.versions.compare import average_name, common_change
from moerge_coordinator.dashboard import charts
from moerge_coordinator.dashboard.site import Page, Visit
from moerge_proto.evaluations import VersionTable
from moerge_proto.normalised import average
from moerge_proto.owners import Role
from moerge_proto.trunks import Trunk
from moerge_proto.versions import SolveReport, Version

_MOST_ROWS = 100
_MOST_BOXES = 12


def _version(visit: Visit) -> Response:
    number = visit.path["number"]
    rest = visit.rest
    result = rest.version(number)
    domains, report = visit.domains(), _report(visit, result)
    table = optional(rest.version_table, number)
    content: dict[str, Any] = {"version": result, "table": table, "card": _card(visit, result), "report": None}
    content["influence"] = optional(rest.version_influence, number) if visit.operates else None
    content |= {"withdrawn": [domains.get(item, item[:10]) for item in result.contains_withdrawn]}
    content["routing"] = [] if table is None else _routing(table)
    content["oracle"] = None if table is None else _oracle(table)
    content["average_name"] = "" if table is None else average_name(table)
    content["before"] = before = optional(rest.version, number - 1) if number > 1 else None
    content["common"] = None
    if before is not None and table is not None and set(before.lineage.domains) != set(table.domains):
        content["common"] = common_change(rest.version_table(before.number), table)
    if report is not None:
        content |= {"report": report, "conditioning": _conditioning(report), "norms": _norms(report)}
        content |= {"cosines": _cosines(report), "pairs": _pairs(report)}
    made_of = result.lineage.contributions
    content |= {
        "lineage": _lineage(result, _trunk(visit, result)),
        "parts_of": made_of[:_MOST_ROWS],
        "more_parts": len(made_of[_MOST_ROWS:]),
    }
    return visit.show("version.html", **content)


def _oracle(table: VersionTable) -> float | None:
    """The oracle's average normalised score; None if a domain's score is missing or hidden."""
    scores = {score.domain: score.normalised_oracle for score in table.scores}
    return average(map(scores.get, table.domains))


def _report(visit: Visit, found: Version) -> SolveReport | None:
    if visit.who.role is Role.OWNER or found.retired or found.withheld:
        return None
    return optional(visit.rest.version_report, found.number)


def _trunk(visit: Visit, found: Version) -> Trunk | None:
    return None if visit.who.role is Role.READER else optional(visit.rest.trunk, found.lineage.trunk)


def _card(visit: Visit, found: Version) -> str | None:
    return None if found.retired or found.withheld else visit.rest.version_card(found.number)


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
    """Each pair of domains, and the cosine of their router columns in every layer."""
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
    """Contributions and trunk -> sums -> solve -> files. Without `trunk`, the trunk has no sources."""
    made = found.lineage
    few = list(zip(made.domains, made.experts, strict=True))[:_MOST_BOXES]
    owners = [charts.Node(domain, f"expert {digest[:10]}") for domain, digest in few]
    merged = [at for at, (_, digest) in enumerate(few) if trunk is not None and digest in trunk.contains]
    if len(made.domains) > _MOST_BOXES:
        owners.append(charts.Node(f"and {len(made.domains) - _MOST_BOXES} more", "experts"))
    count = len(owners)
    how = made.trunk[:10] if trunk is None else f"{trunk.method}, {len(trunk.contains)} experts"
    summed = f"{len(made.contributions)} contributions"
    columns = [
        ("experts", owners),
        (
            "merged and summed",
            [charts.Node("trunk", how, tuple(merged)), charts.Node("sums", summed, tuple(range(count)))],
        ),
        (
            "solved",
            [charts.Node("solve", f"lambda {made.options.ridge_lambda:g}, top {made.options.top_k}", (count + 1,))],
        ),
        ("published", [charts.Node(f"version {found.number}", f"{len(found.files)} files", (count, count + 2))]),
    ]
    return charts.graph(f"How version {found.number} was made", columns)


PAGES = {"/versions/{number:int}": Page(_version)}
