"""Tables of an estimate."""

from collections.abc import Iterator

from rich.filesize import decimal
from rich.table import Table

from moerge.sizes.estimate import Estimate, Size

_GROUPS = ("memory", "disk or S3", "disk", "received", "sent", "read", "windows")


def tables(estimate: Estimate, title: str) -> Iterator[Table]:
    """The needs of the coordinator and of each worker, and the files."""
    needs, files = Table("", "coordinator", "each worker", title=title), Table("file", "size", title="Files")
    sides = [_cells(estimate.coordinator), _cells(estimate.worker)]
    for name in sorted({**sides[0], **sides[1]}, key=lambda name: _GROUPS.index(name.partition(",")[0])):
        needs.add_row(name, *(side.get(name, "") for side in sides))
    for name, size in estimate.files.items():
        files.add_row(name, decimal(size))
    for table in (needs, files):
        for column in table.columns[1:]:
            column.justify = "right"
        yield table


def _cells(size: Size) -> dict[str, str]:
    """Row -> cell."""
    memory = {f"memory, {task}": count for task, count in size.memory.items()}
    traffic = {"received": size.received, "sent": size.sent} | ({} if size.read is None else {"read": size.read})
    cells = {name: decimal(count) for name, count in {**memory, **size.disk, **traffic}.items()}
    return cells if size.windows is None else cells | {"windows": f"{size.windows:,}"}
