"""Fields of records: a document's field, and the advice of errors where records lack it."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from moerge.errors import MoergeError

_FEW = 20  # records whose fields an error names, and names in it
_WAYS = 3  # fields that it proposes for a setting
_NAME = re.compile(r"[\w.-]{1,40}")
_KINDS = {type(None): "null", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
_KINDS |= {list: "a list", dict: "an object"}


def kind_of(value: object) -> str:
    """The kind of a value, for errors."""
    return "a list of messages" if is_talk(value) else _KINDS.get(type(value), type(value).__name__)


def names_of(fields: Mapping[str, Any]) -> str:
    """The names of fields, for errors; the number of those that may be text."""
    names = [str(name) for name in fields if _is_name(name)][:_FEW]
    more = len(fields) - len(names)
    return ", ".join([*names, *([f"{more} more"] if more else [])]) or "none"


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def is_talk(value: object) -> bool:
    """Tell whether a value looks like messages."""
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and {"role", "content"} <= value.keys()


class Field:
    """The field of a file's documents. It counts the records that have it.

    Args:
        name: of the field or column.
        settings: names of the caller's settings that choose it, `text_field` and `chat`, for errors.
    """

    def __init__(self, name: str, settings: Collection[str] = ()) -> None:
        self.name, self._settings = name, settings
        self._others, self._null = dict[str, Any](), False
        self.found, self.missing = 0, 0

    def value(self, record: Mapping[str, Any]) -> Any:
        """The field's value in a record; None if it is missing or null."""
        if (value := record.get(self.name)) is not None:
            self.found += 1
            return value
        self.missing += 1
        self._null |= self.name in record
        if self.missing <= _FEW:
            self._others |= {name: item for name, item in record.items() if item is not None}
        return None

    def missing_error(self, where: str) -> MoergeError:
        """The error of a file without a document in the field."""
        null = ", which is null" if self._null else ""
        what = f"no document in the field {self.name!r}{null}; found fields: {names_of(self._others)}"
        ways = " or ".join(self._ways())
        todo = f"name the field with the documents: {ways}" if ways else f"rename the field with the text {self.name!r}"
        return MoergeError(what, where=where, todo=todo)

    def _ways(self) -> Iterator[str]:
        """The settings that choose fields; with those that look right, if there are any."""
        looks = {"text_field": _is_prose, "chat": is_talk}
        likely = {
            setting: [shlex.quote(name) for name, item in self._others.items() if _is_name(name) and look(item)]
            for setting, look in looks.items()
            if setting in self._settings
        }
        for setting, names in likely.items():
            if names or not any(likely.values()):
                yield from (f"`{setting}` {name}" for name in names[:_WAYS] or ["NAME"])


def _is_prose(value: object) -> bool:
    return isinstance(value, str) and " " in value.strip()
