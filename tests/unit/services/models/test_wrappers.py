"""A checkpoint that wraps a text model, as for images, is read as its text model, and the rest is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge.bodies.merge import FolderFiles, seed_body
from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.files import file_sha256
from moerge.fits.parts import write_parts
from moerge.models.config import dense_config, read_config, require_plain_config
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import check_expert, dense_folder, expert_files
from moerge.models.families.family import HEAD
from moerge.models.reader import Checkpoint, require_tensors
from moerge.progress import NoProgress
from moerge.scoring.perplexity import load
from support.models import adapter, expert, tokenizer
from support.wrappers import WRAPPERS, wrapper

FAMILIES = {"mistral3": "mistral", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}
IDS, WEIGHTS = torch.arange(97, 121).reshape(2, 12), "model.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wrapper of each kind, and beside it its logits; the last row begins with padding."""
    root = tmp_path_factory.mktemp("wrappers")
    for kind in WRAPPERS:
        model = wrapper(root / kind, kind)
        save_file({"logits": logits_of(model)}, root / f"{kind}.safetensors")
    return root


def logits_of(model: Any) -> Tensor:
    mask = torch.ones_like(IDS)
    mask[1, :3] = 0
    with torch.no_grad():
        result: Tensor = model.eval()(input_ids=IDS, attention_mask=mask).logits
    return result * mask[:, :, None]


def expected(folders: Path, kind: str) -> Tensor:
    return load_file(folders / f"{kind}.safetensors")["logits"]


def model_of(folder: Path) -> Any:
    """Transformers' model of a folder's config and tensors, as they are read."""
    config, checkpoint = read_config(folder), Checkpoint(folder)
    require_tensors(checkpoint, config)
    model = AutoModelForCausalLM.from_config(dense_config(config, checkpoint.shapes), dtype=torch.float32)
    model.load_state_dict({name: checkpoint.tensor(name) for name in checkpoint.specs}, strict=HEAD in checkpoint.specs)
    model.tie_weights()
    return model


def copied(
    folder: Path, to: Path, rename: Callable[[str], str] = str, more: tuple[str, ...] = (), **fields: Any
) -> Path:
    """A copy with renamed tensors, `more` ones of 8 zeros, and other fields in config.json."""
    shutil.copytree(folder, to)
    tensors = {rename(name): tensor for name, tensor in load_file(to / WEIGHTS).items()}
    save_file({**tensors, **{name: torch.zeros(8) for name in more}}, to / WEIGHTS, {"format": "pt"})
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **fields}))
    return to


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_is_read_as_its_text_model(folders: Path, kind: str) -> None:
    result, checkpoint = logits_of(model_of(folders / kind)), Checkpoint(folders / kind)
    torch.testing.assert_close(result, expected(folders, kind), atol=1e-5, rtol=0)
    assert float(result.std()) > 0.1
    stored, left = load_file(folders / kind / WEIGHTS), checkpoint.parts.values()
    assert sum(part.tensors for part in left) == len(stored) - len(checkpoint.specs) > 0
    read = sum(spec.bytes // 4 for spec in checkpoint.specs.values())
    assert sum(part.parameters for part in left) == sum(tensor.numel() for tensor in stored.values()) - read


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_expert_in_a_wrapper_gives_the_bytes_of_its_flat_text_model(
    folders: Path, tmp_path: Path, kind: str
) -> None:
    said = list[str]()
    own = DenseFiles(folders / kind)
    check_expert(own, None, "the expert", say=said.append)
    (sentence,) = said
    assert sentence.startswith(f"the expert: only its text model is read, {FAMILIES[kind]}; left out: ")
    assert "vision tower (" in sentence
    torch.testing.assert_close(logits_of(load(own.folder)), expected(folders, kind), atol=1e-5, rtol=0)

    model_of(own.folder).save_pretrained(tmp_path / "flat")
    tokenizer().save_pretrained(tmp_path / "flat")
    flat = DenseFiles(tmp_path / "flat")
    check_expert(flat, own, "the flat folder", say=said.append)
    assert len(said) == 1
    bodies = [seed_body(files, FolderFiles(tmp_path / f"{n}"), NoProgress()) for n, files in enumerate((own, flat))]
    assert bodies[0].digest == bodies[1].digest
    parts = [write_parts(files, tmp_path / f"parts-{n}") for n, files in enumerate((own, flat))]
    assert file_sha256(parts[0] / WEIGHTS) == file_sha256(parts[1] / WEIGHTS)
    for folder in (tmp_path / "0", parts[0]):
        content = json.loads((folder / "config.json").read_text())
        assert content["model_type"] == FAMILIES[kind]
        assert not [name for name in content if name.endswith("_config") or "mrope" in str(content[name])]


def nested(name: str) -> str:
    """The names of transformers' classes in memory."""
    name = name.removeprefix("language_model.")
    if name.startswith("lm_head"):
        return name
    return f"model.language_model.{name[6:]}" if name.startswith("model.") else f"model.{name}"


def test_other_layouts_of_a_wrapper_are_read_alike(folders: Path, tmp_path: Path) -> None:
    for kind in ("qwen2_5_vl", "mistral3"):
        other = copied(folders / kind, tmp_path / kind, nested)
        assert any(name.startswith("model.language_model.") for name in load_file(other / WEIGHTS))
        torch.testing.assert_close(logits_of(model_of(other)), expected(folders, kind), atol=1e-5, rtol=0)
    old = copied(folders / "qwen2_5_vl", tmp_path / "old")
    content = json.loads((old / "config.json").read_text())
    text, vision = content["text_config"], content["vision_config"]
    rope = {"type": "mrope", "mrope_section": [1, 1, 2]}
    text = {name: value for name, value in text.items() if name not in ("rope_parameters", "model_type")}
    flat = {**text, "model_type": "qwen2_5_vl", "rope_theta": 1e4, "rope_scaling": rope, "torch_dtype": "float32"}
    (old / "config.json").write_text(json.dumps({**flat, "vision_config": vision, "tie_word_embeddings": False}))
    check_expert(DenseFiles(old), DenseFiles(folders / "qwen2_5_vl"), "the older folder")


def test_what_is_left_out_is_named_with_its_size(folders: Path, tmp_path: Path) -> None:
    more = ("mtp.fc.weight", "mtp.norm.weight", "model.audio_tower.layers.0.weight", "model.embed_audio.weight")
    folder = copied(folders / "qwen3_vl", tmp_path / "more", more=more)
    left = DenseFiles(folder).left_out
    assert "audio tower (1 tensors, 8 parameters)" in left
    assert "multi-token prediction (2 tensors, 16 parameters), projector (1 tensors, 8 parameters)" in left


def test_a_flat_folder_may_have_parts_beside_its_text_model(tmp_path: Path) -> None:
    folder = copied(expert(tmp_path / "plain", seed=1), tmp_path / "more", more=("mtp.fc.weight",))
    check_expert(DenseFiles(folder), DenseFiles(tmp_path / "plain"), "the expert")
    assert DenseFiles(folder).left_out == (
        "only its text model is read, llama; left out: multi-token prediction (1 tensors, 8 parameters)"
    )


def test_an_unknown_tensor_is_refused(folders: Path, tmp_path: Path) -> None:
    folder = copied(folders / "qwen3_vl", tmp_path / "more", more=("model.language_model.adapters.0.weight",))
    with pytest.raises(CheckpointError, match="has no such tensor") as caught:
        check_expert(DenseFiles(folder), None, "the expert")
    assert caught.value.where == "more: model.adapters.0.weight"


def test_a_tensor_in_both_layouts_is_refused(folders: Path, tmp_path: Path) -> None:
    folder = copied(folders / "qwen3_vl", tmp_path / "twice", more=("model.norm.weight",))
    with pytest.raises(CheckpointError, match=f"also in {WEIGHTS}"):
        Checkpoint(folder)


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        ("gemma3", {}, "no window in its last layer"),
        ("mistral3", {"quantization_config": {"quant_method": "fp8"}}, "quantised by fp8"),
        ("mistral3", {"text_config": {"hidden_size": 32}}, "there is no model_type"),
        ("mistral3", {"text_config": {"model_type": "mistral", "num_hidden_layers": 1e12}}, "found 1000000000000.0"),
        ("mistral3", {"text_config": {"model_type": ["mistral"]}}, "has no stock MoE class"),
        ("mistral3", {"text_config": {"model_type": "mistral", "hidden_size": {}}}, "can't be read as a model config"),
        ("mistral3", {"vision_config": {"depth": 10**12}}, "found 1000000000000"),
        ("qwen3_vl", {"text_config": {"model_type": "qwen3_vl_moe_text"}}, "is a mixture of experts"),
    ],
)
def test_a_wrapper_is_checked_like_a_flat_config(
    folders: Path, tmp_path: Path, kind: str, fields: dict[str, Any], problem: str
) -> None:
    folder = copied(folders / kind, tmp_path / "changed", **fields)
    with pytest.raises((CheckpointError, IncompatibleExpertError), match=problem):
        check_expert(DenseFiles(folder), None, "the expert")


def test_a_file_of_towers_alone_belongs_to_the_expert(folders: Path, tmp_path: Path) -> None:
    folder = copied(folders / "qwen3_vl", tmp_path / "sharded")
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    places = {name: f"model-{1 + name.startswith('model.visual.')}.safetensors" for name in tensors}
    for file in set(places.values()):
        save_file({name: tensor for name, tensor in tensors.items() if places[name] == file}, folder / file)
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": places}))
    names = expert_files(DenseFiles(folder)).keys()
    assert {"model-1.safetensors", "model-2.safetensors"} <= names
    torch.testing.assert_close(logits_of(model_of(folder)), expected(folders, "qwen3_vl"), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["qwen3_vl", "mistral3"])
def test_an_adapter_of_a_wrapper_changes_its_text_model(folders: Path, tmp_path: Path, kind: str) -> None:
    """Its names have the wrapper's prefix, or none if it was trained on the text model."""
    flat = tmp_path / "flat"
    model_of(folders / kind).save_pretrained(flat)
    own, other = (adapter(tmp_path / f"on-{base.name}", base, seed=3) for base in (folders / kind, flat))
    weights = load_file(own / "adapter_model.safetensors")
    texts = {key.replace("language_model.model.", "model.").replace(".language_model.", "."): key for key in weights}
    same = {key: weights[stored] for key, stored in texts.items() if "vision" not in key and "visual" not in key}
    save_file(same, other / "adapter_model.safetensors")
    settings = json.loads((own / "adapter_config.json").read_text())
    for folder, base in ((own, folders / kind), (other, flat)):
        start = "model.language_model" if kind == "qwen3_vl" and folder == own else "layers"
        pattern = {f"{start}.layers.0.self_attn.q_proj".replace("layers.layers", "layers"): 6}
        changed = {**settings, "base_model_name_or_path": str(base), "alpha_pattern": pattern}
        (folder / "adapter_config.json").write_text(json.dumps(changed))
    result, flatly = Checkpoint(own), Checkpoint(other)
    assert result.shapes == flatly.shapes
    apart = 0
    for name in result.specs:
        assert torch.equal(result.tensor(name), flatly.tensor(name))
        apart += not torch.equal(result.tensor(name), Checkpoint(flat).tensor(name))
    assert apart == 2 * 3
    dense = DenseFiles(dense_folder(DenseFiles(own), tmp_path / "merged"))
    check_expert(dense, DenseFiles(own), "the dense files")
    assert not dense.left_out
    assert json.loads((dense.folder / "config.json").read_text())["model_type"] == FAMILIES[kind]


def test_the_part_of_an_adapter_for_a_tower_is_left_out(folders: Path, tmp_path: Path) -> None:
    own = adapter(tmp_path / "own", folders / "qwen3_vl", seed=3)
    path = own / "adapter_model.safetensors"
    module = "base_model.model.model.visual.blocks.0.attn.proj"
    factors = {f"{module}.lora_{part}.weight": torch.zeros(2, 16) for part in ("A", "B")}
    merger = {"base_model.model.model.visual.merger.modules_to_save.weight": torch.zeros(16)}
    save_file({**load_file(path), **factors, **merger}, path)
    settings = json.loads((own / "adapter_config.json").read_text())
    (own / "adapter_config.json").write_text(json.dumps({**settings, "modules_to_save": ["merger"]}))
    before, after = (Checkpoint(folder).parts["vision tower"] for folder in (folders / "qwen3_vl", own))
    assert (after.tensors - before.tensors, after.parameters - before.parameters) == (3, 80)
    save_file({**factors, **merger}, path)
    with pytest.raises(CheckpointError, match="no tensors of the text model"):
        Checkpoint(own)


def test_a_config_of_text_needs_no_vision_settings(folders: Path, tmp_path: Path) -> None:
    folder = copied(folders / "qwen3_vl", tmp_path / "text", vision_config={"model_type": "unheard of"})
    require_plain_config(folder / "config.json")
    assert read_config(folder).model_type == "qwen3"
