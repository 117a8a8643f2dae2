"""Folders that a pull refuses before it asks the coordinator."""

from pathlib import Path

import pytest

from moerge.client.client import Client
from moerge.client.pull import pull
from moerge.errors import MoergeError
from moerge.progress import LogProgress
from moerge_proto.recipes import SolveOptions
from moerge_proto.records import TunedModel
from moerge_proto.versions import HeadLineage, Lineage, Version

HEAD = HeadLineage(method="average")
LINEAGE = Lineage(
    body="f" * 64, head=HEAD, experts=[], domains=[], contributions=[], options=SolveOptions(), solver="s"
)


def refusal(folder: Path) -> str:
    version = Version.model_construct(number=1, lineage=LINEAGE, files=[])
    with Client("http://127.0.0.1:1", "token") as client, pytest.raises(MoergeError) as caught:
        pull(client, version, folder, LogProgress())
    assert caught.value.where == str(folder)
    return caught.value.what


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mother.txt").write_text("dear")
    assert "not a pulled version" in refusal(tmp_path)
    assert (tmp_path / "mother.txt").read_text() == "dear"


def test_the_folder_of_a_tuned_model_is_refused(tmp_path: Path) -> None:
    tuned = {
        **{"recipe": "btx", "options": {}, "tokens": 1, "texts": {}, "weights": {}, "context": 1, "seed": 0},
        **{"precision": "float32", "accumulate": 1, "workers": 1, "parent_files": {}, "parent": LINEAGE},
        "build": {"moerge": "", "torch": "", "transformers": "", "device": "cpu"},
    }
    (tmp_path / "moerge.json").write_text(TunedModel.model_validate(tuned).model_dump_json())
    assert "contains a tuned model" in refusal(tmp_path)
