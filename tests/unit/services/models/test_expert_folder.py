"""Experts that differ from the others, or have no exact stock class, are refused by the name of the field."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moerge.errors import IncompatibleExpertError
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import check_expert, expert_digest, expert_files
from support.models import GEMMA4_SMALL, expert


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("experts") / "reference", seed=1)


def changed(field: str, value: object) -> dict[str, Any]:
    return {field: value}


def refusal(folder: Path, reference: Path | None) -> IncompatibleExpertError:
    with pytest.raises(IncompatibleExpertError) as caught:
        check_expert(DenseFiles(folder), None if reference is None else DenseFiles(reference), "expert of 'law'")
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 64),
        ("intermediate_size", 64),
        ("num_hidden_layers", 2),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 16),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 5e5}),
        ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
        ("rms_norm_eps", 1e-5),
        ("hidden_act", "gelu"),
        ("vocab_size", 301),
    ],
)
def test_every_setting_that_matters_must_agree(tmp_path: Path, reference: Path, field: str, value: object) -> None:
    error = refusal(expert(tmp_path, seed=2, **changed(field, value)), reference)
    assert field in error.where.removeprefix("config.json: ").split(", ")
    assert "expert of 'law'" in error.what
    assert error.todo


def test_settings_that_change_no_logit_may_differ(tmp_path: Path, reference: Path) -> None:
    other = expert(tmp_path, seed=2, initializer_range=0.5, use_cache=False, attention_dropout=0.1)
    check_expert(DenseFiles(other), DenseFiles(reference), "other")


def test_settings_that_the_family_does_not_know_may_differ(tmp_path: Path, reference: Path) -> None:
    """Old fine-tunes name code that stock transformers doesn't need."""
    other = expert(tmp_path / "other", seed=2)
    path = other / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": {"AutoConfig": "c.C"}, "my_own": 1}))
    check_expert(DenseFiles(other), DenseFiles(reference), "later")
    check_expert(DenseFiles(reference), DenseFiles(other), "earlier")


def test_another_family_is_refused(tmp_path: Path, reference: Path) -> None:
    assert refusal(expert(tmp_path, seed=2, family="mistral"), reference).where == "config.json: model_type"


def test_another_tokenizer_is_refused_by_the_part_that_differs(tmp_path: Path, reference: Path) -> None:
    folder = expert(tmp_path, seed=2)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    path.write_text(json.dumps(content))
    check_expert(DenseFiles(folder), DenseFiles(reference), "padding does not matter")
    vocabulary = content["model"]["vocab"]
    vocabulary["!"], vocabulary["#"] = vocabulary["#"], vocabulary["!"]
    path.write_text(json.dumps(content))
    assert refusal(folder, reference).where == "tokenizer.json: model.vocab"


def test_a_tokenizer_in_an_older_form_is_the_same(tmp_path: Path) -> None:
    """Files of tokenizers before 0.20 have merges as texts, and lack fields of later ones."""
    folders = [expert(tmp_path / name, seed=1, num_hidden_layers=1) for name in ("new", "old")]
    for folder, merges, unset in zip(folders, ([["a", "b"]], ["a b"]), ("ignore_merges", "other"), strict=True):
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        content["model"] = {**content["model"], "merges": merges, unset: False}
        content["model"]["vocab"]["ab"] = 299
        path.write_text(json.dumps(content))
    path.write_text(path.read_text().replace('"ignore_merges": false, ', ""))
    assert "ignore_merges" not in path.read_text()
    check_expert(DenseFiles(folders[0]), DenseFiles(folders[1]), "newer")
    check_expert(DenseFiles(folders[1]), DenseFiles(folders[0]), "older")
    path.write_text(path.read_text().replace("a b", "b a"))
    assert refusal(folders[1], folders[0]).where == "tokenizer.json: model.merges"


def test_biases_are_refused_with_the_reason(tmp_path: Path) -> None:
    error = refusal(expert(tmp_path, seed=1, mlp_bias=True), None)
    assert error.where == "config.json: mlp_bias"
    assert "bias" in error.what


def test_a_family_without_a_stock_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    assert "gpt_neox" in refusal(tmp_path, None).what


def test_only_the_files_that_make_the_expert_leave(tmp_path: Path) -> None:
    folder = expert(tmp_path, seed=1)
    for name in ("optimizer.pt", "training.jsonl", "README.md", "modeling_evil.py"):
        (folder / name).write_text("private")
    assert sorted(expert_files(DenseFiles(folder))) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


def test_an_expert_s_name_depends_on_every_file() -> None:
    files = {"config.json": "0" * 64, "model.safetensors": "1" * 64}
    assert expert_digest(files) == expert_digest(dict(reversed(files.items())))
    assert expert_digest(files) != expert_digest({**files, "config.json": "2" * 64})


def test_keys_and_values_of_layers_that_read_an_earlier_one_s_are_left_out(tmp_path: Path) -> None:
    folder = expert(tmp_path / "hub", 1, "gemma4_text", **GEMMA4_SMALL)
    before, said = DenseFiles(folder).checkpoint.shapes, list[str]()
    extra = {f"model.layers.3.self_attn.{name}.weight": torch.ones(16, 32) for name in ("k_proj", "v_proj")}
    save_file({**load_file(folder / "model.safetensors"), **extra}, folder / "model.safetensors", {"format": "pt"})
    check_expert(own := DenseFiles(folder), None, "expert", say=said.append)
    assert own.checkpoint.shapes == before
    [text] = said
    assert "keys and values of layers that read an earlier one's (2 tensors, 1,024 parameters)" in text
