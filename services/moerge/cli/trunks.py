"""`moerge trunk …`: how a trunk does as experts join, and merging it anew."""

from typing import Annotated

import typer

from moerge.cli.common import Coordinator, Secret, show, wait
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge_proto.history import Remerge, TrunkHistory, TrunkVersion


def add_to(app: typer.Typer) -> None:
    """Adds these commands to the group `trunk`."""
    app.command("history")(show_history)
    app.command()(remerge)


def show_history(
    coordinator: Coordinator,
    secret: Secret,
    digest: Annotated[str, typer.Argument(help="The trunk's digest, or 'current'.")] = "current",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead.")] = False,
) -> None:
    """Shows how domains moved from version to version of a trunk, and what a remerge is expected to gain.

    Scores are normalised, by what owners reported; behind each, the points since the version before. A newcomer is a
    domain whose expert the trunk was not merged from.

    Example: moerge trunk history
    """
    with Client(coordinator, secret) as client:
        found = client.trunk_history(digest)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
        return
    told = (domain for each in found.versions for domain in (*(score.domain for score in each.scores), *each.missing))
    domains = list(dict.fromkeys(told))
    rows = [
        [str(each.version), *(_cell(each, domain) for domain in domains), _number(each.average), _number(each.behind)]
        for each in found.versions
    ]
    show(f"Trunk {found.trunk[:12]}", ["version", *domains, "average", "newcomers behind by"], rows)
    for line in _lines(found):
        typer.echo(line)


def _cell(version: TrunkVersion, domain: str) -> str:
    for score in version.scores:
        if score.domain == domain:
            moved = "" if score.moved is None else f" ({score.moved:+.1f})"
            return f"{score.normalised:.1f}{moved}{', newcomer' if score.newcomer else ''}"
    return "not evaluated" if domain in version.missing else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _lines(found: TrunkHistory) -> list[str]:
    lines = []
    if (made := found.before) is not None:
        came = "not evaluated yet" if made.real is None else f"{made.real:+.1f}"
        of = f"version {made.version} to {made.after or 'none yet'}"
        lines.append(f"Merged in the place of {made.trunk[:12]} with {_names(made)}: {_expected(made)}; {of}: {came}.")
    if (asked := found.remerge) is not None:
        lines.append(f"A remerge with {_names(asked)}: {_expected(asked)}.")
        if asked.real is not None:
            lines.append(f"It has been tried; version {asked.version} to {asked.after}: {asked.real:+.1f}.")
        elif asked.recommended:
            lines.append("Recommended: moerge trunk remerge")
    return lines


def _names(found: Remerge) -> str:
    return ", ".join(found.newcomers)


def _expected(found: Remerge) -> str:
    if found.expected is None:
        lacking = ", ".join(found.missing)
        return f"what to expect is not known, {f'not evaluated: {lacking}' if lacking else 'no member is in it'}"
    rests = f"oracle {found.members_oracle:.1f} of members, {found.newcomers_oracle:.1f} of newcomers"
    return f"expected {found.expected:+.1f} on average ({rests}; members lose {found.fall:.1f})"


def remerge(coordinator: Coordinator, secret: Secret) -> None:
    """Merges the current trunk anew, with the experts of its versions that it wasn't merged from; prints its digest.

    Every owner's worker then contributes anew; versions are served as before until you promote another.

    Example: moerge trunk remerge
    """
    with Client(coordinator, secret) as client:
        found = client.trunk_history("current").remerge
        if found is None:
            what = "its newest version has no newcomers, or its method is base"
            raise MoergeError(what, where="the current trunk", todo="moerge trunk merge merges any experts")
        typer.echo(wait(client, client.merge_trunk(found.merge)))
