"""What every message shares: frozen, and unknown fields are refused by name."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")


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
