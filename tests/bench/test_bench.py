"""The benchmarks' functions, on tiny shapes: they run, and compare like with like. No figure is checked."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from bench import fit, inputs, passes, sizes, statistics_pass, streamed, worker
from bench.inputs import Shape, llama_config
from bench.made import made_pass, write_expert
from bench.masks import Round
from moerge.documents import shards as plans
from moerge.statistics.journal import Journal
from moerge_workers.computing import pending
from support.passes import sums_of, whole_sums

TINY = Shape(hidden=64, layers=2, intermediate=128, vocabulary=300)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of inputs; settings that benchmarks change come back."""
    for module in (inputs, streamed):
        monkeypatch.setattr(module, "HOME", tmp_path)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(plans, "TOKENS_PER_HIDDEN", plans.TOKENS_PER_HIDDEN)
    monkeypatch.setitem(vars(pending), "Journal", Journal)
    return tmp_path


def test_masked_contributions_have_the_plain_total(tmp_path: Path) -> None:
    made = Round(tmp_path / "masks", hidden=8, layers=2)
    assert np.array_equal(made.run(made.keeper.public_key), made.run())


@pytest.mark.parametrize("way", passes.WAYS)
def test_a_process_tells_its_seconds_and_its_memory(
    way: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = streamed.folder(TINY)
    monkeypatch.setattr(sys, "argv", ["bench.passes", way, str(folder), "bfloat16", "512", "0"])
    passes.main()
    result = passes.Measured(**json.loads(capsys.readouterr().out))
    assert result.seconds > 0
    assert result.imported > 10 * 2**20


def test_made_weights_are_those_of_the_expert_that_is_written(tmp_path: Path) -> None:
    config = llama_config(TINY)
    write_expert(tmp_path, config, torch.float32)
    written, made = (
        AutoModelForCausalLM.from_pretrained(tmp_path),
        made_pass(config, "float32", "cpu").weights().model(),
    )
    for name, tensor in made.state_dict().items():
        assert torch.equal(written.get_parameter(name), tensor), name
    matrices = [tensor for tensor in made.state_dict().values() if tensor.dim() == 2]
    assert len({float(tensor[0, 0]) for tensor in matrices}) == len(matrices)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_generated_weights_give_integers_of_the_whole_model(precision: str) -> None:
    work, rows = made_pass(sizes.SHAPES["tiny"], precision, "cpu"), passes.random_rows(1024)
    result, expected = sums_of(work, rows), whole_sums(work, rows)
    assert all((result.arrays[name] == array).all() for name, array in expected.arrays.items())
    assert result.arrays.keys() == expected.arrays.keys()


def test_a_size_is_measured_against_a_plain_forward(capsys: pytest.CaptureFixture[str]) -> None:
    sizes.main(["--shape", "tiny", "--device", "cpu", "--tokens", "512", "--runs", "2", "--states", "host"])
    shown = capsys.readouterr().out
    assert "tiny, bfloat16, 512 tokens" in shown
    assert "ratio" in shown


def test_a_model_that_does_not_fit_is_measured_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sizes, "free_bytes", lambda device: 2**20)
    sizes.main(["--shape", "tiny", "--device", "cpu", "--tokens", "512"])
    assert "skipped: it needs 5" in (shown := capsys.readouterr().out)
    assert "ratio" not in shown


def test_a_fit_is_measured_against_its_passes() -> None:
    assert all(min(pair) > 0 for pair in fit.against_passes(TINY, 4, 2))


def test_the_statistics_pass_and_small_shards_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(min(pair) > 0 for pair in statistics_pass.against(statistics_pass.textbook, "eager", TINY, 1, 16))
    monkeypatch.setattr(worker, "SHAPE", TINY)
    monkeypatch.setattr(worker, "DOCUMENTS", 120)
    [(spent, total)] = worker.small_shards()
    assert 0 < spent < total
