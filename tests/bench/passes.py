"""A pass, or the building of a model, in a process of its own; prints a `Measured` as JSON.

`python -m bench.passes WAY FOLDER PRECISION TOKENS LIMIT`: WAY is one of `WAYS`, LIMIT the bytes of memory that the
process may take above its imports, 0 for any number.
"""

import json
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers.models.llama.modeling_llama  # noqa: F401  # here, not within the measurement

from bench import ours
from bench.measure import seconds
from moerge.documents.shards import Shard
from moerge.models.dense import expert_model
from moerge.models.tokens import Tokens, all_counted
from moerge.statistics.passes import RouterPass
from moerge.statistics.streamed import Streamed
from support.passes import sums_by, whole_model

CONTEXT = 512
VOCABULARY = 256  # of the random ids


@dataclass(frozen=True)
class Measured:
    """A process's work.

    Attributes:
        imported: anonymous bytes after the imports.
        seconds: of the work.
    """

    imported: int
    seconds: float


def streamed(work: RouterPass, rows: list[Tokens]) -> float:
    """The streamed pass, with the preparation of its decoder and all reading; rows are one window."""
    shards = [Shard("one", rows, len(rows))]
    return seconds(lambda: ours.statistics_pass(Streamed(work, CONTEXT), shards))


def whole(work: RouterPass, rows: list[Tokens]) -> float:
    """The pass with the whole model, which is in memory already."""
    model = whole_model(work)
    return seconds(lambda: sums_by(model, work, rows, CONTEXT))


def build(work: RouterPass, rows: list[Tokens]) -> float:
    """The model of the expert, from its files."""
    return seconds(lambda: expert_model(work.expert, getattr(torch, work.precision)))


WAYS: dict[str, Callable[[RouterPass, list[Tokens]], float]] = {"streamed": streamed, "whole": whole, "build": build}


def random_rows(tokens: int) -> list[Tokens]:
    ids = torch.randint(VOCABULARY, (tokens // CONTEXT, CONTEXT), generator=torch.Generator().manual_seed(0))
    return all_counted(ids.tolist())


def status(name: str) -> int:
    """A line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    way, folder, precision, tokens, limit = sys.argv[1:]
    work, rows = ours.router_pass(Path(folder), precision), random_rows(int(tokens))
    imported = status("RssAnon")
    if int(limit):
        most = status("VmData") + int(limit)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    print(json.dumps(asdict(Measured(imported, WAYS[way](work, rows)))))


if __name__ == "__main__":
    main()
