"""A consumer compares a version with its experts and seed on public tasks, with and without moerge's command."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.models import expert
from support.processes import run_command
from support.terminal import Shell
from support.transcripts import Part
from support.versions import published

pytestmark = pytest.mark.slow
HOOKS = """
import sys
from moerge.benchmarks.task_files import hooks

add = {"prompt": "def add(a, b):\\n", "test": "def check(f):\\n    assert f(1, 2) == 3\\n", "entry_point": "add"}
assert hooks.pass_at_1(add, ["    return a + b"]) == {"pass_at_1": 1}
assert hooks.pass_at_1(add, ["    return a - b"]) == {"pass_at_1": 0}
assert hooks.refused({}, ["I can't help with that."]) == {"refused": 1}
kinds = ["length_constraints:number_sentences", "change_case:capital_word_frequency"]
limits = [{"num_sentences": 2, "relation": "at least"}, {"capital_frequency": 1, "capital_relation": "at least"}]
asked = {"key": 1, "prompt": "Write.", "instruction_id_list": kinds, "kwargs": limits}
found = [hooks.followed(asked, [text])["prompt_level_strict_acc"] for text in ("One. TWO.", "ONE", "One. Two.")]
assert found == [1, 0, 0], found
"""


def questions(path: Path, count: int) -> None:
    choose = random.Random(path.name)  # noqa: S311  # no secret
    letters = "abcdefghijklmnopqrstuvwxyz "
    with path.open("w", encoding="utf-8") as out:
        for _ in range(count):
            texts = ["".join(choose.choices(letters, k=choose.randint(5, 30))) for _ in range(5)]
            record = {"question": texts[0], "choices": texts[1:], "answer": choose.randrange(4)}
            out.write(json.dumps(record) + "\n")


def scores(folder: Path, task: str) -> Iterator[dict[str, Any]]:
    """The task's result for each model."""
    rows = json.loads((folder / "table.json").read_bytes())["tasks"]
    return iter(next(row["results"] for row in rows if row["task"] == task).values())


def test_a_version_of_equal_experts_scores_as_the_dense_model(tmp_path: Path) -> None:
    dense = expert(tmp_path / "code", 1)
    published([dense, dense], tmp_path / "made").rename(tmp_path / "merged")
    (tmp_path / "benchmarks").mkdir()
    for name in ("arc-easy", "piqa"):
        questions(tmp_path / "benchmarks" / f"{name}.test.json", 40)
    fewer = {" --expert law=law/ --base seed/": "", "piqa=law": "piqa=code"}  # each model costs a process
    with Shell(tmp_path) as person:
        with Part("docs/benchmarks.md", "Compare") as part:
            assert "sha256: 3f32a84716ca6d57" in person.types(part.next("moerge benchmark fetch"))
            said = person.types(part.next("moerge benchmark merged/", fewer))
            assert "piqa=code" in said
        own, version = scores(tmp_path / "scores", "arc-easy")
        assert 0 < own["value"] < 1
        assert version == own
        with Part("docs/benchmarks.md", "Without moerge") as part:
            person.types(part.next("lm_eval --model hf"))
        [bare] = (tmp_path / "bare").rglob("results*.json")
        assert json.loads(bare.read_bytes())["results"]["arc-easy"]["acc,none"] == own["value"]

    raw = tmp_path / "scores" / "raw"
    (raw / "version" / "piqa.json").unlink()
    kept = {path: path.stat().st_mtime_ns for path in [*raw.glob("code/*"), raw / "version" / "arc-easy.json"]}
    tokenizer = tmp_path / "merged" / "tokenizer.json"
    tokenizer.unlink()
    tokenizer.write_text("{}")
    again: list[object] = ["benchmark", tmp_path / "merged", "--expert", f"code={dense}", "--tasks", "arc-easy,piqa"]
    again += ["--data", tmp_path / "benchmarks", "--out", tmp_path / "scores", "--limit"]
    failed = run_command(*again, 400)
    assert failed.returncode == 1
    assert "lm_eval failed at piqa of version" in failed.stderr
    assert str(raw / "version" / "log") in failed.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    refused = run_command(*again, 10)
    assert refused.returncode == 1
    assert "limit 400 instead of 10" in refused.stderr


def test_answers_are_judged_offline() -> None:
    done = run_command(script=HOOKS)
    assert done.returncode == 0, done.stderr
