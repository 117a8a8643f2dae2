"""The last release that works with this build, from git."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from moerge import __version__
from support.wheels import ROOT, run, wheel_of

FIRST = (0, 2, 0)
"""The first release whose formats later ones keep."""
_SOURCE = "services/moerge/__init__.py"


def last_release() -> str:
    """The commit of the last release; before the first one, the commit that set the development version.

    A change of a format that no release has sets the next development version, such as 0.2.0.dev3. Skips the test
    without git's history.
    """
    version, tag = _version(), f"refs/tags/v{_version()}^{{commit}}"
    if tagged := _git("rev-parse", "--verify", "--quiet", tag):
        return tagged
    whole = _git("rev-parse", "--is-shallow-repository") == "false"
    commits = _git("log", "--reverse", "--format=%H", f'-S__version__ = "{version}"', "--", _SOURCE).split()
    if not whole or not commits:
        pytest.skip(f"this clone has no commit that sets version {version}: git fetch --unshallow --tags")
    return commits[0]


def _version() -> str:
    """The newest version of the changelog that is not this build's; without one since FIRST, this build's."""
    headings = re.findall(r"^## (\d+\.\d+\.\d+) ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    kept = [item for item in headings if tuple(map(int, item.split("."))) >= FIRST and item != __version__]
    return kept[0] if kept else __version__


def _git(*arguments: str) -> str:
    """The output of git in this clone; empty if it fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    except FileNotFoundError:
        return ""


def file_at(commit: str, path: str) -> str:
    """The text of a file in a commit."""
    return run("git", "-C", ROOT, "show", f"{commit}:{path}", cwd=ROOT)


@dataclass(frozen=True)
class Build:
    """A build's commands; `path`: the folders of its packages."""

    path: tuple[Path, ...]

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of its processes."""
        return {"PYTHONPATH": os.pathsep.join(map(str, self.path)), **more}

    def moerge(self, *arguments: object, cwd: Path, **environment: str) -> str:
        """Runs a command to its end; returns what it said."""
        command = (sys.executable, "-m", "moerge", *arguments)
        return run(*command, cwd=cwd, environment=self.environment(**environment)).strip()


THIS = Build(tuple(ROOT / name for name in ("proto", "services", "workers", "coordinator")))


def released(folder: Path) -> Build:
    """The build of the last release, from its wheel, below `folder`."""
    commit, archive, source, packages = last_release(), folder / "tar", folder / "source", folder / "packages"
    run("git", "-C", ROOT, "archive", "--output", archive, commit, cwd=folder)
    source.mkdir()
    run("tar", "--extract", "--file", archive, cwd=source)
    (source / "services" / "moerge" / "commit").write_text(f"{commit}\n")
    arguments = ("--quiet", "--no-deps", "--no-index", "--target", packages)
    run(sys.executable, "-m", "pip", "install", *arguments, wheel_of(source, folder), cwd=folder)
    result = Build((packages,))
    assert commit[:12] in result.moerge("--version", cwd=folder), "another build was imported"
    return result
