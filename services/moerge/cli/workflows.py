"""`moerge workflow …`"""

from itertools import islice
from typing import Annotated

import typer

from moerge.cli.common import Coordinator, Secret, show, wait
from moerge.client.client import Client

app = typer.Typer(
    no_args_is_help=True, help="Long work: experts and contributions taken in, trunks merged, versions solved."
)


@app.command("list")
def list_workflows(
    coordinator: Coordinator,
    secret: Secret,
    most: Annotated[int, typer.Option(help="Show at most so many, the newest first.", min=1)] = 20,
) -> None:
    """Lists workflows, the newest first.

    Example: moerge workflow list
    """
    with Client(coordinator, secret) as client:
        rows = list(islice(client.workflows(), most))
    columns = ["id", "makes", "state", "started", "result"]
    lines = [
        [
            row.id,
            row.kind,
            row.state.value,
            f"{row.created:%Y-%m-%d %H:%M} UTC",
            row.problem.detail if row.problem else row.result or "",
        ]
        for row in rows
    ]
    show("Workflows", columns, lines)


@app.command("retry")
def retry(
    id_: Annotated[str, typer.Argument(metavar="ID", help="Of the workflow that failed.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Starts a workflow that failed anew, with what it was given, and waits for it.

    Example: moerge workflow retry version-4f1c22…-1
    """
    with Client(coordinator, secret) as client:
        typer.echo(wait(client, client.retry_workflow(id_)))
