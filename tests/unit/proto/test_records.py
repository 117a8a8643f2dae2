"""Records of folders: each kind is read as itself, and a version's bytes have no tag."""

from pathlib import Path

import pytest

from moerge.versions.file_plan import record_file
from moerge_proto.digests import canonical_json
from moerge_proto.recipes import RECOMMENDED
from moerge_proto.records import RECORD_FILE, Build, Record, TunedMixture, TunedModel, read_record
from moerge_proto.versions import HeadLineage, Lineage

DIGEST = "a" * 64
BUILD = Build(moerge="", torch="", transformers="", device="cpu")
LINEAGE = Lineage(
    body=DIGEST,
    head=HeadLineage(method="average"),
    experts=[DIGEST],
    domains=["law"],
    contributions=[],
    options=RECOMMENDED.solve,
    solver="1",
)
TRAINING = {
    **{"recipe": "btx", "options": {}, "tokens": 1, "texts": {}, "weights": {}, "context": 1, "seed": 0},
    **{"precision": "float32", "accumulate": 1, "workers": 1, "build": BUILD},
}
RECORDS: list[Record] = [
    LINEAGE,
    TunedModel.model_validate({**TRAINING, "parent": LINEAGE, "parent_files": {}}),
    TunedMixture.model_validate({**TRAINING, "members": []}),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_each_kind_of_record_is_read_as_itself(record: Record, tmp_path: Path) -> None:
    with (tmp_path / RECORD_FILE).open("wb") as out:
        record_file(record).write(out)
    assert read_record(tmp_path) == record


def test_the_record_of_a_version_is_its_lineage_without_a_tag(tmp_path: Path) -> None:
    with (tmp_path / RECORD_FILE).open("wb") as out:
        record_file(LINEAGE).write(out)
    assert (tmp_path / RECORD_FILE).read_bytes() == canonical_json(LINEAGE.model_dump(mode="json")) + b"\n"
    assert b"kind" not in (tmp_path / RECORD_FILE).read_bytes()


@pytest.mark.parametrize("content", ["mine", "{}", '{"kind": "poem"}', '{"kind": ["tuned"]}', "[]"])
def test_other_content_is_no_record(content: str, tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    (tmp_path / RECORD_FILE).write_text(content)
    assert read_record(tmp_path) is None
