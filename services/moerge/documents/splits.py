"""The split of documents: statistics, tuning or held-out."""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal

Split = Literal["statistics", "tuning", "held-out"]
HELD_OUT_SHARE = 0.1
"""Default share of held-out documents."""


@dataclass(frozen=True)
class SplitRule:
    """The split of documents by their texts alone, so equal documents are in one split.

    With an owner's `key`, nobody else can tell a document's split.
    """

    held_out_share: float = HELD_OUT_SHARE
    tuning_share: float = 0.0
    key: bytes | None = None

    def named(self, text: str) -> tuple[bytes, bytes]:
        """A document's name, and the digest that decides its split: SHA-256 digests; with a key both are its MAC.

        Without a key they differ, because users may have sorted or split their documents by SHA-256 already.
        """
        if self.key is not None:
            mac = document_mac(self.key, text)
            return mac, mac
        return text_digest(text), hashlib.sha256(b"moerge split\0" + text.encode()).digest()

    def split(self, place: bytes) -> Split:
        """The split of a digest.

        Held-out documents come from the lower end of [0, 1), tuning documents from the upper. So a growing share keeps
        its documents, and doesn't change the other share.
        """
        share = (int.from_bytes(place[:8], "big") >> 11) / 2**53
        if share < self.held_out_share:
            return "held-out"
        return "tuning" if share >= 1 - self.tuning_share else "statistics"


def text_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def document_mac(key: bytes, text: str) -> bytes:
    """HMAC-SHA-256 of a document's text. It never leaves; it determines the split and identifies sent documents."""
    return hmac.digest(key, text.encode(), "sha256")
