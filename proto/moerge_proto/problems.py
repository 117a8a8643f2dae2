"""Errors over HTTP: `application/problem+json` (RFC 9457) with a stable type and a remedy."""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

_LONGEST = 2000  # limits hostile names in answers
MEDIA_TYPE = "application/problem+json"


class ProblemType(StrEnum):
    """Stable names, each with its HTTP status; clients may switch on them. Sent as `urn:moerge:problem:<name>`."""

    _value_: str
    status: int

    def __new__(cls, name: str, status: int) -> Self:
        member = str.__new__(cls, name)
        member._value_, member.status = name, status
        return member

    INVALID_REQUEST = "invalid-request", 422
    UNAUTHENTICATED = "unauthenticated", 401
    FORBIDDEN = "forbidden", 403
    NOT_GRANTED = "not-granted", 403
    NOT_FOUND = "not-found", 404
    CONFLICT = "conflict", 409
    WRONG_DIGEST = "wrong-digest", 422
    TRUNCATED = "truncated", 422
    INCOMPATIBLE_EXPERT = "incompatible-expert", 422
    INVALID_CONTRIBUTION = "invalid-contribution", 422
    WRONG_BODY = "wrong-body", 409
    DUPLICATE_SHARD = "duplicate-shard", 409
    NOT_READY = "not-ready", 409
    NOT_PUBLISHABLE = "not-publishable", 409
    NOT_PROMOTABLE = "not-promotable", 409
    GONE = "gone", 410
    UNAVAILABLE = "unavailable", 503
    TOO_LARGE = "too-large", 413
    OVER_QUOTA = "over-quota", 409
    TOO_FAST = "too-fast", 429
    SOURCE_FAILED = "source-failed", 422
    STORAGE_FULL = "storage-full", 507
    INTERNAL = "internal", 500

    @property
    def urn(self) -> str:
        return f"urn:moerge:problem:{self.value}"


class Problem(BaseModel):
    """One refusal: the fault (`detail`), its field, tensor or file (`field`), and the remedy (`todo`)."""

    model_config = ConfigDict(frozen=True)

    type: str
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    field: str = ""
    todo: str = ""

    @classmethod
    def of(cls, kind: ProblemType, detail: str, *, field: str = "", todo: str = "") -> "Problem":
        """The problem of `kind`, with long texts cut."""
        detail, field = (f"{text[:_LONGEST]} …" if len(text) > _LONGEST else text for text in (detail, field))
        title = kind.value.replace("-", " ")
        return cls(type=kind.urn, title=title, status=kind.status, detail=detail, field=field, todo=todo)
