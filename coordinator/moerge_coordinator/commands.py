"""`moerge coordinator …`"""

from pathlib import Path
from typing import Annotated

import typer

from moerge_coordinator import log, server
from moerge_coordinator.bootstrap import initialise, make_app, only_one
from moerge_coordinator.settings import read_settings

app = typer.Typer(no_args_is_help=True, help="Run a coordinator.")
Home = Annotated[Path, typer.Argument(help="Folder of the database, the blobs and the versions.")]


@app.command()
def init(home: Home) -> None:
    """Makes a coordinator's home folder and prints the first operator token.

    Example: moerge coordinator init /srv/moerge
    """
    token = initialise(home)
    typer.echo(token.secret)
    typer.echo(f"This operator token is shown once. Next: moerge coordinator serve {home}", err=True)


@app.command()
def serve(
    home: Home,
    host: Annotated[str | None, typer.Option(help="Address to listen on, instead of the settings'.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port, instead of the settings'; 0 takes a free one.")] = None,
) -> None:
    """Serves REST and runs the workflows, until it is stopped.

    Example: moerge coordinator serve /srv/moerge --port 8080
    """
    given = {"host": host, "port": port}
    settings = read_settings(home).model_copy(update={key: value for key, value in given.items() if value is not None})
    log.configure()
    with only_one(home):
        server.serve(make_app(settings), settings)
