"""Breaks a copy of the repository, and runs the named tests there."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutations.catalogue import Mutation

ROOT = Path(__file__).parents[2]
IMPORTED = ("proto", "services", "workers", "coordinator", "tests")
SECONDS = 180  # for one test, because a mutation may make it hang
RESULTS = {0: "not caught", 1: "caught"}
"""pytest's exit status -> result of the mutation. Any other status means that no test ran to its end."""


class StaleError(Exception):
    """The code that a mutation replaces has changed."""


@dataclass(frozen=True)
class Outcome:
    """The named tests' run over a mutation.

    Attributes:
        result: `caught`, `not caught`, or the status of a broken run.
        seconds: duration.
        output: of pytest.
    """

    result: str
    seconds: float
    output: str


def place(mutation: Mutation, root: Path = ROOT) -> Path:
    """The only file of the mutation's package with its old text, once.

    Raises:
        StaleError: there is no such file, or several; or a named test file is missing.
    """
    result = [
        (path, path.read_text(encoding="utf-8").count(mutation.old))
        for path in sorted((root / mutation.package).rglob("*.py"))
    ]
    total = sum(count for _, count in result)
    if total != 1:
        raise StaleError(f"{mutation.name}: expected its old text once in {mutation.package}; found it {total} times")
    if missing := [name for name in mutation.tests if not (root / name).is_file()]:
        raise StaleError(f"{mutation.name}: no such test file: {', '.join(missing)}")
    return next(path for path, count in result if count)


def copied(folder: Path) -> Path:
    """A copy of the repository's tracked files in a new folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)  # noqa: S607
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


@contextmanager
def broken(mutation: Mutation, copy: Path) -> Iterator[None]:
    """The copy with the mutation in it."""
    path = place(mutation, copy)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def play(mutation: Mutation, copy: Path) -> Outcome:
    """Runs the mutation's tests in a broken copy until one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(copy / name) for name in IMPORTED),
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutation of equal length within a second would run the old bytecode
        "OMP_NUM_THREADS": "1",
    }
    begin = time.monotonic()
    with broken(mutation, copy):
        done = subprocess.run(  # noqa: S603  # our own command
            [*command, "-o", f"timeout={SECONDS}", *mutation.tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    result = RESULTS.get(done.returncode, f"broken: pytest ended with {done.returncode}")
    return Outcome(result, time.monotonic() - begin, done.stdout + done.stderr)
