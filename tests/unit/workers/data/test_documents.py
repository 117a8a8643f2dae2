"""A document's split is a function of its text and the owner's key, whatever else the data holds."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from moerge.documents.conversations import Document
from moerge.documents.splits import SplitRule, document_mac
from moerge.models.dense_files import DenseFiles
from moerge_workers.data.documents import Data
from moerge_workers.settings import Settings
from support.models import tokenizer

SHARES = st.floats(0, 0.49)
MACS = st.binary(min_size=32, max_size=32)


@given(MACS, SHARES, SHARES, SHARES)
def test_larger_share_moves_no_tuning_or_held_out_documents(
    mac: bytes, tuning: float, held_out: float, more: float
) -> None:
    before = SplitRule(held_out, tuning).split(mac)
    if before != "statistics":
        assert SplitRule(held_out, max(tuning, more)).split(mac) == before
        assert SplitRule(max(held_out, more), tuning).split(mac) == before
    assert SplitRule(0).split(mac) == "statistics"


def test_splits_have_their_shares() -> None:
    rule = SplitRule(held_out_share=0.3, tuning_share=0.1)
    result: list[str] = [rule.split(document_mac(b"key", str(number))) for number in range(5000)]
    for split, share in (("tuning", 0.1), ("held-out", 0.3), ("statistics", 0.6)):
        assert result.count(split) / 5000 == pytest.approx(share, abs=0.03)  # over four standard deviations


def settings(folder: Path, **changed: object) -> Settings:
    given = {"coordinator": "http://127.0.0.1:1", "token": "", "domain": "law", "data": [str(folder / "data")]}
    return Settings.model_validate({**given, "expert": folder, "home": folder / "home", **changed})


def splits(folder: Path, **changed: object) -> list[tuple[str, Document]]:
    data = Data(settings(folder, **changed), DenseFiles(folder), print)
    return [(split, document) for _, split, document in data.documents()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tokenizer()
    made.chat_template = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"
    made.save_pretrained(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


def test_splits_are_stable_for_new_and_duplicate_documents(folder: Path) -> None:
    shares = {"tuning_share": 0.3, "held_out_share": 0.3}
    texts = [f"document {number}" for number in range(40)]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "data" / "b.jsonl").write_text(rows + '{"text": ""}\n')
    before = splits(folder, **shares)
    assert [document.text for _, document in before] == texts
    assert {split for split, _ in before} == {"statistics", "tuning", "held-out"}
    (folder / "data" / "a.jsonl").write_text('{"text": "another"}\n' + rows)
    after = splits(folder, **shares)
    assert after[1:41] == after[41:] == before


def test_messages_and_texts_are_read_by_the_field_that_is_named(folder: Path) -> None:
    messages = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "so"}]
    (folder / "data" / "a.jsonl").write_text(json.dumps({"body": "a text", "talk": messages}) + "\n")
    assert splits(folder, text_field="body") == [("statistics", Document("a text"))]
    [(_, document)] = splits(folder, chat="talk", chat_turns="assistant")
    assert document == Document("user: why\nassistant: so\n", [(21, 23)], rendered=True)


def test_shares_without_a_statistics_split_are_refused(folder: Path) -> None:
    with pytest.raises(ValidationError, match="must add up to less than 1"):
        settings(folder, tuning_share=0.5, held_out_share=0.5)
