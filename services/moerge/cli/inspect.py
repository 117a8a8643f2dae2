"""`moerge inspect`"""

from pathlib import Path
from typing import Annotated

import typer

from moerge.errors import MoergeError
from moerge.terminal import AsJson, output, show_json


def inspect_file(
    file: Annotated[Path, typer.Argument(help="A contribution file.")],
    as_json: AsJson = False,
) -> None:
    """Show the content of a contribution, and the information that it reveals.

    Example: moerge inspect contribution.safetensors
    """
    from moerge.statistics.describe import describe, description  # imports torch

    if not file.is_file():
        raise MoergeError("not a file", where=str(file), todo="give the path of a contribution")
    if as_json:
        show_json(description(file))
        return
    for part in describe(file):
        output().print(part)
