"""The base of all messages: frozen, and unknown fields are refused by name."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, StringConstraints

T = TypeVar("T")
_WORDS = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such field",
    "json_invalid": "not valid JSON: {error}",
    "string_pattern_mismatch": "expected the form {pattern}",
    "string_too_short": "expected at least {min_length} characters",
    "string_too_long": "expected at most {max_length} characters",
    "too_short": "expected at least {min_length}, found {actual_length}",
    "too_long": "expected at most {max_length}, found {actual_length}",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "enum": "expected {expected}",
    "literal_error": "expected {expected}",
    "dict_type": "expected names with values",
}
"""Type of a pydantic error -> plain words, with the error's context."""


def plainly(error: Mapping[str, Any]) -> str:
    """One of a pydantic validation error's `errors()`, in plain words."""
    if (words := _WORDS.get(error["type"])) is not None:
        return words.format(**error["ctx"]) if "{" in words else words
    return str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("the year is out of range") from error


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a valid integer")
    return value


Whole = Annotated[int, BeforeValidator(_no_truth_value)]
"""An integer, not a boolean."""
Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A time with a time zone, converted to UTC."""
LICENSE = r"^[A-Za-z0-9.+-]{1,64}$"
License = Annotated[str, StringConstraints(pattern=LICENSE)]
"""An SPDX identifier, such as Apache-2.0."""
UNKNOWN: License = "unknown"
"""The licence of a model whose owner named none."""


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Page(Message, Generic[T]):
    """One page of a list, oldest first. `next` is the cursor of the next page, None on the last."""

    items: list[T]
    next: int | None = None


class FileEntry(Message):
    """One file by name, content and size in bytes."""

    name: str
    sha256: str
    size: int
