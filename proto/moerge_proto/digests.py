"""Names by content: SHA-256 in lower-case hex, and canonical JSON (RFC 8785) to hash structured values."""

import base64
import hashlib
from typing import Annotated

import rfc8785
from pydantic import JsonValue, StringConstraints

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
"""An owner's or a domain's name: safe as a file name, a URL segment and a column header."""


def sha256_hex(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: JsonValue) -> bytes:
    """RFC 8785: equal values give equal bytes. Integers beyond 2**53 raise."""
    return rfc8785.dumps(value)


def digest_of(value: JsonValue) -> str:
    return sha256_hex(canonical_json(value))


def content_digest(sha256: str) -> str:
    """The value of a Content-Digest header (RFC 9530) for a body of this SHA-256."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"
