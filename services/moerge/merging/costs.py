"""The costs of a merge, told by a dry run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table

from moerge.statistics.estimate import Estimate, duration
from moerge_proto.statistics_file import Kind


@dataclass(frozen=True)
class PassCost:
    """A pass over one domain's text.

    Attributes:
        domain: its label.
        kind: of the statistics.
        device: bytes where the model is.
        host: bytes of host memory, which include `device` if the model is there.
        estimate: tokens, windows, bytes of weights read, seconds.
    """

    domain: str
    kind: Kind
    device: int
    host: int
    estimate: Estimate

    def to_json(self) -> dict[str, object]:
        """The cost as data for JSON."""
        return {"domain": self.domain, "pass": self.kind, **_figures([self])}


@dataclass(frozen=True)
class Costs:
    """The costs of a merge, which has not begun.

    Attributes:
        folder: of the output.
        passes: in their order.
        memory: other step -> its bytes of memory.
        disk: bytes that output and work still need.
        unknown: sentences about costs that can't be told.
    """

    folder: str
    passes: Sequence[PassCost]
    memory: Mapping[str, int]
    disk: int
    unknown: Sequence[str]

    def to_json(self) -> dict[str, object]:
        """The costs as data for JSON; sizes in bytes."""
        return {
            "folder": self.folder,
            "passes": [item.to_json() for item in self.passes],
            "total": _figures(self.passes),
            "memory": dict(self.memory),
            "disk": self.disk,
            "unknown": list(self.unknown),
        }

    def render(self) -> Iterator[RenderableType]:
        """A table and sentences for a terminal."""
        table = Table("domain", "pass", "tokens", "device", "host", "windows", "read", "time", title="Passes")
        for column in table.columns[2:]:
            column.justify = "right"
        for item in self.passes:
            table.add_row(item.domain, item.kind, *_cells([item]))
        table.add_section()
        table.add_row("total", "", *_cells(self.passes))
        yield table
        yield "Columns: memory where the model is; host memory, with the model on a CPU; weights read; time to compute."
        yield f"Memory of other steps: {', '.join(f'{step} {decimal(size)}' for step, size in self.memory.items())}."
        yield f"Disk: output and work need up to {decimal(self.disk)} more."
        yield from self.unknown
        yield "Nothing was written."


def _figures(passes: Sequence[PassCost]) -> dict[str, float]:
    """Passes run one after the other: the most memory, and the sums of the other figures."""
    return {
        "tokens": sum(item.estimate.tokens for item in passes),
        "device_memory": max(item.device for item in passes),
        "host_memory": max(item.host for item in passes),
        "windows": sum(item.estimate.windows for item in passes),
        "read": sum(item.estimate.read for item in passes),
        "seconds": sum(item.estimate.seconds for item in passes),
    }


def _cells(passes: Sequence[PassCost]) -> list[str]:
    result = _figures(passes)
    sizes = [decimal(int(result[name])) for name in ("device_memory", "host_memory", "read")]
    return [f"{result['tokens']:,}", *sizes[:2], f"{result['windows']:,}", sizes[2], duration(result["seconds"])]
