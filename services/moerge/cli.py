"""The command line. Commands of other components are imported only when they are called."""

import importlib
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from moerge import __version__
from moerge.client import Client
from moerge.errors import CoordinatorError, MoergeError
from moerge.progress import progress
from moerge_proto.owners import NewOwner, NewToken, Role
from moerge_proto.trunks import NewTrunk
from moerge_proto.versions import NewVersion, SolveOptions, Version
from moerge_proto.workflows import Workflow, WorkflowState

COMPONENTS = {
    "coordinator": ("moerge_coordinator.commands", "Run a coordinator."),
    "worker": ("moerge_workers.commands", "Run a domain owner's worker."),
    "demo": ("moerge.demo.commands", "Run the main job on real text: four owners, one coordinator, two versions."),
    "table": ("moerge.evaluate.commands", "Print the paper's table for a version."),
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Turn dense expert LLMs of different owners into one Mixture-of-Experts checkpoint, without training.",
)
owner = typer.Typer(no_args_is_help=True, help="Domain owners (operator).")
token = typer.Typer(no_args_is_help=True, help="Bearer tokens (operator).")
trunk = typer.Typer(no_args_is_help=True, help="Trunks (operator).")
version = typer.Typer(no_args_is_help=True, help="Router versions.")
for name, group in (("owner", owner), ("token", token), ("trunk", trunk), ("version", version)):
    app.add_typer(group, name=name)

Coordinator = Annotated[str, typer.Option(envvar="MOERGE_COORDINATOR", help="Address of the coordinator.")]
Secret = Annotated[str, typer.Option("--token", envvar="MOERGE_TOKEN", help="Bearer token; better in the environment.")]


def _show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def wait(client: Client, workflow: Workflow) -> str:
    """Waits for a workflow and returns its result.

    Raises:
        CoordinatorError: it failed; carries its problem.
    """
    pause = 0.05
    while workflow.state is WorkflowState.RUNNING:
        time.sleep(pause)
        pause = min(2 * pause, 2.0)
        workflow = client.workflow(workflow.id)
    if workflow.problem is not None:
        raise CoordinatorError(workflow.problem)
    return str(workflow.result)


@owner.command("add")
def add_owner(
    name: Annotated[str, typer.Argument(help="The owner's name: a-z, 0-9, - and _.")],
    domain: Annotated[list[str], typer.Option(help="A domain that the owner speaks for; repeat for more.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Adds an owner and prints a token for its worker. Again: another token.

    Example: moerge owner add hospital --domain medicine
    """
    with Client(coordinator, secret) as client:
        client.add_owner(NewOwner(name=name, domains=domain))
        typer.echo(client.add_token(NewToken(role=Role.OWNER, owner=name)).secret)
    typer.echo("This token is shown once. Hand it to the owner over a safe channel.", err=True)


@owner.command("list")
def list_owners(coordinator: Coordinator, secret: Secret) -> None:
    """Lists owners and their domains.

    Example: moerge owner list
    """
    with Client(coordinator, secret) as client:
        _show("Owners", ["name", "domains"], [[row.name, ", ".join(row.domains)] for row in client.owners()])


@token.command("add")
def add_token(
    role: Annotated[Role, typer.Argument(help="operator, or reader, who may pull versions.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Prints a new token for an operator or a reader.

    Example: moerge token add reader
    """
    with Client(coordinator, secret) as client:
        typer.echo(client.add_token(NewToken(role=role)).secret)


@trunk.command("merge")
def merge_trunk(coordinator: Coordinator, secret: Secret) -> None:
    """Merges a trunk from every ready expert; it becomes the one that owners contribute under.

    Example: moerge trunk merge
    """
    with Client(coordinator, secret) as client:
        typer.echo(wait(client, client.merge_trunk(NewTrunk())))


@trunk.command("list")
def list_trunks(coordinator: Coordinator, secret: Secret) -> None:
    """Lists trunks.

    Example: moerge trunk list
    """
    with Client(coordinator, secret) as client:
        rows = [
            [row.digest, row.method, str(len(row.experts)), "yes" if row.current else ""] for row in client.trunks()
        ]
    _show("Trunks", ["digest", "method", "experts", "current"], rows)


@version.command("solve")
def solve_version(
    coordinator: Coordinator,
    secret: Secret,
    ridge_lambda: Annotated[float, typer.Option("--lambda", help="Ridge regulariser.")] = 0.01,
    top_k: Annotated[int, typer.Option(help="Experts per token.")] = 1,
    temperature: Annotated[float, typer.Option(help="Divides the routers' scores; matters for top-k > 1.")] = 1.0,
) -> None:
    """Sums all contributions under the current trunk, solves the routers, publishes; prints the version's number.

    Example: moerge version solve --lambda 0.01
    """
    options = SolveOptions(ridge_lambda=ridge_lambda, top_k=top_k, temperature=temperature)
    with Client(coordinator, secret) as client:
        typer.echo(wait(client, client.solve_version(NewVersion(options=options))))


@version.command("list")
def list_versions(coordinator: Coordinator, secret: Secret) -> None:
    """Lists versions.

    Example: moerge version list
    """
    with Client(coordinator, secret) as client:
        rows = [
            [str(row.number), ", ".join(row.lineage.domains), decimal(row.bytes_total), decimal(row.bytes_written)]
            for row in client.versions()
        ]
    _show("Versions", ["number", "domains", "size", "written"], rows)


@version.command("show")
def show_version(
    number: Annotated[int, typer.Argument(help="The version's number.")], coordinator: Coordinator, secret: Secret
) -> None:
    """Shows a version's lineage and files, and which of the files it wrote or shares with earlier versions.

    Example: moerge version show 1
    """
    with Client(coordinator, secret) as client:
        show_files(client.version(number))


def show_files(row: Version) -> None:
    """Prints a version's lineage and files."""
    made = row.lineage
    Console().print(
        f"Version {row.number}: {', '.join(made.domains)}; trunk {made.trunk[:12]}, "
        f"lambda {made.options.ridge_lambda:g}, top-k {made.options.top_k}, "
        f"{len(made.contributions)} contributions, {row.created:%Y-%m-%d %H:%M} UTC"
    )
    _show(
        f"{decimal(row.bytes_total)}, of which {decimal(row.bytes_written)} new",
        ["file", "size", "", "sha256"],
        [[f.name, decimal(f.size), "new" if f.new else "shared", f.sha256[:12]] for f in row.files],
    )


@version.command("pull")
def pull_version(
    number: Annotated[int, typer.Argument(help="The version's number.")],
    folder: Annotated[Path, typer.Argument(help="Where to; a folder that does not exist yet.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Downloads a version as a folder that transformers loads. Every file is checked against its digest.

    Example: moerge version pull 1 my-model
    """
    partial = folder.with_name(f".{folder.name}.part")
    if folder.exists():
        raise MoergeError("is there already", where=str(folder), todo="name a folder that does not exist")
    with Client(coordinator, secret) as client:
        row = client.version(number)
        client.download(f"/v1/versions/{number}/files", list(row.files), partial, progress(), title=f"version {number}")
    partial.replace(folder)
    typer.echo(folder)


@app.callback(invoke_without_command=True)
def _root(show: Annotated[bool, typer.Option("--version", help="Print moerge's version.")] = False) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


def _attach(called: str | None) -> None:
    """Adds the components' commands: the called one for real, the others as lines of the help."""
    for name, (module, text) in COMPONENTS.items():
        if name != called:
            app.command(name, help=text)(lambda: None)
            continue
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as error:
            extra = "all" if name == "table" else name
            todo = f"pip install 'moerge[{extra}]'"
            raise MoergeError(f"needs {error.name}", where=f"moerge {name}", todo=todo) from error
        app.add_typer(loaded.app, name=name)


def main() -> None:
    """The console script. Expected errors are told, not traced; Ctrl-C exits with 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as for Ctrl-C
    try:
        _attach(sys.argv[1] if len(sys.argv) > 1 else None)
        app()
    except MoergeError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
