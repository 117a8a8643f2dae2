"""Checkpoints as people have them: what changes no weight is taken, everything else is refused with the remedy."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from moerge.errors import MoergeError
from moerge.merging.local_lineages import given, local_body, local_version
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, check_expert
from moerge.models.reader import Checkpoint
from moerge.models.stored import INDEX, SINGLE
from moerge.versions.folder import write_folder
from moerge.versions.version_plan import plan_version
from moerge_proto.recipes import SolveOptions
from support.models import expert, tokenizer

Tensors = dict[str, Tensor]
UP, EMBEDDING, HEAD = "model.layers.0.mlp.up_proj", "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("experts") / "good", seed=1)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("experts") / "tied", seed=1, tie_word_embeddings=True)


def changed(
    good: Path, folder: Path, change: Callable[[Tensors], Tensors], config: Mapping[str, object] | None = None
) -> Path:
    shutil.copytree(good, folder)
    save_file(change(load_file(folder / SINGLE)), folder / SINGLE, metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **(config or {})}))
    return folder


def sharded(folder: Path) -> Path:
    tensors = load_file(folder / SINGLE)
    where = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, folder / file)
    (folder / SINGLE).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    return folder


BUFFERS: Tensors = {
    "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    "model.rotary_emb.inv_freq": torch.ones(4),
    "model.layers.0.self_attn.rotary_emb.cos_cached": torch.ones(4, 4),
    "model.layers.0.self_attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool),
    "model.layers.0.self_attn.masked_bias": torch.tensor(-1e4),
    "model.position_ids": torch.arange(8),
}


def mixed(tensors: Tensors) -> Tensors:
    kinds = {"q_proj": torch.bfloat16, "mlp": torch.float16}
    return {
        name: tensor.to(next((kind for part, kind in kinds.items() if part in name), torch.float32))
        for name, tensor in tensors.items()
    }


def published(experts: list[Path], folder: Path) -> tuple[Tensors, Path]:
    """All tensors of a version of these experts, and its folder."""
    own = [DenseExpert(f"d{slot}", item) for slot, item in enumerate(experts)]
    routers = [torch.randn(2, 32, generator=torch.Generator().manual_seed(layer)) for layer in range(3)]
    lineage, inputs = local_version(
        own, local_body(own, folder / "body", "average"), [], SolveOptions(), head="average"
    )
    out = write_folder(plan_version(lineage, inputs, given(routers)).files, folder / "version")
    return {name: Checkpoint(out).tensor(name) for name in Checkpoint(out).specs}, out


def test_shards_dtypes_and_buffers_keep_published_tensors(tmp_path: Path, good: Path) -> None:
    other = expert(tmp_path / "other", seed=2)
    plain = changed(good, tmp_path / "plain", mixed)
    result = sharded(changed(good, tmp_path / "found", lambda tensors: {**mixed(tensors), **BUFFERS}))
    check_expert(DenseFiles(result), DenseFiles(good), "expert of 'law'")
    (one, _), (two, folder) = (published([item, other], tmp_path / item.name / "out") for item in (plain, result))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) and one[name].dtype == two[name].dtype for name in one)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    stock, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.isfinite(stock(torch.arange(9)[None]).logits).all()


@pytest.mark.parametrize("factor", [None, 1.0, 2.0])
def test_a_tied_head_counts_as_in_stock_transformers(tmp_path: Path, tied: Path, factor: float | None) -> None:
    """Absent, or equal to the embedding, it is tied. A different one is used, whatever the config says."""

    def with_head(tensors: Tensors) -> Tensors:
        return tensors if factor is None else {**tensors, HEAD: factor * tensors[EMBEDDING]}

    folder, ids = changed(tied, tmp_path / "found", with_head), torch.arange(20)[None]
    check_expert(DenseFiles(folder), DenseFiles(tied), "expert of 'law'")
    stock = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        assert torch.equal(expert_model(DenseFiles(folder))(ids).logits, stock(ids).logits)
    _, version = published([folder, tied], tmp_path / "out")
    assert Checkpoint(version).specs[HEAD].shape == Checkpoint(tied).specs[EMBEDDING].shape


def refusal(folder: Path) -> MoergeError:
    with pytest.raises(MoergeError) as caught:
        check_expert(DenseFiles(folder), None, "expert of 'law'")
    assert caught.value.todo
    return caught.value


def test_missing_untied_head_is_refused_with_the_setting(tmp_path: Path, good: Path) -> None:
    """Stock transformers would draw a random one."""
    result = changed(good, tmp_path / "found", lambda tensors: {n: t for n, t in tensors.items() if n != HEAD})
    error = refusal(result)
    assert HEAD in error.where
    assert "tie_word_embeddings" in error.todo


def test_the_command_that_converts_pickled_weights_works(
    tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pickled"
    shutil.copytree(good, folder)
    (folder / SINGLE).unlink()
    torch.save(load_file(good / SINGLE), folder / "pytorch_model.bin")
    error = refusal(folder)
    assert "pytorch_model.bin" in error.what
    match = re.search(r'python -c "(.*)"$', error.todo)
    assert match is not None
    monkeypatch.chdir(tmp_path)
    exec(match[1], {})  # noqa: S102  # moerge's own remedy
    check_expert(DenseFiles(tmp_path / "NEW_FOLDER"), DenseFiles(good), "converted")
    assert all(
        torch.equal(Checkpoint(good).tensor(n), Checkpoint(tmp_path / "NEW_FOLDER").tensor(n))
        for n in Checkpoint(good).specs
    )


def test_incomplete_download_is_refused_with_the_missing_file(tmp_path: Path, good: Path) -> None:
    shards = sharded(Path(shutil.copytree(good, tmp_path / "shards")))
    (shards / "model-1.safetensors").unlink()
    assert "add model-1.safetensors" in refusal(shards).todo
    (shards / INDEX).unlink()
    assert refusal(shards).what == f"model-0.safetensors without {INDEX}"
    clone = Path(shutil.copytree(good, tmp_path / "clone"))
    (clone / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n")
    assert "git lfs pull" in refusal(clone).todo
    (clone / SINGLE).write_bytes((good / SINGLE).read_bytes()[:-1])
    assert "incomplete" in refusal(clone).todo


@pytest.mark.parametrize("name", ["model.gguf", "consolidated.00.pth"])
def test_weights_of_another_format_are_refused_by_file(tmp_path: Path, good: Path, name: str) -> None:
    folder = tmp_path / "other"
    shutil.copytree(good, folder)
    (folder / SINGLE).rename(folder / name)
    assert name in refusal(folder).what


@pytest.mark.parametrize("method", ["fp8", "gptq", "awq", "bitsandbytes", "compressed-tensors"])
def test_quantised_weights_are_refused_by_the_config(tmp_path: Path, good: Path, method: str) -> None:
    settings = {"quantization_config": {"quant_method": method, "bits": 4, "load_in_4bit": True}}
    error = refusal(changed(good, tmp_path / "found", lambda tensors: tensors, settings))
    assert method in error.what
    assert error.where.endswith("config.json: quantization_config")
    assert "before quantisation" in error.todo


QUANTISED: dict[str, Tensors] = {
    "fp8": {f"{UP}.weight": torch.ones(48, 32).to(torch.float8_e4m3fn), f"{UP}.weight_scale_inv": torch.ones(1)},
    "GPTQ or AWQ": {f"{UP}.qweight": torch.ones(4, 48, dtype=torch.int32), f"{UP}.scales": torch.ones(1, 48).half()},
    "bitsandbytes": {
        f"{UP}.weight": torch.ones(768, 1, dtype=torch.uint8),
        f"{UP}.weight.absmax": torch.ones(24, dtype=torch.uint8),
    },
}


def test_float64_is_refused_with_advice_to_use_float32(tmp_path: Path, good: Path) -> None:
    result = changed(good, tmp_path / "found", lambda tensors: {**tensors, f"{UP}.weight": torch.ones(48, 32).double()})
    error = refusal(result)
    assert "dtype F64" in error.what
    assert "float32" in error.todo


@pytest.mark.parametrize("method", QUANTISED)
def test_quantised_weights_without_setting_name_the_tensor(tmp_path: Path, good: Path, method: str) -> None:
    def quantise(tensors: Tensors) -> Tensors:
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(UP)} | QUANTISED[method]

    error = refusal(changed(good, tmp_path / "found", quantise))
    assert f"quantised by {method};" in error.what
    assert f"{SINGLE}: {UP}" in error.where
    assert "before quantisation" in error.todo


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "qwen3_moe", "granitemoe", "olmoe", "flex_olmo", "gpt_oss"])
def test_a_mixture_of_experts_is_refused_as_an_expert(tmp_path: Path, kind: str) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    error = refusal(tmp_path)
    assert error.where == "config.json: model_type"
    assert kind in error.what
    assert "must be dense" in error.what
    assert "dense model" in error.todo
