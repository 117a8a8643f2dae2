"""Examples: each folder is complete, and its README's commands print the tables that it expects."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moerge.files import cache_folder
from support.commands import require_command
from support.processes import marked
from support.terminal import Shell
from support.transcripts import EXAMPLES as PAGES
from support.transcripts import ROOT, Command, blocks, commands, typed

EXAMPLES = ROOT / "examples"
LINES = 60
"""Most lines of a page."""
_NUMBER = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?)([%,.;:)]*)")


@pytest.mark.parametrize("page", PAGES)
def test_an_example_is_a_page_with_commands_that_exist_and_what_they_print(page: str) -> None:
    folder = (ROOT / page).parent
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES
    assert "minute" in text
    assert f"({folder.name}/README.md)" in (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [block for block in blocks(page) if block.language == "text"]
    for command in commands(page):
        for words in re.findall(r"(?:^|[(;]|\bdo) ?moerge ([^;|&>)]+)", command.line):
            require_command(shlex.split(words))
        for script in re.findall(r"python (\S+\.py)", command.line):
            assert (folder / script).is_file(), script


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


@pytest.mark.parametrize(
    ("line", "within", "holds"),
    [("│ code │ 91 │ 3 │", 2, True), ("│ code │ 93 │ 3 │", 2, False), ("│ law │ 91 │", 2, False), ("code", 2, False)],
)
def test_a_row_is_compared_within_its_range(line: str, within: float, holds: bool) -> None:
    assert begins(tokens(line), tokens("│ code │ 90.5 │"), within) == holds


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The demo's experts are in the cache; training takes longer than a shell waits."""
    command = [sys.executable, str(EXAMPLES / "experts.py")]
    subprocess.run(command, cwd=tmp_path_factory.mktemp("links"), check=True)  # noqa: S603  # our own script


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Shell]:
    """A shell in a copy of the examples. What it started ends with it."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("demo", "out", "__pycache__"))
    with Shell(tmp_path, XDG_CACHE_HOME=str(cache_folder().parent), MOERGE_TEST_MARK=str(tmp_path)) as shell:
        shell.seconds = 900
        try:
            yield shell
        finally:
            for process in marked(str(tmp_path)).keys() - {shell.process.pid}:
                os.kill(process, signal.SIGKILL)


@pytest.mark.examples
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_an_example_print_what_its_page_expects(page: str, person: Shell) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    said = ""
    for block in blocks(page):
        lines = [line for line in typed(block) if Command(page, block.section, line).reason is None]
        if lines:
            said = "\n".join(person.types(line.replace("8080", port)) for line in lines)
        if block.language == "text":
            match = re.search(r"within (\d+)", block.above)
            within, rows = float(match[1]) if match else 0, [tokens(row) for row in said.splitlines()]
            for line in map(tokens, block.lines):
                assert any(begins(row, line, within) for row in rows), " ".join(line)
