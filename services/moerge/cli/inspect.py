"""`moerge inspect`"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from moerge.errors import MoergeError


def inspect_file(file: Annotated[Path, typer.Argument(help="A contribution, as a worker keeps or sends it.")]) -> None:
    """Shows what a contribution contains, and what it reveals.

    Example: moerge inspect ~/.moerge/worker-law/contributions/*.safetensors
    """
    from moerge.statistics.describe import describe  # it brings torch

    if not file.is_file():
        raise MoergeError("not found, or no file", where=str(file), todo="give the path of one contribution")
    for part in describe(file):
        Console().print(part)
