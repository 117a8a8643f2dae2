"""An expert's folder comes from elsewhere: whatever stands in its small files, the error is one for a user to read."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from moerge.errors import CheckpointError, MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import check_expert, expert_digest, expert_files, require_finite
from moerge.models.reader import Checkpoint
from moerge.models.stored import INDEX, SINGLE
from support.models import expert
from support.progress import Silent


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("experts") / "good", seed=1)


def copied(folder: Path, good: Path) -> Path:
    shutil.copytree(good, folder / "copy")
    return folder / "copy"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "abc"),
        ("num_attention_heads", 0),
        ("num_attention_heads", 5),
        ("num_attention_heads", None),
        ("num_hidden_layers", 3.5),
        ("num_hidden_layers", -1),
        ("head_dim", 7),
        ("hidden_act", "nope"),
        ("rms_norm_eps", "x"),
        ("rope_parameters", []),
        ("rope_parameters", {"rope_type": "yarn"}),
        ("tie_word_embeddings", "yes"),
        ("layer_types", ["x"]),
        ("dtype", "nope"),
        ("model_type", ["llama"]),
        ("num_hidden_layers", 4000),
        ("num_hidden_layers", 1e300),
        ("num_labels", 10**9),
        ("head_dim", -(2**40)),
        ("global_head_dim", 2**40),
        ("per_layer_config", {"0": {"head_dim": 2**40}}),
        ("model_type", "mamba"),
        ("rms_norm_eps", float("nan")),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(tmp_path: Path, good: Path, field: str, value: object) -> None:
    folder = copied(tmp_path, good)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, field: value}))
    with pytest.raises(MoergeError) as caught:
        check_expert(DenseFiles(folder), None, "expert of 'law'")
    assert caught.value.where


@pytest.mark.parametrize("raw", ["[]", "3", "null", '"x"', "{}", "{", '{"model": 3}', '[{"model": {}}]'])
def test_a_file_that_is_no_tokenizer_is_refused_by_path(tmp_path: Path, good: Path, raw: str) -> None:
    folder = copied(tmp_path, good)
    (folder / "tokenizer.json").write_text(raw)
    with pytest.raises(CheckpointError) as caught:
        check_expert(DenseFiles(folder), DenseFiles(good), "expert of 'law'")
    assert caught.value.where == str(folder / "tokenizer.json")


@pytest.mark.parametrize(
    "raw", ["[]", "3", "null", "{}", "{", '{"weight_map": []}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": []}}']
)
def test_a_file_that_is_no_index_is_refused_by_path(tmp_path: Path, raw: str) -> None:
    (tmp_path / INDEX).write_text(raw)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(tmp_path)
    assert caught.value.where == str(tmp_path / INDEX)


def test_a_buffer_of_an_older_file_is_no_superfluous_tensor(tmp_path: Path, good: Path) -> None:
    folder = copied(tmp_path, good)
    older = {**load_file(folder / SINGLE), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(older, folder / SINGLE, metadata={"format": "pt"})
    check_expert(DenseFiles(folder), DenseFiles(good), "older")


def test_missing_head_is_refused_unless_the_expert_is_tied(tmp_path: Path, good: Path) -> None:
    check_expert(DenseFiles(expert(tmp_path / "tied", seed=1, tie_word_embeddings=True)), DenseFiles(good), "tied")
    folder = copied(tmp_path, good)
    tensors = load_file(folder / SINGLE)
    del tensors["lm_head.weight"]
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="not found") as caught:
        check_expert(DenseFiles(folder), DenseFiles(good), "headless")
    assert "lm_head.weight" in caught.value.where


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_that_is_no_number_is_named(tmp_path: Path, good: Path, value: float) -> None:
    require_finite(Checkpoint(good), Silent())
    folder = copied(tmp_path, good)
    tensors = load_file(folder / SINGLE)
    tensors["model.layers.2.mlp.up_proj.weight"][-1, -1] = value
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="NaN or infinity") as caught:
        require_finite(Checkpoint(folder), Silent())
    assert "model.layers.2.mlp.up_proj.weight" in caught.value.where


def test_all_indexed_shards_are_included_and_others_excluded(tmp_path: Path, good: Path) -> None:
    folder = copied(tmp_path, good)
    tensors = load_file(folder / SINGLE)
    where = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in ("model-0.safetensors", "model-1.safetensors"):
        save_file({name: tensors[name] for name in tensors if where[name] == shard}, folder / shard)
    (folder / SINGLE).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    save_file({"private": torch.zeros(1)}, folder / "model-9.safetensors")
    assert sorted(expert_files(DenseFiles(folder))) == [
        "config.json", "generation_config.json", "model-0.safetensors", "model-1.safetensors", INDEX,
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


def test_an_expert_is_named_by_its_files_names_and_contents() -> None:
    one = expert_digest({"config.json": "1", SINGLE: "2"})
    assert one == expert_digest({SINGLE: "2", "config.json": "1"})
    assert one != expert_digest({"config.json": "2", SINGLE: "1"})
    assert one != expert_digest({"config.json": "1", INDEX: "2"})


def test_single_file_is_used_and_stale_index_ignored(tmp_path: Path, good: Path) -> None:
    """As in transformers, which looks for model.safetensors first."""
    folder = copied(tmp_path, good)
    stale = {name: torch.zeros_like(tensor) for name, tensor in load_file(folder / SINGLE).items()}
    save_file(stale, folder / "model-0.safetensors", metadata={"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(stale, "model-0.safetensors")}))
    name = "model.layers.0.mlp.up_proj.weight"
    stock = AutoModelForCausalLM.from_pretrained(folder).get_parameter(name)
    assert torch.equal(Checkpoint(folder).tensor(name), stock)
    assert {"model-0.safetensors", INDEX}.isdisjoint(expert_files(DenseFiles(folder)))
