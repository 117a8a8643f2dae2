"""Tables of an estimate."""

from collections.abc import Iterator

from rich.filesize import decimal
from rich.table import Table

from moerge.sizes.estimate import Estimate, Size

_GROUPS = ("memory", "disk or S3", "disk", "received", "sent", "read", "windows", "hours")


def tables(estimate: Estimate, title: str) -> Iterator[Table]:
    """The needs of the coordinator and of each worker, and the files."""
    needs, files = Table("", "coordinator", "each worker", title=title), Table("file", "size", title="Files")
    sides = [_cells(estimate.coordinator), _cells(estimate.worker)]
    for name in sorted({**sides[0], **sides[1]}, key=_place):
        needs.add_row(name, *(side.get(name, "") for side in sides))
    for name, size in estimate.files.items():
        files.add_row(name, decimal(size))
    for table in (needs, files):
        for column in table.columns[1:]:
            column.justify = "right"
        yield table


def _place(name: str) -> tuple[int, bool]:
    """A row's place; the sum of hours is last."""
    return _GROUPS.index(name.partition(",")[0]), name == "hours"


def _cells(size: Size) -> dict[str, str]:
    """Row -> cell."""
    memory = {f"memory, {task}": count for task, count in size.memory.items()}
    traffic = {"received": size.received, "sent": size.sent, "read": size.read}
    cells = {name: decimal(count) for name, count in {**memory, **size.disk, **traffic}.items()}
    if size.windows is not None:
        cells["windows"] = f"{size.windows:,}"
    hours = {f"hours, {task}": hours for task, hours in size.hours.items()} | {"hours": sum(size.hours.values())}
    return cells | {name: f"{hour:,.0f}" if hour >= 10 else f"{hour:.2g}" for name, hour in hours.items()}
