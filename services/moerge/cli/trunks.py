"""`moerge trunk …`"""

from itertools import chain
from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.cli.common import Coordinator, Secret, digest_of_domain, minute, points, show, show_list, the_one, wait
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.settings import named_numbers, valid
from moerge.terminal import AsJson, show_json
from moerge.trunk.methods.registry import SOLVED, takers
from moerge_proto.experts import ExpertState
from moerge_proto.history import Remerge, TrunkHistory, TrunkVersion
from moerge_proto.options import PAPER, RECOMMENDED
from moerge_proto.trunks import NewTrunk, Trunk, TrunkMethod

app = typer.Typer(no_args_is_help=True, help="Trunks (operator).")
_DIGITS = 64
Digest = Annotated[str, typer.Argument(help="The trunk's digest, or its first digits, or 'current'.")]


def _named(client: Client, digest: str) -> str:
    whole = digest == "current" or len(digest) == _DIGITS
    return digest if whole else the_one("trunk", digest, (row.digest for row in client.trunks()))


@app.command("merge")
def merge_trunk(
    coordinator: Coordinator,
    secret: Secret,
    method: Annotated[
        TrunkMethod | None,
        typer.Option(
            help=f"Merge method. These need every owner's trunk contribution: {SOLVED}."
            f" Default: {RECOMMENDED.method} if all have arrived, otherwise {PAPER.method}."
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
    seed: Annotated[
        int | None, typer.Option(help=f"Random seed for dropping elements ({takers('seed')}). Default: 0.")
    ] = None,
    round: Annotated[str | None, typer.Option(help=f"Merge only this round's contributors ({SOLVED}).")] = None,
) -> None:
    """Merge a trunk from all ready experts. It becomes the current trunk, for new contributions.

    Example: moerge trunk merge --method regmean
    """
    with Client(coordinator, secret) as client:
        ready = [row for row in client.experts() if row.state is ExpertState.READY and row.fitted is None]
        digests = {row.domain: row.digest for row in ready}
        given = {
            "weights": named_numbers("weights", weights) if weights else None,
            "base": digest_of_domain("--base", base, digests) if base else None,
            "retain": retain,
            "scale": scale,
            "seed": seed,
        }
        options = {name: value for name, value in given.items() if value is not None}
        experts = [digest_of_domain("--expert", domain, digests) for domain in expert] if expert else None
        new = valid(NewTrunk, {"method": method, "experts": experts, "options": options, "round": round})
        digest = wait(client, client.merge_trunk(new))
        typer.echo(digest)
        if method is None:
            typer.echo(_chosen(client, client.trunk(digest)), err=True)


def _chosen(client: Client, merged: Trunk) -> str:
    if merged.contributions:
        return f"Method: {merged.method}, because all merged experts have trunk contributions."
    sent = {contribution.expert for contribution in client.contributions("trunk") if contribution.active}
    missing = sorted(expert.domain for expert in client.experts() if expert.digest in set(merged.experts) - sent)
    return (
        f"Method: {merged.method}, because these domains have no trunk contribution: {', '.join(missing)}."
        " Their owners send it with `moerge worker run --trunk-contribution`."
    )


@app.command("list")
def list_trunks(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """List trunks.

    Example: moerge trunk list
    """
    with Client(coordinator, secret) as client:
        show_list("Trunks", ["digest", "method", "experts", "current"], client.trunks(), _line, as_json=as_json)


def _line(row: Trunk) -> list[str]:
    return [row.digest, row.method, str(len(row.experts)), "yes" if row.current else ""]


@app.command("show")
def show_trunk(
    coordinator: Coordinator,
    secret: Secret,
    digest: Digest = "current",
    as_json: AsJson = False,
) -> None:
    """Show a trunk's experts, merge method, files and versions.

    Example: moerge trunk show
    """
    with Client(coordinator, secret) as client:
        row = client.trunk(_named(client, digest))
        if as_json:
            show_json(row)
            return
        domains = {expert.digest: expert.domain for expert in client.experts()}
        versions = [str(version.number) for version in client.versions() if version.lineage.trunk == row.digest]
    names = [domains.get(expert, expert[:12]) for expert in row.experts]
    options = row.options.model_dump(exclude_defaults=True)
    if row.options.base:
        options["base"] = domains.get(row.options.base, row.options.base[:12])
    lines = {
        "digest": row.digest,
        "method": ", ".join([row.method, *(f"{name} = {value}" for name, value in options.items())]),
        "merged from": ", ".join(names),
        "trunk contributions": ", ".join(contribution[:12] for contribution in row.contributions) or "none needed",
        "family": f"{row.family}, {row.layers} layers, hidden size {row.hidden_size}",
        "tensors": f"{row.tensors}, {decimal(sum(file.size for file in row.files))}",
        "fractional bits": f"{min(row.exponents)} to {max(row.exponents)}",
        "versions on it": ", ".join(versions) or "none",
        "made": minute(row.created) + (", the current one" if row.current else ""),
    }
    show("Trunk", ["", ""], [list(line) for line in lines.items()])


@app.command("history")
def show_history(
    coordinator: Coordinator,
    secret: Secret,
    digest: Digest = "current",
    as_json: AsJson = False,
) -> None:
    """Show the domains' scores over the versions of a trunk, and the expected gain of a remerge.

    Scores are normalised, from the owners' reports, with the change from the version before in parentheses. A newcomer
    is a domain without an expert in the trunk.

    Example: moerge trunk history
    """
    with Client(coordinator, secret) as client:
        result = client.trunk_history(_named(client, digest))
    if as_json:
        show_json(result)
        return
    names = ([*(score.domain for score in row.scores), *row.missing] for row in result.versions)
    domains = list(dict.fromkeys(chain.from_iterable(names)))
    rows = []
    for row in result.versions:
        cells = [_cell(row, domain) for domain in domains]
        rows.append([str(row.version), *cells, points(row.average), points(row.behind)])
    show(f"Trunk {result.trunk[:12]}", ["version", *domains, "average of its domains", "newcomers behind by"], rows)
    for line in _lines(result):
        typer.echo(line)


def _cell(version: TrunkVersion, domain: str) -> str:
    for score in version.scores:
        if score.domain == domain:
            moved = "" if score.moved is None else f" ({score.moved:+.1f})"
            return f"{score.normalised:.1f}{moved}{', newcomer' if score.newcomer else ''}"
    return "not evaluated" if domain in version.missing else ""


def _lines(history: TrunkHistory) -> list[str]:
    lines = []
    if (before := history.before) is not None:
        gain = "not evaluated yet" if before.real is None else f"{before.real:+.1f}"
        change = f"{_expected(before)}; version {before.version} to {before.after or 'none yet'}: {gain}"
        lines.append(f"It replaced {before.trunk[:12]} to include {', '.join(before.newcomers)}: {change}.")
    if (new := history.remerge) is not None:
        lines.append(f"A remerge that includes {', '.join(new.newcomers)}: {_expected(new)}.")
        if new.real is not None:
            lines.append(f"Result of an earlier one, version {new.version} to {new.after}: {new.real:+.1f}.")
        elif new.recommended:
            lines.append("Recommended: moerge trunk remerge")
    return lines


def _expected(remerge: Remerge) -> str:
    if remerge.expected is None:
        missing = ", ".join(remerge.missing)
        return f"expected gain unknown ({f'not evaluated: {missing}' if missing else 'without any member'})"
    oracle = f"oracle: members {remerge.members_oracle:.1f}, newcomers {remerge.newcomers_oracle:.1f}"
    return f"expected average gain {remerge.expected:+.1f} ({oracle}; members lose {remerge.fall:.1f})"


@app.command()
def remerge(coordinator: Coordinator, secret: Secret) -> None:
    """Merge the current trunk again, including its versions' newcomers, and print the digest.

    All workers then contribute again. The champion stays until you promote another version.

    Example: moerge trunk remerge
    """
    with Client(coordinator, secret) as client:
        result = client.trunk_history("current").remerge
        if result is None:
            what = "its newest version has no newcomers, or its method is base"
            raise MoergeError(what, where="the current trunk", todo="to merge other experts: moerge trunk merge")
        typer.echo(wait(client, client.merge_trunk(result.merge)))
