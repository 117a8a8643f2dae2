"""`moerge pull …`"""

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.cli.common import Coordinator, Secret
from moerge.cli.versions import Which, resolve
from moerge.client.client import Client
from moerge.client.pull import pull as pull_version
from moerge.progress import progress


def pull(
    version: Which,
    folder: Annotated[Path, typer.Argument(help="A new folder, or one that was pulled before.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Makes FOLDER the version, as transformers loads it; fetches only files that FOLDER lacks.

    Every file is checked against its digest, but for the model card, README.md, which has the owners' scores so far.
    Cut at any moment, it leaves FOLDER as it was, and goes on the next time.

    Example: moerge pull champion my-model
    """
    with Client(coordinator, secret) as client:
        number = resolve(client, version)
        fetched = pull_version(client, client.version(number), folder, progress())
    typer.echo(f"{folder}: version {number}, {decimal(fetched)} fetched")
