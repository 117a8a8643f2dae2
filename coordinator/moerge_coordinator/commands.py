"""`moerge coordinator …`; commands import their slow modules themselves."""

import os
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from moerge.progress import progress
from moerge.terminal import AsJson, echo, output, show_json
from moerge_coordinator.sides import COMMANDS, sides
from moerge_proto.messages import UNKNOWN
from moerge_proto.signatures import in_groups
from moerge_proto.version_signatures import fingerprint

if TYPE_CHECKING:
    from moerge_coordinator.operation.findings import Finding
    from moerge_coordinator.settings import Settings

_SHOWN = 4
app = typer.Typer(no_args_is_help=True, help="Run a coordinator.")
Host = Annotated[str | None, typer.Option(help="Listening address. Default: the settings', or 127.0.0.1.")]
Port = Annotated[int | None, typer.Option(help="TCP port; 0 chooses a free one. Default: the settings', or 8080.")]
Home = Annotated[Path, typer.Argument(help="Folder of the database, the blobs and the versions.")]
License = Annotated[str, typer.Option(help="SPDX identifier of the seed's licence, for model cards.")]
SEED = "A dense model that all experts were trained from: a folder, or a hub id like name/model@revision."


@app.command()
def init(
    home: Home,
    model: Annotated[str | None, typer.Option("--seed", help=f"{SEED} Registered.")] = None,
    license: License = UNKNOWN,
    version_key: Annotated[
        Path | None,
        typer.Option(help="Public key of versions, in PEM, if they are signed elsewhere. Default: a new key in HOME."),
    ] = None,
) -> None:
    """Create a coordinator's home folder and print the first operator token.

    Example: moerge coordinator init /srv/moerge --seed HuggingFaceTB/SmolLM2-135M
    """
    from moerge_coordinator.operation.home import initialise
    from moerge_coordinator.storage.version_key import public_key

    token = initialise(home, version_key)
    echo(token.secret)
    echo(f"Key of versions: {in_groups(fingerprint(public_key(home) or ''))}", err=True)
    if version_key is not None:
        echo("Versions are unsigned until you run: moerge version sign N --key FILE", err=True)
    if model is not None:
        seed(home, model, license)
    echo(f"This operator token is shown only once. Next: moerge coordinator serve {quote(str(home))}", err=True)


@app.command()
def seed(home: Home, model: Annotated[str, typer.Argument(help=SEED)], license: License = UNKNOWN) -> None:
    """Register a seed model and make its body the current one. The coordinator may serve meanwhile.

    Workers compare the body with their own copies of the model, and download none. Registered again, it becomes the
    current one again.

    Example: moerge coordinator seed /srv/moerge HuggingFaceTB/SmolLM2-135M --license Apache-2.0
    """
    from contextlib import closing

    from moerge_coordinator.operation.seeds import register
    from moerge_coordinator.settings import read_settings
    from moerge_coordinator.storage.database import open_database
    from moerge_coordinator.storage.stores import stores

    settings = read_settings(home)
    with closing(open_database(settings.database)) as database:
        body = register(database, stores(settings)[0], model, progress(), license, lambda text: echo(text, err=True))
    echo(f"The seed's body {body.digest[:12]} of {body.source} is current.", err=True)


@app.command()
def serve(home: Home, host: Host = None, port: Port = None) -> None:
    """Start the coordinator: serve the dashboard and REST API, and run workflows.

    After SIGTERM, running calls finish. The next start resumes interrupted workflows. SIGHUP reads the TLS files and
    the log level again. Refuses a home whose version key isn't that of the database.

    Example: moerge coordinator serve /srv/moerge --port 8080
    """
    from contextlib import closing

    from moerge.blobs.s3 import require_store
    from moerge.network import require_free
    from moerge_coordinator import log, server
    from moerge_coordinator.bootstrap import make_app, only_one
    from moerge_coordinator.domain import version_keys
    from moerge_coordinator.operation.preflight import transport
    from moerge_coordinator.rest.state import Traffic
    from moerge_coordinator.settings import read_settings
    from moerge_coordinator.storage.database import open_database
    from moerge_coordinator.storage.workflow_rows import require_json

    def read() -> "Settings":
        result = _overridden(read_settings(home), host, port)
        for problem in chain(transport(result), *(side.problems(result) for side in rooms)):
            raise problem
        return result

    rooms = sides()
    settings = read()
    log.configure(settings.log_level)
    traffic = Traffic()
    with only_one(settings):
        require_free(settings.host, settings.port)
        if settings.s3 is not None:
            require_store(settings.s3)
        require_json(settings.workflow_database)
        with closing(open_database(settings.database)) as database, database.transaction("agree on key") as session:
            version_keys.agree(session, home)
        server.serve(make_app(settings, traffic), traffic, settings, read, [side.layer for side in rooms])


@app.command()
def check(home: Home, host: Host = None, port: Port = None) -> None:
    """Check the settings and this machine before `serve`; exit with 1 after a problem.

    Example: moerge coordinator check /srv/moerge
    """
    from moerge_coordinator.operation.preflight import problems

    checks = [side.problems for side in sides()]
    result = list(problems(home, os.environ, lambda settings: _overridden(settings, host, port), checks))
    for problem in result:
        echo(problem)
    if result:
        raise typer.Exit(1)
    echo(f"no problems; next: moerge coordinator serve {quote(str(home))}")


def _overridden(settings: "Settings", host: str | None, port: int | None) -> "Settings":
    given = {"host": host, "port": port}
    return settings.model_copy(update={key: value for key, value in given.items() if value is not None})


@app.command()
def backup(
    home: Home,
    target: Annotated[Path, typer.Argument(help="A folder, for incremental backups, or one file: NAME.tar.")],
) -> None:
    """Back up the home, atomically, without stopping the coordinator. Omits open uploads.

    Example: moerge coordinator backup /srv/moerge /mnt/backup/moerge
    """
    from moerge_coordinator.operation.backups import back_up
    from moerge_coordinator.settings import read_settings

    made = back_up(read_settings(home), target, progress())
    echo(f"{target}: {len(made.databases)} databases and settings, {len(made.blobs)} blobs")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="A backup by `moerge coordinator backup`.")],
    home: Annotated[Path, typer.Argument(help="The new home: an empty or new folder.")],
) -> None:
    """Restore a home from a backup, after verifying every blob, folder and row.

    Example: moerge coordinator restore /mnt/backup/moerge /srv/moerge
    """
    from moerge_coordinator.operation import backups

    made = backups.restore(source, home, progress())
    echo(f"{home}: restored to {made.made:%Y-%m-%d %H:%M} UTC. Put version-key.pem back: backups don't have it.")
    echo(f"Next: moerge coordinator serve {quote(str(home))}")


@app.command()
def verify(
    home: Home,
    solve: Annotated[
        bool, typer.Option("--solve", help="Also solve routers and heads again, on the machine that solved them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every blob, folder and row; list missing, altered and replaced ones with their users.

    If they are whole, every version is compared with its signature, and its files are made again from its lineage.
    The public log is compared with the rows of bodies and versions.
    The coordinator may serve meanwhile. Exits with 1 after damage; litter (unused files) is harmless, and so are
    unchecked files, which another release of moerge wrote.

    Example: moerge coordinator verify /srv/moerge
    """
    from contextlib import closing

    from moerge_coordinator.domain import public_log
    from moerge_coordinator.operation import verify as verifying
    from moerge_coordinator.settings import read_settings
    from moerge_coordinator.storage.database import open_database
    from moerge_coordinator.storage.stores import stores

    settings = read_settings(home)
    with closing(open_database(settings.database)) as database:
        result = verifying.verify(settings, database, stores(settings)[0], progress(), solve=solve)
        with database.reading() as session:
            head = public_log.head(session)
    damaged = sum(item.damage for item in result)
    if as_json:
        show_json(result)
    else:
        if result:
            _show(result)
        litter = sum(item.what == "litter" for item in result)
        echo(f"{home}: {damaged} damaged, {litter} litter; the public log's head is {head.line}")
    if damaged:
        raise typer.Exit(1)


@app.command()
def inputs(
    home: Home,
    version: Annotated[int, typer.Argument(help="The version's number.")],
    out: Annotated[Path, typer.Option(help="Folder; the inputs of several versions may share one.")],
) -> None:
    """Export what a version was made of: body, experts' MLPs and heads, contributions, lineage and signature.

    `moerge version rebuild` makes the version again from them. An expert and its contributions are left out, and
    named, unless its owner allows `redistribute`; exits with 1 then. No token gives access to contributions: this reads
    the home. The coordinator may serve meanwhile.

    Example: moerge coordinator inputs /srv/moerge 3 --out inputs
    """
    from contextlib import closing

    from moerge_coordinator.operation.exporting import export_inputs
    from moerge_coordinator.settings import read_settings
    from moerge_coordinator.storage.database import open_database
    from moerge_coordinator.storage.stores import stores

    settings = read_settings(home)
    with closing(open_database(settings.database)) as database:
        exported = export_inputs(home, database, stores(settings)[0], version, out, progress())
    echo(f"{out}: inputs of version {version}, {len(exported.files)} files")
    for line in exported.missing:
        echo(f"missing: {line}")
    if exported.missing:
        raise typer.Exit(1)


for _command in COMMANDS:
    app.command()(_command)


def _show(findings: "list[Finding]") -> None:
    table = Table(title="Findings")
    for column in ("", "file", "digest", "needed by", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        users = list(finding.needed_by[:_SHOWN])
        if (more := len(finding.needed_by) - _SHOWN) > 0:
            users.append(f"and {more} more")
        table.add_row(finding.what, finding.file, finding.digest[:12], "\n".join(users), finding.todo)
    output().print(table)
