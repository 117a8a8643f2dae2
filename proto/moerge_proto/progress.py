"""Progress: how far an owner's worker is, if its policy lets that leave. These fields and no others do."""

from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from moerge_proto.digests import Name
from moerge_proto.messages import Message

_MOST = 2**53
LONGEST = 10**9
"""Seconds; an estimate beyond is none."""


class Stage(StrEnum):
    """What a worker does now."""

    STARTING = "starting"
    DOWNLOADING = "downloading"
    READING = "reading"
    COMPUTING = "computing"
    SENDING = "sending"
    EVALUATING = "evaluating"
    WAITING = "waiting"
    ENDED = "ended"


class Obstacle(StrEnum):
    """A reason for which a worker sends nothing for now. No figure is told with it."""

    TRUNK_STRAYS = "trunk-strays"
    TRUNK_HARMS = "trunk-harms"
    VERSION_ALTERED = "version-altered"
    ASKS_OWNER = "asks-owner"
    OWNER_REFUSED = "owner-refused"

    @property
    def words(self) -> str:
        """The same, for a reader."""
        return _WORDS[self]


_WORDS = {
    Obstacle.TRUNK_STRAYS: "refuses the trunk: it strays too far from the expert",
    Obstacle.TRUNK_HARMS: "refuses the trunk: it predicts the owner's text too badly",
    Obstacle.VERSION_ALTERED: "refuses the version: its files are not what was sent and checked",
    Obstacle.ASKS_OWNER: "waits for the owner's yes",
    Obstacle.OWNER_REFUSED: "the owner said no",
}


class Progress(Message):
    """How far the worker of a domain is.

    `shards_done` and `shards_total` are of the contribution that it computes now, or computed last. `seconds_left` is
    the estimate for the rest of them, None where there is none. `obstacle`: why nothing more is sent for now.
    """

    domain: Name
    stage: Stage
    shards_done: int = Field(ge=0, le=_MOST)
    shards_total: int = Field(ge=0, le=_MOST)
    tokens_per_second: int = Field(ge=0, le=_MOST)
    seconds_left: int | None = Field(ge=0, le=LONGEST)
    obstacle: Obstacle | None = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _require_no_more_than_all(self) -> Self:
        if self.shards_done > self.shards_total:
            raise ValueError(f"expected shards_done to be at most shards_total, {self.shards_total}")
        return self


class DomainProgress(Progress):
    """What was last heard of a domain's worker; `heard` says when."""

    number: int
    owner: str
    heard: datetime
