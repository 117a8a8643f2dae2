"""A result is reused only for the same model, data and settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moerge.benchmarks.job import Answered
from moerge.benchmarks.models import Model
from moerge.benchmarks.results import folder, is_done, key, score
from moerge.benchmarks.settings import Asked, Settings
from moerge.errors import MoergeError
from support.models import expert

KNOWN = {"piqa": Asked(4, 0.5, "ab" * 32)}
SETTINGS = Settings(None, limit=4)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A model with a result of piqa in `tmp_path`."""
    made = Model("law", "expert", expert(tmp_path / "law", 1))
    place = folder(tmp_path, made)
    place.mkdir(parents=True)
    (place / "piqa.key.json").write_text(json.dumps(key(made, "piqa", SETTINGS, KNOWN["piqa"])))
    answered = Answered(version="moerge-1", metric="acc,none", values=(1, 0, 1, 1))
    (place / "piqa.json").write_text(answered.model_dump_json())
    return made


def test_a_result_is_read(tmp_path: Path, model: Model) -> None:
    assert is_done(tmp_path, model, "piqa", SETTINGS, KNOWN)
    assert is_done(
        tmp_path, model, "piqa", replace(SETTINGS, batch_size=1, device="cuda", chat=True, answer_tokens=9), KNOWN
    )
    found = score(tmp_path, model, "piqa", SETTINGS, KNOWN["piqa"]).result
    assert (found.value, found.questions, found.limit, found.metric) == (0.75, 4, 4, "acc,none")
    assert (found.task_version, found.data) == ("moerge-1", "ab" * 32)
    (folder(tmp_path, model) / "piqa.json").write_text("{")
    with pytest.raises(MoergeError, match=r"piqa\.json(.|\n)*remove it"):
        score(tmp_path, model, "piqa", SETTINGS, KNOWN["piqa"])


def test_settings_of_written_answers_are_in_the_task_s_version(tmp_path: Path, model: Model) -> None:
    settings, known, place = replace(SETTINGS, chat=True, answer_tokens=9), KNOWN["piqa"], folder(tmp_path, model)
    (place / "gsm8k.json").write_bytes((place / "piqa.json").read_bytes())
    assert score(tmp_path, model, "gsm8k", settings, known).result.task_version == "moerge-1+chat+9 tokens"
    assert score(tmp_path, model, "piqa", settings, known).result.task_version == "moerge-1"
    assert key(model, "gsm8k", settings, known) != key(model, "gsm8k", replace(settings, answer_tokens=8), known)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (SETTINGS, ""),
        (replace(SETTINGS, precision="bfloat16"), " bfloat16"),
        (replace(SETTINGS, backend="vllm", precision="bfloat16"), " vllm bfloat16"),
    ],
)
def test_backend_and_precision_are_in_the_harness(tmp_path: Path, model: Model, settings: Settings, named: str) -> None:
    assert score(tmp_path, model, "piqa", settings, KNOWN["piqa"]).result.harness == f"lm_eval 0.4.13{named}"


@pytest.mark.parametrize(
    ("settings", "known", "problem"),
    [
        (replace(SETTINGS, limit=5), KNOWN, "limit 4 instead of 5"),
        (replace(SETTINGS, seed=1), KNOWN, "seed 0 instead of 1"),
        (replace(SETTINGS, precision="bfloat16"), KNOWN, "precision None instead of 'bfloat16'"),
        (SETTINGS, {"piqa": replace(KNOWN["piqa"], digest="cd" * 32)}, "another data"),
    ],
)
def test_other_settings_are_an_error(
    tmp_path: Path, model: Model, settings: Settings, known: dict[str, Asked], problem: str
) -> None:
    with pytest.raises(MoergeError, match=problem):
        is_done(tmp_path, model, "piqa", settings, known)


def test_another_model_is_an_error(tmp_path: Path, model: Model) -> None:
    expert(tmp_path / "law", 2)
    with pytest.raises(MoergeError, match="another model"):
        is_done(tmp_path, model, "piqa", SETTINGS, KNOWN)


def test_a_missing_result_may_get_other_settings(tmp_path: Path, model: Model) -> None:
    (folder(tmp_path, model) / "piqa.json").unlink()
    assert not is_done(tmp_path, model, "piqa", replace(SETTINGS, limit=5), KNOWN)
