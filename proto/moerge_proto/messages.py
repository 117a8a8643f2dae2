"""What every message shares: frozen, and unknown fields are refused by name."""

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict

T = TypeVar("T")


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("the year is out of range") from error


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("Input should be a valid integer")
    return value


Whole = Annotated[int, BeforeValidator(_no_truth_value)]
"""An integer; true and false are none."""
Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A time that names its zone, as UTC."""


class Message(BaseModel):
    """Base of all messages."""

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
