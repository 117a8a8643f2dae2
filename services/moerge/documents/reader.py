"""Documents, read one at a time from JSON, Parquet, plain text and Arrow files."""

import json
import lzma
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from moerge.documents.fields import Field, kind_of
from moerge.documents.files import DataFile, arrow, data_files, silent
from moerge.documents.json_records import is_utf_16, json_records
from moerge.errors import MoergeError
from moerge.progress import Tracker

T = TypeVar("T")
_ROWS = 64  # rows of a Parquet or Arrow file in memory at a time
_PATIENCE = 1000  # the share of bad lines counts at least so many documents
_MISSING = 10_000  # records at a file's beginning that may lack the field
_SHOWN = 5
_DAMAGED = OSError, EOFError, ValueError, NotImplementedError, lzma.LZMAError, zlib.error  # they include pyarrow's
_EVERY = 256  # records between two progress updates


class BadLines:
    """Counts unreadable documents, reports the first ones, and stops above a share of all documents.

    `settings`: names of the caller's settings among `text_field`, `chat` and `bad_share`, for errors.
    """

    def __init__(self, share: float = 0.0, say: Callable[[str], None] = silent, settings: Collection[str] = ()) -> None:
        self._share, self._say, self.settings = share, say, settings
        self._bad, self._all, self._missing, self._last = 0, 0, 0, ("", "")

    def good(self) -> None:
        self._all += 1

    def bad(self, where: str, reason: str) -> None:
        self._all, self._bad, self._last = self._all + 1, self._bad + 1, (where, reason)
        if self._bad > self._share * max(self._all, _PATIENCE):
            self._stop()
        if self._bad <= _SHOWN:
            self._say(f"skipped: {where}: {reason}")

    def missing(self) -> None:
        self._all, self._missing = self._all + 1, self._missing + 1

    def end(self) -> None:
        if self._bad > self._share * self._all:
            self._stop()
        if self._bad:
            self._say(f"skipped {self._bad:,} unreadable documents of {self._all:,}")
        if self._missing:
            self._say(f"skipped {self._missing:,} documents of {self._all:,}: the field is missing or null")

    def _stop(self) -> None:
        where, reason = self._last
        if self._bad > 1:
            reason += f"; {self._bad:,} of {self._all:,} documents so far can't be read, allowed {self._share:.2%}"
        fields = " or ".join(f"`{name}`" for name in ("text_field", "chat") if name in self.settings)
        ways = [f"name the right field with {fields}"] if fields else []
        ways += ["raise `bad_share`"] if "bad_share" in self.settings else []
        raise MoergeError(reason, where=where, todo=", or ".join(["correct the data", *ways]))


def as_text(value: object) -> str:
    """A field's value as a text; another value raises TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {kind_of(value)}")
    value.encode()  # raises for half of a surrogate pair
    return value


def placed(
    files: Iterable[DataFile],
    field: str,
    read: Callable[[Any], T],
    bad: BadLines,
    tracker: Tracker | None = None,
) -> Iterator[tuple[str, T]]:
    """(place, result of `read`) for a field of every record or row, or for the text of a plain text file.

    `read` raises TypeError or ValueError for a value that is not a document. A record without the field, or with null,
    has no document. The tracker gets the number of bytes read.

    Raises:
        MoergeError: no record of a file has the field, too many can't be read, or a file is damaged.
    """
    for file in files:
        own = Field(field, bad.settings)
        for where, record in _records(file, own, tracker):
            try:
                value = own.value(_fields(record, field))
                document = None if value is None else read(value)
            except (TypeError, ValueError) as error:
                bad.bad(where, f"no document in the field {field!r}: {_reason(error)}")
            else:
                if document is None:
                    bad.missing()
                else:
                    bad.good()
                    yield where, document
            if own.missing == _MISSING and not own.found:
                break
        if own.missing and not own.found:
            raise own.missing_error(file.url)
    bad.end()


def _fields(record: Any, field: str) -> Mapping[str, Any]:
    """The fields of a record; a text is its own field. Raises a damaged line's error."""
    if isinstance(record, Exception):
        raise record
    if isinstance(record, str):
        return {field: record}
    if not isinstance(record, dict):
        raise TypeError(f"expected an object with fields, found {kind_of(record)}")
    return record


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        kind = "UTF-16, not UTF-8" if is_utf_16(error.object) else f"byte {error.object[error.start]:#04x}, not UTF-8"
        return f"{kind}; save it as UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return "half of a surrogate pair"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
    return str(error)


def read_texts(sources: Sequence[str], field: str, most: int, where: str, settings: Collection[str] = ()) -> list[str]:
    """The texts of all documents in files, together at most `most` bytes in UTF-8; `where` names the sources.

    `settings` are those of `BadLines`.
    """
    result, size = list[str](), 0
    for _, text in placed(data_files(*sources, where=where), field, as_text, BadLines(settings=settings)):
        if (size := size + len(text.encode())) > most:
            raise MoergeError(f"more than {most:,} bytes of text", where=where, todo="name fewer or shorter files")
        result += [text] if text else []
    if not result:
        raise MoergeError("no document has text", where=where, todo="name other files")
    return result


def _records(file: DataFile, field: Field, tracker: Tracker | None) -> Iterator[tuple[str, Any]]:
    """(file and place, record) of each document of a file; the record of a damaged line is its error."""
    read = {"json": json_records, "text": _text, "parquet": _parquet, "arrow": _arrow}[file.form or "json"]
    place, advanced = "", 0
    try:
        with file.open() as (plain, stored):
            for number, (place, record) in enumerate(read(plain, field.name), start=1):
                yield f"{file.url}{place}", record
                if tracker is not None and number % _EVERY == 0 and advanced < (here := min(stored.tell(), file.size)):
                    tracker.advance(here - advanced)
                    advanced = here
    except _DAMAGED as error:
        where = f"{file.url}{place.replace(',', ', after')}"
        todo = "repair the file, or remove it"
        raise MoergeError(f"can't be read: {_reason(error)}", where=where, todo=todo) from error
    if tracker is not None:
        tracker.advance(file.size - advanced)


def _text(plain: Any, field: str) -> Iterator[tuple[str, Any]]:
    try:
        yield "", {field: plain.read().decode("utf-8-sig")}
    except UnicodeDecodeError as error:
        yield "", error


def _parquet(plain: Any, field: str) -> Iterator[tuple[str, Any]]:
    arrow()
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    with ParquetFile(plain, buffer_size=2**20) as file:
        if field in file.schema_arrow.names:
            yield from _rows(file.iter_batches(_ROWS, columns=[field]))
        else:
            yield from _rows(islice(file.iter_batches(_ROWS), 1))  # for the error


def _arrow(plain: Any, field: str) -> Iterator[tuple[str, Any]]:
    ipc = arrow().ipc
    start = plain.read(6)
    plain.seek(0)
    with ipc.open_file(plain) if start == b"ARROW1" else ipc.open_stream(plain) as file:
        batches = map(file.get_batch, range(file.num_record_batches)) if start == b"ARROW1" else file
        parts = (batch.slice(row, _ROWS) for batch in batches for row in range(0, len(batch), _ROWS))
        if field in file.schema.names:
            yield from _rows(part.select([field]) for part in parts)
        else:
            yield from _rows(islice(parts, 1))


def _rows(batches: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    rows = (row for batch in batches for row in batch.to_pylist())
    return ((f", row {number}", row) for number, row in enumerate(rows, start=1))
