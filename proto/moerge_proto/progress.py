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


class Progress(Message):
    """How far the worker of a domain is.

    `shards_done` and `shards_total` are of the contribution that it computes now, or computed last. `seconds_left` is
    the estimate for the rest of them, None where there is none.
    """

    domain: Name
    stage: Stage
    shards_done: int = Field(ge=0, le=_MOST)
    shards_total: int = Field(ge=0, le=_MOST)
    tokens_per_second: int = Field(ge=0, le=_MOST)
    seconds_left: int | None = Field(ge=0, le=LONGEST)

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
