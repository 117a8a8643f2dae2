"""The version and the commit of this build."""

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from moerge import __version__


@dataclass(frozen=True)
class Build:
    """A version and its commit, None if unknown. A release's commit is the one with its tag."""

    version: str
    commit: str | None

    def __str__(self) -> str:
        return self.version if self.commit is None else f"{self.version} ({self.commit[:12]})"


@cache
def build() -> Build:
    return Build(__version__, commit_of(Path(__file__).parent))


def commit_of(package: Path) -> str | None:
    """The commit of the package's clone, or the one in the package's file `commit`, which builds of images write."""
    clone, record = package.parents[1], package / "commit"
    if (clone / ".git").exists():
        return _head(clone)
    return (record.read_text(encoding="utf-8").strip() or None) if record.is_file() else None


def _head(clone: Path) -> str | None:
    command = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603  # our own
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or a clone of another user
    return done.stdout.strip()
