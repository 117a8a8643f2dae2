"""The estimated cost of a pass over a text."""

from dataclasses import dataclass

from rich.filesize import decimal

from moerge.documents.shards import Shard
from moerge.memory.room import Room
from moerge.models.families.family import mlp_layers
from moerge.models.tokens import Tokens
from moerge.statistics.passes import Pass
from moerge_proto.statistics_file import StatisticsSettings


@dataclass(frozen=True)
class Estimate:
    """The cost of a pass: tokens, windows, bytes of weights read (once per window), seconds of computation."""

    tokens: int
    windows: int
    read: int
    seconds: float

    def __str__(self) -> str:
        times = f"{self.windows} window" + ("" if self.windows == 1 else "s")
        read = f"{decimal(self.read)} of weights to read"
        return f"{self.tokens:,} tokens in {times}, {read}, about {duration(self.seconds)}"


def estimate(work: Pass, room: Room, tokens: int, tokens_per_second: float, processes: int = 1) -> Estimate:
    """The cost of a pass over a text, in shards of equal size; `room` is of each process, the rate of all together."""
    states = -(-tokens // processes) * room.need.token
    shards = max(1, states // room.need.least)
    windows = processes * -(-shards // max(1, room.states * shards // states))
    weights = work.weights()
    layers = range(len(mlp_layers(weights.config)))
    stored = sum(weights.spec(name).bytes for layer in layers for name in weights.layer(layer))
    return Estimate(tokens, windows, windows * stored, tokens / tokens_per_second)


def largest(work: Pass, settings: StatisticsSettings) -> Shard:
    """A shard of one micro-batch of the pass's largest shape, to measure the pace with."""
    row = Tokens([0] * settings.context)
    if (before := work.before) is not None:
        row = Tokens([0] * before.piece).behind([0] * before.tokens)
    rows = max(1, settings.batch_tokens // len(row))
    return Shard("largest", [row] * rows, rows)


def duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
