"""Windows: shards whose hidden states are in memory together, so that each layer is read once for all."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from moerge.documents.shards import Shard
from moerge.models.batches import arranged
from moerge.progress import Tracker
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.journal import Journal
from moerge.statistics.passes import Pass
from moerge.statistics.streamed import Streamed

SAVING_SHARE = 0.05  # of the time, at most


@dataclass(eq=False)
class Window:
    """Shards that pass the layers together.

    Attributes:
        wanted: per layer, the shards whose sums are missing.
        states: the file of its hidden states.
        work: the name of the work in that file.
        seconds: least time between two savings.
        layers: their number, up to the last with a missing sum.
    """

    shards: list[Shard]
    wanted: list[frozenset[str]]
    states: Path
    work: str
    seconds: float
    layers: int = field(init=False)
    _saved: float = field(init=False, default_factory=time.monotonic)
    _took: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.layers = max(layer for layer, names in enumerate(self.wanted) if names) + 1

    @property
    def begun(self) -> Path | None:
        return self.states if self.states.is_file() else None

    def ahead(self, layer: int) -> frozenset[str] | None:
        """The wanted shards of the next layer; None if there is none, or it is time to save the states before it."""
        is_late = time.monotonic() - self._saved >= max(self.seconds, self._took / SAVING_SHARE)
        return None if is_late or layer + 1 == self.layers else self.wanted[layer + 1]

    def note_saved(self, seconds: float) -> None:
        self._saved, self._took = time.monotonic(), seconds


@dataclass(frozen=True)
class Done:
    """A computed layer of a window; `sums` of its wanted shards, None if there are none."""

    window: Window
    layer: int
    sums: ShardSums | None

    @property
    def tokens(self) -> int:
        return 0 if self.sums is None else self.sums.tokens

    def keep(self, journal: Journal) -> None:
        if self.sums is not None:
            journal.add(self.layer, self.window.wanted[self.layer], self.sums)


class Layered:
    """Progress in tokens through all layers, from tokens through one."""

    def __init__(self, tracker: Tracker, layers: int) -> None:
        self._tracker, self._layers, self._done = tracker, layers, 0

    @property
    def tokens(self) -> int:
        return self._done // self._layers

    def advance(self, tokens: int) -> None:
        before = self.tokens
        self._done += tokens
        self._tracker.advance(self.tokens - before)


@dataclass(frozen=True)
class WindowSize:
    """The size of a window: most bytes of hidden states, bytes of one token's, least tokens (if they fit)."""

    states: int
    token: int
    tokens: int


ComputeWindows = Callable[[Pass, Iterable[Window]], Iterator[Done]]
"""(pass, windows) -> every layer of each, in order. The caller keeps its sums before it asks for the next."""


def windows(
    shards: Iterable[Shard], journal: Journal, size: WindowSize, batch_tokens: int, seconds: float
) -> Iterator[Window]:
    """The windows of shards that the journal lacks; a saved window has the same shards again.

    `shards` are read while windows are computed. `seconds` is the least time between two savings of hidden states.
    """
    begun = [dict.fromkeys(item.shards) for item in journal.saved()]
    place = {name: number for number, names in enumerate(begun) for name in names}
    gathered: list[list[Shard]] = [[] for _ in begun]

    def window(members: list[Shard]) -> Window:
        names = frozenset(shard.name for shard in members)
        wanted = [names - summed for summed in journal.shards]
        return Window(members, wanted, journal.states(names), journal.work, seconds)

    current: list[Shard] = []
    held = tokens = 0
    for shard in shards:
        if (number := place.get(shard.name)) is not None:
            gathered[number].append(shard)
            if len(gathered[number]) == len(begun[number]):
                yield window(gathered[number])
            continue
        more = size.token * _positions(shard, batch_tokens)
        if current and (tokens >= size.tokens or held + more > size.states):
            yield window(current)
            current, held, tokens = [], 0, 0
        current.append(shard)
        held, tokens = held + more, tokens + shard.tokens
    incomplete = (members for members, names in zip(gathered, begun, strict=True) if len(members) < len(names))
    for members in [current, *incomplete]:
        if members:
            yield window(members)


def _positions(shard: Shard, batch_tokens: int) -> int:
    """Tokens with padding."""
    return sum(len(rows) * max(map(len, rows)) for rows in arranged(shard.rows, batch_tokens))


def computed(
    work: Pass, given: Iterable[Window], batch_tokens: int, threads: int, room: int | None = None
) -> Iterator[Done]:
    """Every layer of each window, computed on this machine; for other arguments see `Streamed`."""
    with closing(Streamed(work, batch_tokens, threads, room)) as streamed:
        for window in given:
            for layer in range(streamed.begin(window.shards, window.begun), window.layers):
                ahead = window.ahead(layer)
                yield Done(window, layer, streamed.sums(window.wanted[layer], ahead))
                if ahead is None and layer + 1 < window.layers:
                    begun = time.monotonic()
                    streamed.save(window.states, window.work)
                    window.note_saved(time.monotonic() - begun)
            window.states.unlink(missing_ok=True)
