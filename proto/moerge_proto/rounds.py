"""Rounds: an operator's requests for contributions, with a deadline and a minimum."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, model_validator

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import Message, Moment
from moerge_proto.statistics_file import Kind


class RoundState(StrEnum):
    """open -> complete when all have contributed; at the deadline -> enough, or short."""

    OPEN = "open"
    COMPLETE = "complete"
    ENOUGH = "enough"
    SHORT = "short"


class NewRound(Message):
    """Asks `domains` for router contributions under the current body, or for body or head contributions, by `deadline`.

    Then `minimum` of them are enough. The same request again changes nothing.
    """

    name: Name
    kind: Kind = "router"
    domains: list[Name] = Field(min_length=1, max_length=1000)
    minimum: int = Field(ge=1)
    deadline: Moment

    @model_validator(mode="after")
    def _possible(self) -> "NewRound":
        if len(set(self.domains)) < len(self.domains):
            raise ValueError("domains: expected each once")
        if self.minimum > len(self.domains):
            raise ValueError(f"minimum: expected at most {len(self.domains)}, the number of domains")
        return self


class RoundChange(Message):
    """A new deadline or minimum; None changes nothing."""

    minimum: int | None = Field(default=None, ge=1)
    deadline: Moment | None = None


class Round(Message):
    """A round, with the domains that have contributed and those that are missing."""

    number: int
    name: str
    kind: Kind
    body: Digest | None
    minimum: int
    deadline: datetime
    state: RoundState
    contributed: list[str]
    missing: list[str]
    created: datetime
