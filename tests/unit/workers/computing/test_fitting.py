"""The documents that a worker fits its expert's MLPs to, and what its policy must allow."""

import json
from pathlib import Path

import pytest

from moerge_workers.computing.sample import sample_of
from moerge_workers.data.splits import Data
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events
from moerge_workers.watching.status import Status
from moerge_workers.watching.view import view
from support.models import tokenizer

TEXTS = [f"{'of the law ' * (number % 5)}document {number}" for number in range(60)]


def sampled(folder: Path, tokens: int, **changed: object) -> list[str]:
    """The texts of the sample, from a home whose key is made anew."""
    tokenizer().save_pretrained(folder)
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    given: dict[str, object] = {"coordinator": "", "token": "", "domain": "law", "data": [str(folder / "data.jsonl")]}
    given |= {"expert": folder, "home": folder / "home", "policy": {"min_documents": 10}, **changed}
    settings = Settings.model_validate(given)
    settings.home.mkdir(exist_ok=True)
    (settings.home / "key").unlink(missing_ok=True)
    status = Status(settings.home, "law", "")
    with view("text", status) as shown:
        least = settings.policy.min_documents
        data, events = Data(settings, print), Events(status, shown)
        sample = sample_of(data, events, settings.statistics, tokens, least, "reading")
    read = tokenizer()
    return [str(read.decode(list(row.ids))) for rows in sample for row in rows]


def test_the_sample_is_the_same_under_another_key_and_holds_the_policy_s_least(tmp_path: Path) -> None:
    texts = sampled(tmp_path, 900)
    assert sampled(tmp_path, 900) == texts == [text for text in TEXTS if text in texts]
    assert 10 < len(texts) < len(TEXTS)
    assert len(sampled(tmp_path, 1)) == 10


def test_only_the_statistics_split_and_what_counts_of_a_document(tmp_path: Path) -> None:
    assert 0 < len(sampled(tmp_path, 10**6, held_out_share=0.3, tuning_share=0.3)) < 50
    assert {len(text) for text in sampled(tmp_path, 10**6, statistics={"tokens_per_document": 4})} == {4}


@pytest.mark.parametrize("switch", ["expert_weights", "router_contributions"])
def test_fit_is_refused_where_the_policy_forbids_what_it_sends(tmp_path: Path, switch: str) -> None:
    with pytest.raises(ValueError, match=f"fit needs {switch} = true in the policy"):
        sampled(tmp_path, 1, fit=True, policy={switch: False})
