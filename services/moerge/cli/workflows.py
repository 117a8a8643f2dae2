"""`moerge workflow …`"""

from itertools import islice
from typing import Annotated

import typer

from moerge.cli.common import Coordinator, Secret, minute, show_list, the_one, wait
from moerge.client.client import Client
from moerge.terminal import AsJson, echo
from moerge_proto.workflows import WorkflowEntry

app = typer.Typer(no_args_is_help=True, help="Workflows: checks of experts and contributions, version solves.")


@app.command("list")
def list_workflows(
    coordinator: Coordinator,
    secret: Secret,
    most: Annotated[int, typer.Option(help="The maximum number of workflows.", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """List workflows, newest first.

    Example: moerge workflow list
    """
    columns = ["id", "makes", "state", "started", "result"]
    with Client(coordinator, secret) as client:
        show_list("Workflows", columns, islice(client.workflows(), most), _line, as_json=as_json)


def _line(row: WorkflowEntry) -> list[str]:
    result = row.problem.detail if row.problem else row.result or ""
    return [row.id, row.kind, row.state.value, minute(row.created), result]


@app.command("retry")
def retry(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The failed workflow's id, or its first characters.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Restart a failed workflow with the same inputs, and wait for it.

    Example: moerge workflow retry version-4f1c22
    """
    with Client(coordinator, secret) as client:
        result = the_one("workflow", id_, (row.id for row in client.workflows()))
        echo(wait(client, client.retry_workflow(result)))
