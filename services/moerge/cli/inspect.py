"""`moerge inspect`"""

from pathlib import Path
from typing import Annotated

import typer

from moerge.errors import MoergeError
from moerge.terminal import AsJson, output, show_json


def inspect_file(
    file: Annotated[Path, typer.Argument(help="A contribution, as a worker keeps or sends it.")],
    as_json: AsJson = False,
) -> None:
    """Shows what a contribution contains, and what it reveals.

    Example: moerge inspect ~/.moerge/worker-law/contributions/*.safetensors
    """
    from moerge.statistics.describe import describe, description  # it brings torch

    if not file.is_file():
        raise MoergeError("not found, or no file", where=str(file), todo="give the path of one contribution")
    if as_json:
        show_json(description(file))
        return
    for part in describe(file):
        output().print(part)
