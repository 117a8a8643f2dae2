"""`moerge pull …`"""

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.client import Client
from moerge.commands.common import Coordinator, Secret
from moerge.commands.versions import resolve
from moerge.progress import progress
from moerge.pull import pull as pull_version


def pull(
    version: Annotated[str, typer.Argument(help="A version's number, or an alias such as champion.")],
    folder: Annotated[Path, typer.Argument(help="A new folder, or one that was pulled before.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Makes FOLDER the version, as transformers loads it; fetches only files that FOLDER lacks.

    Every file is checked against its digest. Cut at any moment, it leaves FOLDER as it was, and goes on the next time.

    Example: moerge pull champion my-model
    """
    with Client(coordinator, secret) as client:
        number = resolve(client, version)
        fetched = pull_version(client, client.version(number), folder, progress())
    typer.echo(f"{folder}: version {number}, {decimal(fetched)} fetched")
