"""Records of JSON files: JSON Lines, one array, or objects over several lines."""

import codecs
import json
import re
from collections.abc import Iterator
from io import BufferedReader
from itertools import chain, islice
from typing import Any

from moerge.documents.fields import is_talk

_BUFFER = 2**16
_LARGEST = 2**28  # characters of a record
_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")


def json_records(content: Any, field: str) -> Iterator[tuple[str, Any]]:
    """(place, value) of each record of a binary file; the value of a damaged line is its error.

    The records of an only object without the field are the items of its list, as in {"data": [...]}. The memory is that
    of the largest record.

    Raises:
        ValueError: an array or object is damaged, a record is too large, or the text is UTF-16.
    """
    source = BufferedReader(content, _BUFFER)
    try:
        records = _whole(source) if _is_whole(source.peek()) else _lines(source)
        first = list(islice(records, 2))
        if len(first) == 1 and (items := _items(first[0][1], field)):
            first = [(f", record {number}", item) for number, item in enumerate(items, start=1)]
        yield from chain(first, records)
    finally:
        source.detach()  # the caller closes the file


def is_utf_16(text: bytes) -> bool:
    return text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or text[:2].count(0) == 1


def _is_whole(start: bytes) -> bool:
    """Tell by the beginning of a file whether a value has several lines, or is an array of records."""
    if is_utf_16(start):
        raise ValueError("UTF-16, not UTF-8; save it as UTF-8")
    line, _, rest = start.removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")
    first, last = line[:1], line.rstrip()[-1:]
    return (first == b"[" and not (last == b"]" and rest.strip())) or (first == b"{" and last in b"{[,:")


def _items(value: Any, field: str) -> list[Any]:
    """The records in an only value; none if it is itself the record."""
    if not isinstance(value, dict) or field in value:
        return []
    lists = [item for item in value.values() if _is_table(item)]
    having = [item for item in lists if any(field in row for row in item)] or lists
    return having[0] if len(having) == 1 else []


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value) and not is_talk(value)


def _lines(source: BufferedReader) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(iter(lambda: source.readline(_LARGEST), b""), start=1):
        if len(line) == _LARGEST:
            raise ValueError(f"line {number} has over {_LARGEST >> 20} MiB")
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            if not line.decode("utf-8-sig", "replace").strip():
                continue
            value = error
        yield f", line {number}", value


def _whole(source: BufferedReader) -> Iterator[tuple[str, Any]]:
    """The items of one array, or values one after another."""
    text = _Text(codecs.getreader("utf-8-sig")(source))
    values = _array(text) if text.character() == "[" else _values(text)
    return ((f", record {number}", value) for number, value in enumerate(values, start=1))


def _values(text: "_Text") -> Iterator[Any]:
    while text.character():
        yield text.value()


def _array(text: "_Text") -> Iterator[Any]:
    text.take()
    while text.character() != "]":
        yield text.value()
        if text.character() == ",":
            text.take()
        elif text.character() != "]":
            raise ValueError(f"not JSON: expected , or ] in the array, found {text.character() or 'its end'}")
    text.take()
    if text.character():
        raise ValueError("not JSON: text behind the array")


class _Text:
    """A text of JSON values, read in pieces."""

    def __init__(self, source: codecs.StreamReader) -> None:
        self._source, self._held, self._at = source, "", 0

    def character(self) -> str:
        """The next one that isn't white space; empty at the end."""
        while True:
            match = _BLANK.match(self._held, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._held) or not self._more():
                return self._held[self._at : self._at + 1]

    def take(self) -> None:
        """Go behind it."""
        self._at += 1

    def value(self) -> Any:
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held, self._at)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise ValueError(f"not JSON: {error.msg}") from error
            except RecursionError as error:
                raise ValueError(f"not JSON: {error}") from error
            else:
                if end < len(self._held) or not self._more():
                    self._at = end
                    return value

    def _more(self) -> bool:
        """Read as much again as is held, at least a piece."""
        rest = self._held[self._at :]
        if len(rest) > _LARGEST:
            raise ValueError(f"not JSON, or a record of over {_LARGEST >> 20} MiB")
        if new := self._source.read(max(_BUFFER, len(rest))):
            self._held, self._at = rest + new, 0
        return bool(new)
