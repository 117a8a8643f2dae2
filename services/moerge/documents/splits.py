"""The split of documents: which of them statistics are made of, and which are held out."""

import hashlib
from typing import Literal

Split = Literal["statistics", "tuning", "held-out"]
HELD_OUT_SHARE = 0.1
"""Share of the documents that are set aside where nothing else is said."""


def text_digest(text: str) -> bytes:
    """SHA-256 of a document's text."""
    return hashlib.sha256(text.encode()).digest()


def split_digest(text: str) -> bytes:
    """The digest that decides a document's split where no owner's key does.

    It is another one than the text's SHA-256, by which users may have sorted or split their documents already.
    """
    return hashlib.sha256(b"moerge split\0" + text.encode()).digest()


def split_of(digest: bytes, tuning_share: float, held_out_share: float) -> Split:
    """A document's split: a function of its digest alone, which an owner's key may have made.

    Held-out documents are taken from the lower end of [0, 1), tuning ones from the upper, so a share that grows keeps
    what it had, and changes nothing of the other.
    """
    place = (int.from_bytes(digest[:8], "big") >> 11) / 2**53
    if place < held_out_share:
        return "held-out"
    return "tuning" if place >= 1 - tuning_share else "statistics"
