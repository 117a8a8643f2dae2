"""`moerge expert …`"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer
from rich.filesize import decimal

from moerge.cli.common import LEAST_DIGITS, Coordinator, Secret, Yes, confirm, minute, show, show_list, the_one, wait
from moerge.client.client import Client
from moerge.client.http import optional
from moerge.errors import MoergeError
from moerge.progress import progress
from moerge.settings import valid
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.experts import Expert, ExpertState, NewExpert, Parts

app = typer.Typer(no_args_is_help=True, help="Experts (operators; owners see their own).")
Domain = Annotated[str, typer.Argument(help=f"The expert's domain, or at least {LEAST_DIGITS} digits of its digest.")]


def _find(client: Client, name: str) -> Expert:
    """The domain's newest expert, if possible not withdrawn and whole; otherwise the expert with that digest."""
    rows = list(client.experts())
    result = [row for row in rows if name == row.domain]
    start = name.rstrip("…")
    if not result and len(start) >= LEAST_DIGITS and any(row.digest.startswith(start) for row in rows):
        digest = the_one("expert", name, [row.digest for row in rows])
        result = [row for row in rows if row.digest == digest]
    if not result:
        raise MoergeError(f"no expert of {name!r}", where="domain", todo="run: moerge expert list")
    return max(result, key=lambda row: (row.state is not ExpertState.WITHDRAWN, row.parts is None, row.number))


@app.command("add")
def add(
    expert: Annotated[str, typer.Argument(help="A dense checkpoint or PEFT adapter: a folder or hub id (name/model).")],
    domain: Annotated[str, typer.Option(help="The expert's domain.")],
    coordinator: Coordinator,
    secret: Secret,
    license: Annotated[str, typer.Option(help="SPDX identifier of its licence, for the model card.")] = "unknown",
    body: Annotated[
        Literal["keep", "remerge"], typer.Option(help="Keep the current body, or merge it again with this expert.")
    ] = "keep",
    source: Annotated[
        str | None, typer.Option(help="An allowed address: the coordinator fetches the files there, without an upload.")
    ] = None,
    redistribute: Annotated[
        bool,
        typer.Option("--redistribute", help="Let others download its MLPs, and operators export its inputs."),
    ] = False,
) -> None:
    """Add an expert, as a worker does before it contributes. Print its digest after the check of its weights.
    A folder of withdrawn parts joins again as parts.

    Needs a token of the domain's owner; with --source, an operator's token works too. To change --redistribute later,
    the owner runs the command again.

    Example: moerge expert add expert/ --domain law --body remerge
    """
    from moerge.client.register import register  # slow imports
    from moerge.models.dense_files import DenseFiles
    from moerge.models.expert_folder import dense_folder, expert_digest, file_digests
    from moerge.models.sources import checkpoint_folder

    with TemporaryDirectory(prefix="moerge-") as merged, Client(coordinator, secret) as client:
        given = DenseFiles(checkpoint_folder(expert))
        dense = DenseFiles(dense_folder(given, Path(merged) / "expert"))
        if given.left_out:
            echo(f"{expert}: {given.left_out}", err=True)
        files = file_digests(dense)
        known = optional(client.expert, expert_digest(files))
        parts = None if known is None else known.parts  # withdrawn ones join again as what they were
        more = {"license": license, "body": body, "redistribute": redistribute, "parts": parts}
        new = valid(NewExpert, {"domain": domain, "files": files, "source": source, **more})
        adapter = given.folder if given.is_adapter else None
        echo(register(client, dense, new, progress(), adapter=adapter, again=True).digest)


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
    return row.state.value + (f", {_parts(row.parts)}" if row.parts else "")


def _parts(parts: Parts) -> str:
    kept = "" if parts.own_head else "; keeps the seed's body and head"
    return f"parts for body {parts.body[:12]}, MLPs {'fitted' if parts.fitted else 'own'}{kept}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


@app.command("show")
def show_expert(domain: Domain, coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """Show an expert, its files, and the bodies and versions that contain it.

    Example: moerge expert show law
    """
    with Client(coordinator, secret) as client:
        row = _find(client, domain)
        bodies = [body.digest for body in client.bodies() if row.digest in body.contains]
        family = {row.digest, *(expert.digest for expert in client.experts() if expert.dense == row.dense)}
        versions = [version.number for version in client.versions() if not family.isdisjoint(version.lineage.experts)]
    if as_json:
        show_json({"expert": row, "bodies": bodies, "versions": versions})
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
        "bodies that contain it": ", ".join(digest[:12] for digest in bodies) or "none",
        "versions with its MLPs": ", ".join(map(str, versions)) or "none",
    }
    if row.adapter:
        base = f"expert {row.adapter.base[:12]}" if row.parts is None else "the seed"
        lines["weights"] = f"an adapter's, merged with {base}"
    if row.parts:
        lines["parts"] = f"{_parts(row.parts)}; of expert {row.parts.expert[:12]}"
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
    """Withdraw an expert, its parts, and their contributions. If the body contains it, waits for the remerge
    without it.

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
        if done.remerge is not None:
            echo(f"Body without it: {wait(client, done.remerge)}. Every owner contributes again.")
        elif done.bodies:
            echo("Bodies that contain it are retired. To merge a new body: moerge body merge")


def _follows(client: Client, row: Expert, *, serve: bool) -> str:
    words = f"Expert {row.digest[:12]} of {row.domain} and its contributions are withdrawn."
    bodies = [body for body in client.bodies() if row.digest in body.contains]
    names = {body.digest for body in bodies}
    versions = [version for version in client.versions() if version.retired is None]
    of_it = (item for item in client.experts() if item.parts is not None and item.parts.expert == row.digest)
    family = {row.digest, *(item.digest for item in of_it if item.domain == row.domain)}
    inside = [item for item in versions if family & set(item.lineage.experts) or item.lineage.body in names]
    if any(body.current for body in bodies):
        words += " The body contains it: it is merged again without it, and every owner contributes again."
    if inside:
        numbers = ", ".join(str(item.number) for item in inside)
        words += f" Versions that contain it {'are still served' if serve else 'are withheld'}: {numbers}."
    return words


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
