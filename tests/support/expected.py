"""Output that an example's page expects, compared with what its commands printed."""

import re

from support.transcripts import Block

_NUMBER = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?)([%,.;:)]*)")


def tokens(line: str) -> list[str]:
    """The words and numbers of a line, without a table's borders."""
    return re.sub(r"[\u2500-\u257f]", " ", line).split()


def begins(found: list[str], expected: list[str], within: float) -> bool:
    """Tell whether a line begins so; its numbers may differ by `within`, or by as many percent."""

    def alike(here: str, there: str) -> bool:
        pair = _NUMBER.fullmatch(here), _NUMBER.fullmatch(there)
        if pair[0] is None or pair[1] is None:
            return here == there
        number, wanted = (float(match[1].replace(",", "")) for match in pair if match)
        return pair[0][2] == pair[1][2] and abs(number - wanted) <= within * max(1, abs(wanted) / 100)

    return len(found) >= len(expected) and all(map(alike, found, expected))


def require_lines(block: Block, said: str) -> None:
    """Requires that each line of the block begins a line of the output, within the range that is named above it."""
    match = re.search(r"within (\d+)", block.above)
    within, rows = float(match[1]) if match else 0, [tokens(row) for row in said.splitlines()]
    for line in map(tokens, block.lines):
        assert any(begins(row, line, within) for row in rows), " ".join(line)
