"""Which documents the MLPs are fitted to."""

import json
from pathlib import Path

import pytest

from moerge_workers.data import Data
from moerge_workers.fit import drawn
from moerge_workers.settings import Settings
from moerge_workers.status import Status
from moerge_workers.view import view
from moerge_workers.watch import Watch
from support.models import tokenizer

TEXTS = [f"{'of the law ' * (number % 5)}document {number}" for number in range(60)]


def draw(folder: Path, texts: list[str], most: int, **changed: object) -> tuple[list[str], int]:
    """(texts in the order that they were drawn in, documents)."""
    tokenizer().save_pretrained(folder)
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given: dict[str, object] = {"coordinator": "", "token": "", "domain": "law", "data": [str(folder / "data.jsonl")]}
    given |= {"expert": folder, "home": folder / "home", "policy": {"min_documents": 10}, **changed}
    settings = Settings.model_validate(given)
    settings.home.mkdir(exist_ok=True)
    status = Status(settings.home, "law", "")
    with view("text", status) as shown:
        rows, documents = drawn(settings, Data(settings, print), Watch(status, shown), most)
    read = tokenizer()
    return [str(read.decode(list(row.ids))) for row in rows], documents


def test_all_are_drawn_if_they_hold_no_more(tmp_path: Path) -> None:
    texts, documents = draw(tmp_path, [*TEXTS, *TEXTS[:7]], 10**6)
    assert sorted(texts) == sorted(TEXTS)  # each once
    assert documents == len(TEXTS)


def test_the_same_are_drawn_in_any_order_and_as_few_as_are_enough(tmp_path: Path) -> None:
    texts, documents = draw(tmp_path, TEXTS, 900)
    assert draw(tmp_path, TEXTS[::-1], 900) == (texts, documents)
    assert documents == len(texts) < len(TEXTS)
    assert sum(map(len, texts)) >= 900 > sum(map(len, texts[:-1]))  # a token a letter
    assert set(texts) != set(TEXTS[:documents])
    fewer, _ = draw(tmp_path, TEXTS, 500)
    assert texts[: len(fewer)] == fewer


def test_never_fewer_documents_than_the_policy_s_least(tmp_path: Path) -> None:
    assert draw(tmp_path, TEXTS, 1)[1] == 10


def test_only_the_statistics_split_and_what_counts_of_a_document(tmp_path: Path) -> None:
    some, _ = draw(tmp_path, TEXTS, 10**6, held_out_share=0.3, tuning_share=0.3)
    assert 0 < len(some) < 50
    texts, _ = draw(tmp_path, TEXTS, 10**6, statistics={"tokens_per_document": 4})
    assert {len(text) for text in texts} == {4}


@pytest.mark.parametrize("switch", ["expert_weights", "router_contributions"])
def test_fit_is_refused_where_the_policy_forbids_what_it_sends(tmp_path: Path, switch: str) -> None:
    with pytest.raises(ValueError, match=f"fit asks for what the policy forbids: {switch} = false"):
        draw(tmp_path, TEXTS, 1, fit=True, policy={switch: False})
