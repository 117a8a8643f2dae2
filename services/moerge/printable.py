"""Texts for terminals: names and messages of others, without control characters and changes of direction."""

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with U+FFFD for each C0, C1 and bidirectional control, except tab and newline: a terminal obeys them."""
    return _CONTROLS.sub("\ufffd", text)
