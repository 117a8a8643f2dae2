"""`moerge body …`"""

from itertools import chain
from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.cli.common import Coordinator, Secret, digest_of_domain, minute, points, show, show_list, the_one, wait
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.settings import named_numbers, valid
from moerge.terminal import AsJson, echo, show_json
from moerge.trunk.methods.registry import SOLVED, takers
from moerge_proto.bodies import Body, BodyMethod, NewBody
from moerge_proto.experts import ExpertState
from moerge_proto.history import BodyHistory, BodyVersion, Remerge
from moerge_proto.options import PAPER, RECOMMENDED

app = typer.Typer(no_args_is_help=True, help="Bodies (operator).")
_DIGITS = 64
Digest = Annotated[str, typer.Argument(help="The body's digest, or its first digits, or 'current'.")]


def _named(client: Client, digest: str) -> str:
    whole = digest == "current" or len(digest) == _DIGITS
    return digest if whole else the_one("body", digest, (row.digest for row in client.bodies()))


@app.command("merge")
def merge_body(
    coordinator: Coordinator,
    secret: Secret,
    method: Annotated[
        BodyMethod | None,
        typer.Option(
            help=f"Method; seed: the registered seed's body. These need every owner's body contribution: {SOLVED}."
            f" Default: {RECOMMENDED.body} if all have arrived, otherwise {PAPER.body}."
        ),
    ] = None,
    expert: Annotated[
        list[str] | None, typer.Option(help="A domain to merge; repeat. Default: all except the base.")
    ] = None,
    weights: Annotated[
        list[str] | None, typer.Option("--weight", help=f"DOMAIN=NUMBER ({takers('weights')}); repeat. Default: 1.")
    ] = None,
    base: Annotated[str | None, typer.Option(help=f"The base model's domain ({takers('base')}).")] = None,
    retain: Annotated[
        float | None, typer.Option(help=f"Retained share of a task vector ({takers('retain')}). Default: 0.8.")
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help=f"Factor for the sum of task vectors ({takers('scale')}). Default: 1/3.")
    ] = None,
    random_seed: Annotated[
        int | None, typer.Option(help=f"Seed for dropping elements ({takers('random_seed')}). Default: 0.")
    ] = None,
    round: Annotated[str | None, typer.Option(help=f"Merge only this round's contributors ({SOLVED}).")] = None,
) -> None:
    """Merge a body from all ready experts, or take the seed's. It becomes the current body, for new contributions.

    Owners whose policy lacks "merged" in `bodies` contribute under the seed's body only.

    Example: moerge body merge --method regmean
    """
    with Client(coordinator, secret) as client:
        ready = [row for row in client.experts() if row.state is ExpertState.READY and row.parts is None]
        digests = {row.domain: row.digest for row in ready}
        given = {
            "weights": named_numbers("weights", weights) if weights else None,
            "base": digest_of_domain("--base", base, digests) if base else None,
            "retain": retain,
            "scale": scale,
            "random_seed": random_seed,
        }
        options = {name: value for name, value in given.items() if value is not None}
        experts = [digest_of_domain("--expert", domain, digests) for domain in expert] if expert else None
        new = valid(NewBody, {"method": method, "experts": experts, "options": options, "round": round})
        digest = wait(client, client.merge_body(new))
        echo(digest)
        if method is None:
            echo(_chosen(client, client.body(digest)), err=True)


def _chosen(client: Client, merged: Body) -> str:
    if merged.contributions:
        return f"Method: {merged.method}, because all merged experts have body contributions."
    sent = {contribution.expert for contribution in client.contributions("body") if contribution.active}
    missing = sorted(expert.domain for expert in client.experts() if expert.digest in set(merged.experts) - sent)
    return (
        f"Method: {merged.method}, because these domains have no body contribution: {', '.join(missing)}."
        " Their owners send it with `moerge worker run --body-contribution`."
    )


@app.command("list")
def list_bodies(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """List bodies.

    Example: moerge body list
    """
    with Client(coordinator, secret) as client:
        show_list("Bodies", ["digest", "method", "made of", "current"], client.bodies(), _line, as_json=as_json)


def _line(row: Body) -> list[str]:
    return [row.digest, row.method, row.source or f"{len(row.experts)} experts", "yes" if row.current else ""]


@app.command("show")
def show_body(
    coordinator: Coordinator,
    secret: Secret,
    digest: Digest = "current",
    as_json: AsJson = False,
) -> None:
    """Show a body's method, experts or seed, files and versions.

    Example: moerge body show
    """
    with Client(coordinator, secret) as client:
        row = client.body(_named(client, digest))
        if as_json:
            show_json(row)
            return
        domains = {expert.digest: expert.domain for expert in client.experts()}
        versions = [str(version.number) for version in client.versions() if version.lineage.body == row.digest]
    names = [domains.get(expert, expert[:12]) for expert in row.experts]
    options = row.options.model_dump(exclude_defaults=True)
    if row.options.base:
        options["base"] = domains.get(row.options.base, row.options.base[:12])
    lines = {
        "digest": row.digest,
        "method": ", ".join([row.method, *(f"{name} = {value}" for name, value in options.items())]),
        "made of": row.source or ", ".join(names),
        "body contributions": ", ".join(contribution[:12] for contribution in row.contributions) or "none needed",
        "family": f"{row.family}, {row.layers} layers, hidden size {row.hidden_size}",
        "tensors": f"{row.tensors}, {decimal(sum(file.size for file in row.files))}",
        "fractional bits": f"{min(row.exponents)} to {max(row.exponents)}",
        "versions on it": ", ".join(versions) or "none",
        "made": minute(row.created) + (", the current one" if row.current else ""),
    }
    show("Body", ["", ""], [list(line) for line in lines.items()])


@app.command("history")
def show_history(
    coordinator: Coordinator,
    secret: Secret,
    digest: Digest = "current",
    as_json: AsJson = False,
) -> None:
    """Show the domains' scores over the versions of a body, and the expected gain of a remerge.

    Scores are normalised, from the owners' reports, with the change from the version before in parentheses. A newcomer
    is a domain without an expert in a merged body.

    Example: moerge body history
    """
    with Client(coordinator, secret) as client:
        result = client.body_history(_named(client, digest))
    if as_json:
        show_json(result)
        return
    names = ([*(score.domain for score in row.scores), *row.missing] for row in result.versions)
    domains = list(dict.fromkeys(chain.from_iterable(names)))
    behind = any(row.newcomers for row in result.versions)
    rows = []
    for row in result.versions:
        cells = [_cell(row, domain) for domain in domains]
        rows.append([str(row.version), *cells, points(row.average), *([points(row.behind)] if behind else [])])
    columns = ["version", *domains, "average of its domains", *(["newcomers behind by"] if behind else [])]
    show(f"Body {result.body[:12]}", columns, rows)
    for line in _lines(result):
        echo(line)


def _cell(version: BodyVersion, domain: str) -> str:
    for score in version.scores:
        if score.domain == domain:
            moved = "" if score.moved is None else f" ({score.moved:+.1f})"
            return f"{score.normalised:.1f}{moved}{', newcomer' if score.newcomer else ''}"
    return "not evaluated" if domain in version.missing else ""


def _lines(history: BodyHistory) -> list[str]:
    lines = []
    if (before := history.before) is not None:
        gain = "not evaluated yet" if before.real is None else f"{before.real:+.1f}"
        change = f"{_expected(before)}; version {before.version} to {before.after or 'none yet'}: {gain}"
        lines.append(f"It replaced {before.body[:12]} to include {', '.join(before.newcomers)}: {change}.")
    if (new := history.remerge) is not None:
        lines.append(f"A remerge that includes {', '.join(new.newcomers)}: {_expected(new)}.")
        if new.real is not None:
            lines.append(f"Result of an earlier one, version {new.version} to {new.after}: {new.real:+.1f}.")
        elif new.recommended:
            lines.append("Recommended: moerge body remerge")
    return lines


def _expected(remerge: Remerge) -> str:
    if remerge.without_estimate is not None:
        return f"expected average gain {remerge.without_estimate}"
    if remerge.expected is None:
        missing = ", ".join(remerge.missing)
        return f"expected gain unknown ({f'not evaluated: {missing}' if missing else 'without any member'})"
    oracle = f"oracle: members {remerge.members_oracle:.1f}, newcomers {remerge.newcomers_oracle:.1f}"
    return f"expected average gain {remerge.expected:+.1f} ({oracle}; members lose {remerge.fall:.1f})"


@app.command()
def remerge(coordinator: Coordinator, secret: Secret) -> None:
    """Merge the current body again, including its versions' newcomers, and print the digest.

    All workers then contribute again. The champion stays until you promote another version.

    Example: moerge body remerge
    """
    with Client(coordinator, secret) as client:
        result = client.body_history("current").remerge
        if result is None:
            what = "it is the seed's, or its newest version has no newcomers"
            raise MoergeError(what, where="the current body", todo="to merge other experts: moerge body merge")
        echo(wait(client, client.merge_body(result.merge)))
