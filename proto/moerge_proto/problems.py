"""Errors over HTTP: `application/problem+json` (RFC 9457) with a stable type and a remedy."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

_LONGEST = 2000  # limits hostile names in answers
MEDIA_TYPE = "application/problem+json"


class ProblemType(StrEnum):
    """Stable names; clients may switch on them. Each is sent as `urn:moerge:problem:<name>`."""

    INVALID_REQUEST = "invalid-request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    CONFLICT = "conflict"
    WRONG_DIGEST = "wrong-digest"
    TRUNCATED = "truncated"
    INCOMPATIBLE_EXPERT = "incompatible-expert"
    INVALID_CONTRIBUTION = "invalid-contribution"
    WRONG_TRUNK = "wrong-trunk"
    DUPLICATE_SHARD = "duplicate-shard"
    NOT_READY = "not-ready"
    NOT_PROMOTABLE = "not-promotable"
    GONE = "gone"
    UNAVAILABLE = "unavailable"
    TOO_LARGE = "too-large"
    OVER_QUOTA = "over-quota"
    TOO_FAST = "too-fast"
    SOURCE_FAILED = "source-failed"
    STORAGE_FULL = "storage-full"
    INTERNAL = "internal"

    @property
    def urn(self) -> str:
        return f"urn:moerge:problem:{self.value}"


STATUS: dict[ProblemType, int] = {
    ProblemType.INVALID_REQUEST: 422,
    ProblemType.UNAUTHENTICATED: 401,
    ProblemType.FORBIDDEN: 403,
    ProblemType.NOT_FOUND: 404,
    ProblemType.CONFLICT: 409,
    ProblemType.WRONG_DIGEST: 422,
    ProblemType.TRUNCATED: 422,
    ProblemType.INCOMPATIBLE_EXPERT: 422,
    ProblemType.INVALID_CONTRIBUTION: 422,
    ProblemType.WRONG_TRUNK: 409,
    ProblemType.DUPLICATE_SHARD: 409,
    ProblemType.NOT_READY: 409,
    ProblemType.NOT_PROMOTABLE: 409,
    ProblemType.GONE: 410,
    ProblemType.UNAVAILABLE: 503,
    ProblemType.TOO_LARGE: 413,
    ProblemType.OVER_QUOTA: 409,
    ProblemType.TOO_FAST: 429,
    ProblemType.SOURCE_FAILED: 422,
    ProblemType.STORAGE_FULL: 507,
    ProblemType.INTERNAL: 500,
}


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
        """The problem of `kind` with its fixed status and title."""
        if len(detail) > _LONGEST:
            detail = f"{detail[:_LONGEST]} …"
        if len(field) > _LONGEST:
            field = f"{field[:_LONGEST]} …"
        title = kind.value.replace("-", " ")
        return cls(type=kind.urn, title=title, status=STATUS[kind], detail=detail, field=field, todo=todo)
