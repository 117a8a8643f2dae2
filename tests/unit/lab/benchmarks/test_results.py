"""A result is reused only for the same model, data and settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge_lab.benchmarks.models import Model
from moerge_lab.benchmarks.results import KEY, folder, is_done, key, score
from moerge_lab.benchmarks.settings import Asked, Settings
from support.models import expert

KNOWN = {"piqa": Asked(4, 0.5, "ab" * 32)}
SETTINGS = Settings(None, limit=4)


def answered(out: Path, model: Model, name: str, metric: str) -> None:
    """A result in the form of lm_eval: four answers, one of them wrong."""
    place = folder(out, model, name)
    place.mkdir(parents=True)
    results = {"results": {name: {"alias": name, f"{metric},none": 0.75}}, "versions": {name: "moerge-1"}}
    rows = [{"doc_id": number, metric: float(number != 1)} for number in (1, 0, 3, 2)]
    (place / "results_2026-11-27.json").write_text(json.dumps(results))
    (place / f"samples_{name}_2026-11-27.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / KEY).write_text(json.dumps(key(model, name, SETTINGS, KNOWN["piqa"])))


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A model with a result of piqa in `tmp_path`."""
    made = Model("law", "expert", expert(tmp_path / "law", 1))
    answered(tmp_path, made, "piqa", "acc")
    return made


def test_a_result_is_read(tmp_path: Path, model: Model) -> None:
    assert is_done(tmp_path, model, "piqa", SETTINGS, KNOWN["piqa"])
    alike = replace(SETTINGS, batch_size=1, device="cuda", chat=True, answer_tokens=9)
    assert is_done(tmp_path, model, "piqa", alike, KNOWN["piqa"])
    read = score(tmp_path, model, "piqa", SETTINGS, KNOWN["piqa"])
    assert list(read.values) == [1, 0, 1, 1]
    found = read.result
    assert (found.value, found.questions, found.limit, found.metric) == (0.75, 4, 4, "acc,none")
    assert (found.task_version, found.data) == ("moerge-1", "ab" * 32)
    next(folder(tmp_path, model, "piqa").glob("samples_*")).write_text("{")
    with pytest.raises(MoergeError, match=r"piqa(.|\n)*remove it"):
        score(tmp_path, model, "piqa", SETTINGS, KNOWN["piqa"])


def test_settings_of_written_answers_are_in_the_task_s_version(tmp_path: Path, model: Model) -> None:
    settings, known = replace(SETTINGS, chat=True, answer_tokens=9), KNOWN["piqa"]
    answered(tmp_path, model, "gsm8k", "exact_match")
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
        is_done(tmp_path, model, "piqa", settings, known["piqa"])


def test_another_model_is_an_error(tmp_path: Path, model: Model) -> None:
    expert(tmp_path / "law", 2)
    with pytest.raises(MoergeError, match="another model"):
        is_done(tmp_path, model, "piqa", SETTINGS, KNOWN["piqa"])


def test_a_missing_result_may_get_other_settings(tmp_path: Path, model: Model) -> None:
    place = folder(tmp_path, model, "piqa")
    place.rename(place.with_suffix(".part"))
    assert not is_done(tmp_path, model, "piqa", replace(SETTINGS, limit=5), KNOWN["piqa"])
