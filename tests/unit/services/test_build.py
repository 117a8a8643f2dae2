"""The commit of a build: of its clone, recorded in an image, or unknown."""

import subprocess
from pathlib import Path

import pytest

from moerge.build import Build, commit_of


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "clone" / "services" / "moerge"
    folder.mkdir(parents=True)
    return folder


def git(folder: Path, *words: str) -> str:
    person = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    command = ["git", "-C", str(folder), *person, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603  # written here


def test_the_commit_of_a_clone_is_its_head(package: Path) -> None:
    (package / "commit").write_text("recorded earlier\n")
    git(package.parents[1], "init")
    assert commit_of(package) is None, "no commit yet"
    git(package.parents[1], "commit", "--allow-empty", "--message", "first")
    assert commit_of(package) == git(package, "rev-parse", "HEAD")


def test_the_commit_of_an_image_is_the_recorded_one(package: Path) -> None:
    (package / "commit").write_text("5f462f7\n")
    assert commit_of(package) == "5f462f7"


def test_the_commit_of_another_project_is_not_taken(package: Path) -> None:
    """As in an environment inside another project's clone."""
    git(package.parents[2], "init")
    git(package.parents[2], "commit", "--allow-empty", "--message", "other")
    assert commit_of(package) is None
    (package / "commit").write_text("\n")
    assert commit_of(package) is None


@pytest.mark.parametrize(("commit", "text"), [("5f462f7" * 5, "0.1.0 (5f462f75f462)"), (None, "0.1.0")])
def test_a_build_is_shown_with_the_start_of_its_commit(commit: str | None, text: str) -> None:
    assert str(Build("0.1.0", commit)) == text
