"""A wrong path of `moerge merge` is told at once, before slow imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge.merging.places import prompts_of

WORDS = {
    "": "--expert: no expert is named",
    "--expert law=./lw --text law=law.txt": "./lw: no such folder",
    "--expert law=law.txt --text law=law.txt": "law.txt: a file, not a folder",
    "--expert law=law --base ./lw --text law=law.txt": "./lw: no such folder",
    "--expert law=law --text law=lw.txt": "--text law lw.txt: no file matches",
    "--expert law=law --text law=*.jsonl": "--text law *.jsonl: no file matches",
    "--expert law=law --text law=law.txt --held-out law=lw.txt": "--held-out law lw.txt: no file matches",
    "--expert law=law --prompt law=@lw.txt": "--prompt @lw.txt: can't be read",
    "--add law=./lw --from law --text law=law.txt": "./lw: no such folder",
    "--add law=law --from lw --text law=law.txt": "lw: no such folder",
    "--config lw.yaml": "lw.yaml: can't be read",
    "--config law.yaml": "law.yaml, line 1: expert law: {folder}/lw: no such folder",
}
SCRIPT = """
import json, sys
from typer.testing import CliRunner
from moerge.cli.app import app
given = [["merge", "--out", "out", *words.split()] for words in json.load(sys.stdin)]
errors = [str(CliRunner().invoke(app, words).exception) for words in given]
print(json.dumps([errors, "torch" in sys.modules or "transformers" in sys.modules]))
"""


def test_a_wrong_path_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "law").mkdir()
    (tmp_path / "law.txt").write_text("a text")
    (tmp_path / "law.yaml").write_text("expert: {law: ./lw, art: law}\ntext: {law: law.txt, art: law.txt}\n")
    done = subprocess.run(  # noqa: S603  # a new process, without this one's modules
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        input=json.dumps([*WORDS]),
        capture_output=True,
        text=True,
        check=True,
    )
    errors, imported = json.loads(done.stdout)
    expected = [text.format(folder=tmp_path) for text in WORDS.values()]
    assert [error[: len(text)] for error, text in zip(errors, expected, strict=True)] == expected
    assert not imported


def test_a_file_of_prompts_may_have_a_byte_order_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "prompts.txt").write_bytes(b"\xef\xbb\xbfa law\n\nan act\n")
    assert prompts_of("@~/prompts.txt") == ["a law", "an act"]
    (tmp_path / "empty.txt").touch()
    with pytest.raises(MoergeError, match="has no prompt"):
        prompts_of("@~/empty.txt")
