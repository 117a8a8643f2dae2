"""`moerge audit …`"""

from typing import Annotated

import typer

from moerge.cli.common import Coordinator, Secret
from moerge.client.client import Client
from moerge.terminal import echo

app = typer.Typer(no_args_is_help=True, help="The audit log (operator).")


@app.callback()
def _group() -> None:
    """Keeps `export` a subcommand although it is the only one."""


@app.command("export")
def export(
    coordinator: Coordinator,
    secret: Secret,
    after: Annotated[int, typer.Option(min=0, help="Number of the last entry to skip; 0 skips none.")] = 0,
) -> None:
    """Print all write calls, allowed and refused, as JSON lines, oldest first.

    Example: moerge audit export --after 1200 >> audit.jsonl
    """
    with Client(coordinator, secret) as client:
        for entry in client.audit(after):
            echo(entry.model_dump_json())
