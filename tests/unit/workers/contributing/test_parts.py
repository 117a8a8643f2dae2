"""The documents that a worker fits its expert's MLPs to, and what its policy must allow."""

import json
from pathlib import Path
from typing import Any

import pytest

from moerge.errors import MoergeError
from moerge.fits.sample import need_of
from moerge.memory.machine import Free
from moerge.models.keeping import Keeping
from moerge_proto.bodies import Body
from moerge_workers.contributing import parts
from support.models import expert, texts, tokenizer
from support.stages import MemoryClient, run_of

TEXTS = [f"{'of the law ' * (number % 5)}document {number}" for number in range(60)]


def sampled(folder: Path, tokens: int, **changed: Any) -> list[str]:
    """The texts of the sample, from a home whose key is made anew."""
    expert(folder, 1)
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (folder / "key").unlink(missing_ok=True)
    given: dict[str, Any] = {"expert": folder, "policy": {"min_documents": 10}, **changed}
    with run_of(folder, folder, MemoryClient(None), **given) as run:
        sample = run.documents.sample(tokens)
    read = tokenizer()
    return [str(read.decode(list(row.ids))) for rows in sample for row in rows]


def test_sample_is_key_independent_and_has_the_policy_minimum(tmp_path: Path) -> None:
    texts = sampled(tmp_path, 900)
    assert sampled(tmp_path, 900) == texts == [text for text in TEXTS if text in texts]
    assert 10 < len(texts) < len(TEXTS)
    assert len(sampled(tmp_path, 1)) == 10


def test_sample_uses_statistics_split_and_counted_tokens_only(tmp_path: Path) -> None:
    assert 0 < len(sampled(tmp_path, 10**6, held_out_share=0.3, tuning_share=0.3)) < 50
    assert {len(text) for text in sampled(tmp_path, 10**6, statistics={"tokens_per_document": 4})} == {4}


@pytest.mark.parametrize("switch", ["expert_weights", "router_contributions"])
def test_fit_is_refused_where_the_policy_forbids_what_it_sends(tmp_path: Path, switch: str) -> None:
    with pytest.raises(ValueError, match=f"fit needs {switch} = true in the policy"):
        sampled(tmp_path, 1, fit=True, policy={switch: False})


def test_little_memory_reduces_fitted_tokens_or_is_refused(
    folder: Path,
    home: Path,
    client: MemoryClient,
    body: Body,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts(home / "texts.jsonl", 1, 600)
    with run_of(folder, home, client) as run:
        need = need_of(run.expert, run.documents.settings.statistics, "cpu")
        checked = run.checked_body(body)

        def fitted_with(tokens: int) -> Path | None:
            monkeypatch.setattr(parts, "free_for", lambda device: Free(need.total(tokens), None))
            return parts._fitted(run.documents, run.expert, checked)

        with pytest.raises(MoergeError, match="hidden states of 16,384 tokens"):
            fitted_with(16_000)
        made = fitted_with(20_000)
        assert made is not None
        assert (made / "model.safetensors").is_file()
    assert "instead of 65,536, because memory is short" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fit", "keeps", "fits"),
    [(None, False, True), (None, True, False), (True, True, True), (False, False, False)],
)
def test_an_expert_that_keeps_the_seed_s_body_is_not_fitted_by_default(
    folder: Path, home: Path, client: MemoryClient, body: Body, fit: bool | None, keeps: bool, fits: bool
) -> None:
    with run_of(folder, home, client, fit=fit) as run:
        checked = run.checked_body(body)
        found = Keeping() if keeps else parts.compared(home, run.expert, checked)
        assert parts._fits(run.documents.settings, run.expert, run.documents.events, body.digest, found) is fits


def test_family_whose_mlps_cannot_be_fitted_keeps_its_own(
    home: Path, tmp_path: Path, body: Body, capsys: pytest.CaptureFixture[str]
) -> None:
    own = expert(tmp_path / "expert", 1, "olmo2")
    with run_of(tmp_path, home, MemoryClient(body), expert=own, fit=None) as run:
        assert not parts._fits(run.documents.settings, run.expert, run.documents.events, body.digest)
    assert "the MLPs are not fitted: olmo2 normalises" in capsys.readouterr().err
