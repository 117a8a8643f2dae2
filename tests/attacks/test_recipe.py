"""Attacks by the author of a recipe file that somebody else merges by."""

import os
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge.merging.recipe_file import read_recipe

BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{BOMB}top_k: *a9\n", "no anchors, aliases and tags"),
        ("text: &t {law: a}\n", "no anchors"),
        ("top_k: !!int 1\n", "no anchors, aliases and tags"),
        ("chat: [[1], [2]]\n", "chat: expected a valid string"),
        ("<<: {top_k: 1}\n", "<<"),
        ("scored_tokens: 1:30\n", "scored_tokens"),
        ("scored_tokens: 1_000\n", "scored_tokens"),
        ("scored_tokens: 0b11\n", "scored_tokens"),
        (f"scored_tokens: {'9' * 5000}\n", "digits"),
    ],
)
def test_what_grows_or_means_something_else_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "merge.yaml").write_text(text)
    with pytest.raises(MoergeError, match=problem):
        read_recipe(tmp_path / "merge.yaml")


@pytest.mark.parametrize(("text", "number"), [("010", 10), ("0o17", 15), ("0x1F", 31), ("+7", 7)])
def test_numbers_are_those_of_yaml_1_2(tmp_path: Path, text: str, number: int) -> None:
    (tmp_path / "merge.yaml").write_text(f"scored_tokens: {text}\n")
    assert read_recipe(tmp_path / "merge.yaml").values == {"scored_tokens": number}


@pytest.mark.parametrize("kind", ["large", "fifo", "device"])
def test_only_small_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/full") if kind == "device" else tmp_path / "merge.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        path.write_text("#" * 2**20 + "\n")
    with pytest.raises(MoergeError, match="expected a regular file of at most 1 MiB"):
        read_recipe(path)
