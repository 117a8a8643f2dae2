"""The token ids of a domain's documents, in a file."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moerge.documents.fitting_sample import fitting_sample
from moerge.documents.splits import Split, SplitRule
from moerge.models.tokens import Tokens
from moerge_proto.statistics_file import StatisticsSettings

_PLACE = 8  # bytes that decide a document's split
_DOCUMENT = np.dtype([("end", "<u8"), ("digest", "V32"), ("place", f"V{_PLACE}")])


class Entry(NamedTuple):
    """A document: the digest of its text, the bytes that decide its split, the split, and a reader of its token ids."""

    digest: bytes
    place: bytes
    split: Split
    tokens: Callable[[], Tokens]


@dataclass(frozen=True)
class Text:
    """A domain's documents as token ids; iteration gives the documents for statistics.

    The ids are in a memory-mapped file without a name, so memory is bounded, and nothing is left after a crash.
    """

    _ids: NDArray[np.int32]  # ~id if the token doesn't count
    _documents: NDArray[Any]
    _rule: SplitRule

    @classmethod
    def of(cls, documents: Iterable[tuple[str, Tokens]], rule: SplitRule, folder: Path | None = None) -> "Text":
        """Writes documents, each with the text that names it, into a file in `folder`, by default a temporary one."""
        folder = folder or Path(gettempdir())
        try:
            with TemporaryFile(dir=folder) as ids, TemporaryFile(dir=folder) as index:
                end = 0
                for text, tokens in documents:
                    end += len(tokens)
                    ids.write(np.asarray(tokens.signed, np.int32).tobytes())
                    digest, place = rule.named(text)
                    index.write(end.to_bytes(8, "little") + digest + place[:_PLACE])
                return cls(_mapped(ids, np.dtype(np.int32)), _mapped(index, _DOCUMENT), rule)
        except OSError as error:
            error.filename = error.filename or str(folder)
            raise

    def __iter__(self) -> Iterator[Tokens]:
        return iter(self.part("statistics"))

    @property
    def held_out(self) -> "Part":
        return self.part("held-out")

    def part(self, split: Split) -> "Part":
        return Part(self, split)

    def sample(self, settings: StatisticsSettings, tokens: int, least_documents: int) -> list[list[Tokens]]:
        named = ((entry.digest, entry.tokens) for entry in self.documents() if entry.split == "statistics")
        return fitting_sample(named, settings, tokens, least_documents)

    def documents(self) -> Iterator[Entry]:
        """All documents, in the order of the data."""
        start = 0
        for end, digest, place in self._documents:
            key = place.tobytes()
            yield Entry(digest.tobytes(), key, self._rule.split(key), partial(self._tokens, start, int(end)))
            start = int(end)

    def _tokens(self, start: int, end: int) -> Tokens:
        row = self._ids[start:end]
        counted = row >= 0
        if counted.all():
            return Tokens(row.tolist())
        return Tokens(np.where(counted, row, ~row).tolist(), counted.tolist())


@dataclass(frozen=True)
class Part:
    """The documents of one split, read at each iteration."""

    text: Text
    split: Split

    def __iter__(self) -> Iterator[Tokens]:
        return (entry.tokens() for entry in self.text.documents() if entry.split == self.split)


def _mapped(file: IO[bytes], kind: np.dtype[Any]) -> NDArray[Any]:
    file.flush()
    return np.memmap(file, kind, "r") if file.tell() else np.empty(0, kind)
