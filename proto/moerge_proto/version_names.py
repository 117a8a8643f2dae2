"""Names of versions: `3` of a whole one, `3+0123456789abcdef` of the part of it with some of its experts."""

from collections.abc import Collection
from typing import Annotated

from pydantic import StringConstraints

from moerge_proto.digests import Digest, digest_of

_DIGITS = 16
PART_NAME = rf"[1-9][0-9]{{0,8}}\+[0-9a-f]{{{_DIGITS}}}"
PartDigest = Annotated[str, StringConstraints(pattern=rf"^[0-9a-f]{{{_DIGITS}}}$")]
"""The name of a set of experts within a version."""
VersionName = Annotated[str, StringConstraints(pattern=rf"^[1-9][0-9]{{0,8}}(\+[0-9a-f]{{{_DIGITS}}})?$")]


def part_digest(experts: Collection[Digest]) -> str:
    """The name of a set of experts: the first 16 digits of its digest."""
    return digest_of(sorted(experts))[:_DIGITS]  # type: ignore[arg-type]  # strings are JSON


def version_name(number: int, part: str | None = None) -> str:
    return str(number) if part is None else f"{number}+{part}"
