"""`moerge expert …`"""

from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.cli.common import LEAST_DIGITS, Coordinator, Secret, Yes, confirm, minute, show, show_list, the_one
from moerge.cli.grants import grant, grants, revoke
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.experts import Expert, ExpertState, Parts
from moerge_proto.usage import Usage, percent

app = typer.Typer(no_args_is_help=True, help="Experts (operators; owners see their own).")
Domain = Annotated[str, typer.Argument(help=f"The expert's domain, or at least {LEAST_DIGITS} digits of its digest.")]


def _find(client: Client, name: str) -> Expert:
    """The domain's newest expert, if possible not withdrawn; otherwise the expert with that digest."""
    rows = list(client.experts())
    result = [row for row in rows if name == row.domain]
    start = name.rstrip("…")
    if not result and len(start) >= LEAST_DIGITS and any(row.digest.startswith(start) for row in rows):
        digest = the_one("expert", name, [row.digest for row in rows])
        result = [row for row in rows if row.digest == digest]
    if not result:
        raise MoergeError(f"no expert of {name!r}", where="domain", todo="run: moerge expert list")
    return max(result, key=lambda row: (row.state is not ExpertState.WITHDRAWN, row.number))


@app.command("list")
def list_experts(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """List experts.

    Example: moerge expert list
    """
    columns = ["domain", "owner", "family", "licence", "redistribute", "state", "digest"]
    with Client(coordinator, secret) as client:
        show_list("Experts", columns, client.experts(), _line, as_json=as_json)


def _line(row: Expert) -> list[str]:
    return [row.domain, row.owner, row.family, row.license, _yes(row.redistribute), _state(row), row.digest]


def _state(row: Expert) -> str:
    return f"{row.state.value}, {_parts(row.parts)}"


def _parts(parts: Parts) -> str:
    kept = "" if parts.own_head else "; keeps the seed's body and head"
    return f"for body {parts.body[:12]}, MLPs {'fitted' if parts.fitted else 'own'}{kept}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


@app.command("show")
def show_expert(domain: Domain, coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """Show an expert, its files, and the versions that contain it.

    Example: moerge expert show law
    """
    with Client(coordinator, secret) as client:
        row = _find(client, domain)
        versions = [version.number for version in client.versions() if row.digest in version.lineage.experts]
    if as_json:
        show_json({"expert": row, "versions": versions})
        return
    lines = {
        "domain": row.domain,
        "owner": row.owner,
        "digest": row.digest,
        "family": row.family,
        "licence": row.license,
        "redistribute": _yes(row.redistribute),
        "state": row.state.value + (f": {row.problem.detail}" if row.problem else ""),
        "added": minute(row.created),
        "parts": f"{_parts(row.parts)}; of expert {row.parts.expert[:12]}",
        "versions with its MLPs": ", ".join(map(str, versions)) or "none",
    }
    if row.adapter:
        lines["weights"] = "an adapter's, merged with the seed"
    if row.withdrawn:
        purged = ", files purged" if row.purged else ""
        lines["withdrawn"] = minute(row.withdrawn) + purged
    show("Expert", ["", ""], [list(line) for line in lines.items()])
    show("Files", ["file", "size", "sha256"], [[f.name, decimal(f.size), f.sha256[:12]] for f in row.files])


@app.command("withdraw")
def withdraw(
    domain: Domain,
    coordinator: Coordinator,
    secret: Secret,
    serve: Annotated[
        bool, typer.Option("--serve/--withhold", help="Whether consumers can still pull versions that contain it.")
    ] = True,
    yes: Yes = False,
) -> None:
    """Withdraw an expert and its contributions. A worker of its owner doesn't register it again.

    Example: moerge expert withdraw law --withhold
    """
    with Client(coordinator, secret) as client:
        row = _find(client, domain)
        confirm(_follows(client, row, serve=serve), yes=yes)
        done = client.withdraw_expert(row.digest, serve=serve)
        echo(f"{done.expert.domain} is withdrawn: the next version has no MLPs, head or router column of it.")
        if done.versions:
            numbers = ", ".join(map(str, done.versions))
            echo(f"Versions that contain it until they are retired: {numbers}{'' if serve else ' (withheld)'}.")


def _follows(client: Client, row: Expert, *, serve: bool) -> str:
    words = f"Expert {row.digest[:12]} of {row.domain} and its contributions are withdrawn."
    versions = (version for version in client.versions() if version.retired is None)
    if inside := [version.number for version in versions if row.digest in version.lineage.experts]:
        numbers = ", ".join(map(str, inside))
        words += f" Versions that contain it {'are still served' if serve else 'are withheld'}: {numbers}."
    return words


app.command("grant")(grant)
app.command("revoke")(revoke)
app.command("grants")(grants)


@app.command("purge")
def purge(
    domain: Domain,
    coordinator: Coordinator,
    secret: Secret,
    retire: Annotated[bool, typer.Option("--retire", help="Also retire versions that contain it.")] = False,
    yes: Yes = False,
) -> None:
    """Remove a withdrawn expert's files and statistics from the coordinator.

    Example: moerge expert purge law --retire
    """
    with Client(coordinator, secret) as client:
        row = _find(client, domain)
        also = ", and versions that contain it are retired" if retire else ""
        confirm(f"Files and statistics of expert {row.digest[:12]} are removed permanently{also}.", yes=yes)
        done = client.purge_expert(row.digest, retire=retire)
    echo(f"Removed {done.removed} files, {decimal(done.bytes)}.")
    if done.versions:
        numbers = ", ".join(map(str, done.versions))
        echo(f"Versions {numbers} contain it and keep their files. To retire them: add --retire.")


@app.command("usage")
def list_usage(
    coordinator: Coordinator,
    secret: Secret,
    domain: Annotated[str | None, typer.Argument(help="One domain alone.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the use of experts that consumers reported, in percent of their own requests.

    Owners see their own domains, operators all, readers their own reports. A report says nothing about the number of
    requests.

    Example: moerge expert usage law
    """
    columns = ["domain", "version", "reader", "tokens", "weight", "reported"]
    with Client(coordinator, secret) as client:
        rows = [row for row in client.usage() if domain in (None, row.domain)]
    show_list("Reported use, in percent", columns, rows, _used, as_json=as_json)


def _used(row: Usage) -> list[str]:
    tokens, weight = row.shares.tokens, row.shares.weight
    shares = [percent(tokens, row.shares.tokens_error), percent(weight, row.shares.weight_error)]
    return [row.domain, str(row.version), row.reader or "without a name", *shares, minute(row.created)]
