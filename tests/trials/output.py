"""The output of a trial: its table on the terminal, and its figures in a file."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from moerge.files import atomic_file
from moerge_lab.table.table import Table


def show(table: Table) -> None:
    """Prints a table."""
    console = Console()
    for item in table.render(console):
        console.print(item, highlight=False, markup=False)


def write(figures: Any, path: Path | None) -> None:
    """Writes figures as JSON; None: nowhere."""
    if path:
        with atomic_file(path) as out:
            out.write(json.dumps(figures, indent=2).encode())
