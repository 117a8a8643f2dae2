"""Tables of an estimate."""

from collections.abc import Iterator

from rich.filesize import decimal
from rich.table import Table

from moerge.sizes.estimate import Estimate


def tables(found: Estimate, title: str) -> Iterator[Table]:
    """The needs of the coordinator and of each worker, and the files."""
    needs, files = Table("", "coordinator", "each worker", title=title), Table("file", "size", title="Files")
    ours, theirs = found.coordinator, found.worker
    for task, size in ours.memory.items():
        needs.add_row(f"memory, {task}", decimal(size), "")
    needs.add_row("memory, hidden states", "", decimal(theirs.host_memory))
    needs.add_row("device memory", "", decimal(theirs.device_memory))
    needs.add_row("disk or S3", decimal(ours.disk), "")
    needs.add_row("disk", decimal(ours.spare_disk), decimal(theirs.disk))
    needs.add_row("received", decimal(ours.received), decimal(theirs.received))
    needs.add_row("sent", decimal(ours.sent), decimal(theirs.sent))
    needs.add_row("read", decimal(ours.read), decimal(theirs.read))
    needs.add_row("windows", "", f"{theirs.windows:,}")
    for task in {**ours.hours, **theirs.hours}:
        needs.add_row(f"hours, {task}", _hours(ours.hours.get(task)), _hours(theirs.hours.get(task)))
    needs.add_row("hours", _hours(sum(ours.hours.values())), _hours(sum(theirs.hours.values())))
    for name, size in found.files.items():
        files.add_row(name, decimal(size))
    for table in (needs, files):
        for column in table.columns[1:]:
            column.justify = "right"
        yield table


def _hours(found: float | None) -> str:
    """Blank without any."""
    if found is None:
        return ""
    return f"{found:,.0f}" if found >= 10 else f"{found:.2g}"
