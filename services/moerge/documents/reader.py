"""Documents, read one at a time from JSON Lines, Parquet, plain text and Arrow files."""

import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from moerge.documents.files import DataFile, arrow, data_files
from moerge.errors import MoergeError
from moerge.progress import Tracker

T = TypeVar("T")
_ROWS = 64  # rows of a Parquet or Arrow file in memory at a time
_PATIENCE = 1000  # the share of bad lines counts at least so many documents
_SHOWN = 5
_DAMAGED = OSError, EOFError, ValueError, NotImplementedError, lzma.LZMAError, zlib.error  # they include pyarrow's
_EVERY = 256  # records between two progress updates


class BadLines:
    """Counts unreadable documents, reports the first ones, and stops above a share of all documents."""

    def __init__(self, share: float = 0.0, say: Callable[[str], None] = lambda text: None) -> None:
        self._share, self._say = share, say
        self._bad, self._all, self._last = 0, 0, ("", "")

    def good(self) -> None:
        self._all += 1

    def bad(self, where: str, reason: str) -> None:
        self._all, self._bad, self._last = self._all + 1, self._bad + 1, (where, reason)
        if self._bad > self._share * max(self._all, _PATIENCE):
            self._stop()
        if self._bad <= _SHOWN:
            self._say(f"skipped: {where}: {reason}")

    def end(self) -> None:
        if self._bad > self._share * self._all:
            self._stop()
        if self._bad:
            self._say(f"skipped {self._bad:,} unreadable documents of {self._all:,}")

    def _stop(self) -> None:
        where, reason = self._last
        if self._bad > 1:
            reason += f"; {self._bad:,} of {self._all:,} documents so far can't be read, allowed {self._share:.2%}"
        todo = "fix the data, or name the right field" + (", or raise `bad_share`" if self._share else "")
        raise MoergeError(reason, where=where, todo=todo)


def as_text(value: object) -> str:
    """A field's value as a text; another value raises TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError("not a string")
    value.encode()  # raises for half of a surrogate pair
    return value


def documents(
    files: Iterable[DataFile],
    field: str,
    read: Callable[[Any], T],
    bad: BadLines,
    tracker: Tracker | None = None,
) -> Iterator[T]:
    """The results of `read` for a field of every line or row, or for the text of a plain text file.

    `read` raises TypeError or ValueError for a value that is not a document. The tracker gets the number of bytes read.
    """
    for file in files:
        for where, value in _values(file, field, tracker):
            try:
                if isinstance(value, _Broken):
                    raise ValueError(value.reason)
                document = read(value)
            except (TypeError, ValueError) as error:
                reason = "not UTF-8" if isinstance(error, UnicodeError) else str(error)
                bad.bad(where, f"no document in the field {field!r}: {reason}")
            else:
                bad.good()
                yield document
    bad.end()


def read_texts(sources: Sequence[str], field: str, most: int, where: str) -> list[str]:
    """The texts of all documents in files, together at most `most` bytes in UTF-8; `where` names the sources."""
    result, size = list[str](), 0
    for text in documents(data_files(*sources, where=where), field, as_text, BadLines()):
        if (size := size + len(text.encode())) > most:
            raise MoergeError(f"more than {most:,} bytes of text", where=where, todo="name fewer or shorter files")
        result += [text] if text else []
    if not result:
        raise MoergeError("no document has text", where=where, todo="name other files")
    return result


class _Broken:
    def __init__(self, reason: str) -> None:
        self.reason = reason


def _values(file: DataFile, field: str, tracker: Tracker | None) -> Iterator[tuple[str, Any]]:
    """(file and line, value of the field) of each document of a file."""
    read = {"lines": _lines, "text": _text, "parquet": _parquet, "arrow": _arrow}[file.form or "lines"]
    word = {"lines": ", line", "text": ""}.get(file.form or "lines", ", row")
    number, advanced = 0, 0
    try:
        with file.open() as (plain, stored):
            for number, value in enumerate(read(plain, field), start=1):
                yield f"{file.url}{word} {number}" if word else file.url, value
                if tracker is not None and number % _EVERY == 0 and advanced < (here := min(stored.tell(), file.size)):
                    tracker.advance(here - advanced)
                    advanced = here
    except _DAMAGED as error:
        where = f"{file.url}, after{word.replace(',', '')} {number}" if number else file.url
        raise MoergeError(f"can't be read: {error}", where=where, todo="repair the file, or remove it") from error
    if tracker is not None:
        tracker.advance(file.size - advanced)


def _lines(plain: Any, field: str) -> Iterator[Any]:
    for line in plain:
        try:
            yield json.loads(line)[field]
        except (ValueError, KeyError, TypeError, RecursionError):
            yield _Broken("not a JSON object with this field")


def _text(plain: Any, field: str) -> Iterator[Any]:
    try:
        yield plain.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        yield _Broken("not UTF-8")


def _parquet(plain: Any, field: str) -> Iterator[Any]:
    arrow()
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    with ParquetFile(plain, buffer_size=2**20) as file:
        _require_column(file.schema_arrow.names, field)
        for batch in file.iter_batches(_ROWS, columns=[field]):
            yield from batch.column(field).to_pylist()


def _arrow(plain: Any, field: str) -> Iterator[Any]:
    ipc = arrow().ipc
    start = plain.read(6)
    plain.seek(0)
    with ipc.open_file(plain) if start == b"ARROW1" else ipc.open_stream(plain) as file:
        _require_column(file.schema.names, field)
        batches = map(file.get_batch, range(file.num_record_batches)) if start == b"ARROW1" else file
        for batch in batches:
            column = batch.column(field)
            for start_row in range(0, len(column), _ROWS):
                yield from column.slice(start_row, _ROWS).to_pylist()


def _require_column(names: list[str], field: str) -> None:
    if field not in names:
        raise ValueError(f"no column {field!r}; the columns are {', '.join(names)}")
