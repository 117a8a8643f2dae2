"""Texts for terminals: names and messages of others, without control characters."""

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with U+FFFD for each C0 and C1 control, except tab and newline: a terminal would obey them."""
    return _CONTROLS.sub("\ufffd", text)
