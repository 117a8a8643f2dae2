"""Examples: each folder is complete, and its README's commands print the tables that it expects."""

import os
import re
import shlex
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from moerge.files import cache_folder
from support.commands import require_command
from support.expected import begins, require_lines, tokens
from support.processes import marked
from support.terminal import Shell
from support.transcripts import EXAMPLES as PAGES
from support.transcripts import ROOT, Command, blocks, commands, typed

EXAMPLES = ROOT / "examples"
LINES = 60
"""Most lines of a page."""
WITH_CONTAINERS = pytest.mark.skip(reason="it needs containers: `make test-images` types it")
TYPED = [
    pytest.param(page, marks=WITH_CONTAINERS) if any(c.line.startswith("docker ") for c in commands(page)) else page
    for page in PAGES
]


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


@pytest.mark.parametrize(
    ("line", "within", "holds"),
    [("│ code │ 91 │ 3 │", 2, True), ("│ code │ 93 │ 3 │", 2, False), ("│ law │ 91 │", 2, False), ("code", 2, False)],
)
def test_a_row_is_compared_within_its_range(line: str, within: float, holds: bool) -> None:
    assert begins(tokens(line), tokens("│ code │ 90.5 │"), within) == holds


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
@pytest.mark.parametrize("page", TYPED)
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
            require_lines(block, said)
