"""Token ids, and which of them count."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tokens:
    """Token ids. The model reads all; sums and scores include those that are `counted`, by default all."""

    ids: Sequence[int]
    counted: Sequence[bool] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, places: slice) -> "Tokens":
        return Tokens(self.ids[places], None if self.counted is None else self.counted[places])

    @property
    def mask(self) -> Sequence[bool]:
        """Per token whether it counts."""
        return [True] * len(self.ids) if self.counted is None else self.counted

    @property
    def count(self) -> int:
        """The number of tokens that count."""
        return len(self.ids) if self.counted is None else sum(self.counted)

    @property
    def signed(self) -> list[int]:
        """Per token its id if it counts, otherwise ~id. Shards are named by these."""
        return [id_ if counts else ~id_ for id_, counts in zip(self.ids, self.mask, strict=True)]

    @property
    def packed(self) -> bytes:
        """The bytes of `signed`, behind their number."""
        return len(self).to_bytes(8, "little") + b"".join(one.to_bytes(4, "little", signed=True) for one in self.signed)

    def behind(self, ids: Sequence[int]) -> "Tokens":
        """The tokens behind others, which don't count."""
        return Tokens([*ids, *self.ids], [*[False] * len(ids), *self.mask])

    def first(self, most: int | None) -> "Tokens":
        """The tokens up to the last of the first `most` that count; None: all."""
        if most is None or self.count <= most:
            return self
        places = [place for place, counts in enumerate(self.mask) if counts]
        return self[: places[most - 1] + 1]

    def pieces(self, size: int) -> list["Tokens"]:
        """The tokens in pieces of `size`; the last may be shorter."""
        return [self[start : start + size] for start in range(0, len(self), size)]


def all_counted(rows: Iterable[Sequence[int]]) -> list[Tokens]:
    """Documents of these token ids, each of which counts."""
    return [Tokens(ids) for ids in rows]
