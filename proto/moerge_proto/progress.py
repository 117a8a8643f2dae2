"""Progress of an owner's worker, if its policy allows it. Only these fields are sent."""

from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from moerge_proto.digests import Name
from moerge_proto.messages import Message

_MOST = 2**53
LONGEST = 10**9
"""Seconds; a longer estimate is left out."""


class Stage(StrEnum):
    """The worker's current work."""

    STARTING = "starting"
    READING = "reading"
    COMPUTING = "computing"
    SENDING = "sending"
    EVALUATING = "evaluating"
    WAITING = "waiting"
    ENDED = "ended"


class Obstacle(StrEnum):
    """The reason why a worker sends nothing now. It has no figures."""

    _value_: str
    words: str

    def __new__(cls, name: str, words: str) -> Self:
        member = str.__new__(cls, name)
        member._value_, member.words = name, words
        return member

    BODY_REFUSED = "body-refused", "refuses the body: it isn't its owner's seed's"
    VERSION_ALTERED = "version-altered", "refuses the version: its files differ from those sent and checked"
    LOG_DIFFERS = "log-differs", "refuses the public log: it was changed, or lacks a body or version that was served"
    ASKS_OWNER = "asks-owner", "waits for the owner's approval"
    OWNER_REFUSED = "owner-refused", "the owner refused"


class Progress(Message):
    """Progress of a domain's worker with its current or last contribution.

    Attributes:
        shards_done: finished shards of the current or last contribution.
        seconds_left: estimate, or None.
        obstacle: the reason why nothing more is sent now.
    """

    domain: Name
    stage: Stage
    shards_done: int = Field(ge=0, le=_MOST)
    shards_total: int = Field(ge=0, le=_MOST)
    tokens_per_second: int = Field(ge=0, le=_MOST)
    seconds_left: int | None = Field(ge=0, le=LONGEST)
    obstacle: Obstacle | None = None

    @model_validator(mode="after")
    def _require_no_more_than_all(self) -> Self:
        if self.shards_done > self.shards_total:
            raise ValueError(f"expected shards_done to be at most shards_total, {self.shards_total}")
        return self


class DomainProgress(Progress):
    """The last progress of a domain's worker.

    Attributes:
        shards_done: finished shards of the current or last contribution.
        seconds_left: estimate, or None.
        obstacle: the reason why nothing more is sent now.
        heard: the time of this progress.
    """

    number: int
    owner: str
    heard: datetime
