"""The split of documents: statistics, tuning or held-out."""

import hashlib
from typing import Literal

Split = Literal["statistics", "tuning", "held-out"]
HELD_OUT_SHARE = 0.1
"""Default share of held-out documents."""


def text_digest(text: str) -> bytes:
    """SHA-256 of a document's text."""
    return hashlib.sha256(text.encode()).digest()


def split_digest(text: str) -> bytes:
    """The digest that decides a document's split without an owner's key.

    It differs from the text's SHA-256, because users may have sorted or split their documents by that already.
    """
    return hashlib.sha256(b"moerge split\0" + text.encode()).digest()


def split_of(digest: bytes, tuning_share: float, held_out_share: float) -> Split:
    """A document's split: a function of its digest alone, which may depend on an owner's key.

    Held-out documents come from the lower end of [0, 1), tuning documents from the upper. So a growing share keeps its
    documents, and doesn't change the other share.
    """
    place = (int.from_bytes(digest[:8], "big") >> 11) / 2**53
    if place < held_out_share:
        return "held-out"
    return "tuning" if place >= 1 - tuning_share else "statistics"
