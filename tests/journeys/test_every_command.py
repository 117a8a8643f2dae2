"""Every command that README and docs show is typed by a journey, or has a reason."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from support.transcripts import EXAMPLES, NOT_TYPED, PAGES, commands

EVERY = [command for page in PAGES for command in commands(page)]
OF_EXAMPLES = [command for page in EXAMPLES for command in commands(page)]
"""These are typed by `make examples`."""


def test_every_documented_command_has_a_journey_or_a_reason() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    typed = set(re.findall(r'Part\("(.+?)", "(.+?)"\) as', sources))
    assert [item for item in EVERY if item.reason is None and (item.page, item.section) not in typed] == []


def test_every_reason_is_needed() -> None:
    unused = [
        pattern for pattern in NOT_TYPED if not any(fnmatchcase(item.line, pattern) for item in EVERY + OF_EXAMPLES)
    ]
    assert unused == []
