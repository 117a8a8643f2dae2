"""A developer's first hour: the commands of docs/contributing.md, in a copy of the repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutations.play import IMPORTED, copied
from support.terminal import Shell
from support.transcripts import Part

pytestmark = pytest.mark.slow


def test_the_contributor_s_page_in_its_order(tmp_path: Path) -> None:
    copy = copied(tmp_path / "moerge")
    expected = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    for line in ("init", "add ."):
        subprocess.run(["git", *line.split()], cwd=copy, capture_output=True, check=True)  # noqa: S603, S607  # its files are tracked
    (copy / ".venv").symlink_to(Path(sys.executable).parents[1])
    sources = os.pathsep.join(str(copy / name) for name in IMPORTED)
    with Shell(copy, PYTHONPATH=sources) as developer:
        with Part("docs/contributing.md", "Set up") as part:
            assert "passed" in developer.types(part.next(".venv/bin/pytest tests/unit"))
            assert "passed" in developer.types(part.next(".venv/bin/pytest tests/contract"))
        with Part("docs/contributing.md", "Expected bytes") as part:
            part.names = {"PYTHONPATH=tests": f"PYTHONPATH={sources}"}
            developer.types(part.next("PYTHONPATH=tests .venv/bin/python tests/unit"))
            assert "1 passed" in developer.types(part.next("MOERGE_WRITE_OPENAPI=1"))
        assert [path for path, content in expected.items() if path.read_bytes() != content] == []
        with Part("docs/contributing.md", "Mutation tests") as part:
            part.names = {"PYTHONPATH=tests": f"PYTHONPATH={sources}"}
            assert "2 of 2 caught" in developer.types(part.next("PYTHONPATH=tests .venv/bin/python -m mutations"))
        with Part("docs/contributing.md", "Commands and messages in words") as part:
            part.names = {"PYTHONPATH=tests": f"PYTHONPATH={sources}"}
            said = developer.types(part.next("PYTHONPATH=tests .venv/bin/python -m messages"))
            for text in ("Usage: moerge version solve", "coordinator/moerge_coordinator/problems.py"):
                assert text in said
