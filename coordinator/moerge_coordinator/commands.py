"""`moerge coordinator …`"""

import os
from pathlib import Path
from typing import Annotated

import typer

from moerge_coordinator import log, server
from moerge_coordinator.bootstrap import initialise, make_app, only_one
from moerge_coordinator.check import problems
from moerge_coordinator.settings import Settings, read_settings

app = typer.Typer(no_args_is_help=True, help="Run a coordinator.")
Host = Annotated[str | None, typer.Option(help="Address to listen on, instead of the settings'.")]
Port = Annotated[int | None, typer.Option(help="TCP port, instead of the settings'; 0 takes a free one.")]
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
def serve(home: Home, host: Host = None, port: Port = None) -> None:
    """Serves REST and runs the workflows, until it is stopped.

    SIGTERM lets calls that run end; a workflow's step is cut, and goes on at the next start.

    Example: moerge coordinator serve /srv/moerge --port 8080
    """
    settings = _overridden(read_settings(home), host, port)
    log.configure()
    with only_one(settings):
        server.serve(make_app(settings), settings)


@app.command()
def check(home: Home, host: Host = None, port: Port = None) -> None:
    """Tells what is wrong with the settings or this machine before serve is started; exits with 1 if anything is.

    Example: moerge coordinator check /srv/moerge
    """
    found = list(problems(home, os.environ, lambda settings: _overridden(settings, host, port)))
    for problem in found:
        typer.echo(problem)
    if found:
        raise typer.Exit(1)
    typer.echo(f"nothing is wrong; next: moerge coordinator serve {home}")


def _overridden(settings: Settings, host: str | None, port: int | None) -> Settings:
    given = {"host": host, "port": port}
    return settings.model_copy(update={key: value for key, value in given.items() if value is not None})
