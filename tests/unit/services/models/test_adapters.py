"""An expert may be an adapter with its base: what is read is the merged model, in float64 and rounded once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge.documents.corpus import Corpus
from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.merging.arguments import sources
from moerge.merging.merge import MergeSettings, Source, merge
from moerge.merging.recipe import Recipe
from moerge.models.config import read_config
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, check_expert, dense_folder, expert_files, remove_dense
from moerge.models.reader import Checkpoint
from moerge.models.sources import BASE, checkpoint_folder
from moerge.scoring.perplexity import load
from moerge_lab.mixtures.heterogeneous import matching_rows
from moerge_lab.training.inputs import end_of_text
from support.models import expert, texts, tokenizer

peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`"),
]
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("base") / "base", seed=1, family="qwen2", num_hidden_layers=2)


def made(base: Path, folder: Path, tokens: int = 0, **settings: Any) -> tuple[Path, dict[str, Tensor]]:
    """An adapter saved by PEFT, and the tensors of the model that PEFT merges."""
    merged: dict[str, Tensor] = trained(base, folder, tokens, **settings).merge_and_unload().state_dict()
    return folder, merged


def trained(base: Path, folder: Path, tokens: int = 0, **settings: Any) -> Any:
    """PEFT's model with random adapters, saved in a folder."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if tokens:
        model.resize_token_embeddings(tokens, mean_resizing=False)
    config = peft.LoraConfig(**{"r": 2, "lora_alpha": 5, "init_lora_weights": False, **settings})
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ("lora" not in name and parameter.requires_grad) or "magnitude" in name:
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    adapted.save_pretrained(folder)
    return adapted


LINEAR = ["q_proj", "v_proj", "down_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "lora": {"target_modules": LINEAR},
    "rslora": {"target_modules": LINEAR, "use_rslora": True, "r": 3},
    "dora": {"target_modules": [*LINEAR, "lm_head"], "use_dora": True},
    "patterns": {
        "target_modules": LINEAR,
        "rank_pattern": {"down_proj": 4},
        "alpha_pattern": {r"^model\.layers\.1\.self_attn\.q_proj$": 9, "layers.0.self_attn.v_proj": 7},
    },
    "biases": {"target_modules": LINEAR, "bias": "lora_only"},
    "all biases": {"target_modules": LINEAR, "bias": "all"},
    "saved whole": {"target_modules": LINEAR, "modules_to_save": ["embed_tokens", "lm_head", "norm"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "saved blocks": {"target_modules": ["o_proj"], "modules_to_save": ["mlp"]},
    "more tokens": {"target_modules": LINEAR, "tokens": 303},
    "more tokens, saved whole": {
        "target_modules": LINEAR,
        "modules_to_save": ["embed_tokens", "lm_head"],
        "tokens": 303,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_the_model_that_peft_merges(base: Path, tmp_path: Path, kind: str) -> None:
    folder, merged = made(base, tmp_path / "adapter", **KINDS[kind])
    check_expert(DenseFiles(folder), None, "the adapter")
    checkpoint = Checkpoint(folder)
    changed = 0
    for name, spec in checkpoint.specs.items():
        result = checkpoint.tensor(name)
        assert (result.dtype, tuple(result.shape)) == (spec.dtype, spec.shape)
        torch.testing.assert_close(result, merged[name])
        changed += spec not in Checkpoint(base).specs.values() or not torch.equal(result, Checkpoint(base).tensor(name))
    assert checkpoint.specs.keys() == merged.keys()
    assert changed
    assert read_config(folder).vocab_size == merged["lm_head.weight"].shape[0]


def in_bfloat16(folder: Path) -> Path:
    """The folder, with a model of bfloat16."""
    path = folder / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    return folder


def merged_beforehand(base: Path, adapter: Path, out: Path) -> Path:
    """What an owner would do before: the base with W + alpha / r B A, with DoRA's rows, in float64."""
    shutil.copytree(base, out)
    tensors, parts = load_file(base / "model.safetensors"), load_file(adapter / WEIGHTS)
    for name in tensors:
        module = "base_model.model." + name.removesuffix(".weight")
        if f"{module}.lora_A.weight" in parts:
            down, up = (parts[f"{module}.lora_{part}.weight"].double() for part in "AB")
            weight = tensors[name].double() + 5 / 2 * (up @ down)
            if f"{module}.lora_magnitude_vector" in parts:
                weight *= (parts[f"{module}.lora_magnitude_vector"].double() / weight.norm(dim=1))[:, None]
            tensors[name] = weight.to(tensors[name].dtype)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


def test_version_of_adapters_equals_that_of_merged_models(tmp_path: Path) -> None:
    """Byte for byte, in every file but the two that name the experts by their digests."""
    small: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    base = in_bfloat16(expert(tmp_path / "base", seed=1, **small))
    kinds: dict[str, dict[str, Any]] = {
        "law": {"target_modules": LINEAR},
        "art": {"target_modules": [*LINEAR, "o_proj"], "use_dora": True},
    }
    experts = {
        "adapters": {name: made(base, tmp_path / name, **kind)[0] for name, kind in kinds.items()},
        "beforehand": {name: merged_beforehand(base, tmp_path / name, tmp_path / f"{name}-merged") for name in kinds},
    }
    for run, folders in experts.items():
        sources = [
            Source(
                DenseExpert(name, folder), Corpus([str(texts(tmp_path / f"{name}.jsonl", 1, 60))], DenseFiles(folder))
            )
            for name, folder in folders.items()
        ]
        merge(sources, tmp_path / run, MergeSettings(scored_tokens=200))
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / run).iterdir()} for run in experts)
    assert {name for name in one if one[name] != two[name]} <= {"README.md", "moerge.json"}
    assert one.keys() == two.keys()
    assert sorted(path.name for path in (tmp_path / "law").iterdir()) == sorted(["README.md", CONFIG, WEIGHTS])


def test_an_adapter_is_the_expert_that_its_dense_files_are(base: Path, tmp_path: Path) -> None:
    """The digest is that of the files that an upload needs. It covers base and adapter, and a tokenizer of its own."""
    folder, _ = made(base, tmp_path / "adapter", target_modules=LINEAR, tokens=303)
    tokenizer(["one", "two"]).save_pretrained(folder)
    digest = DenseExpert("law", folder).digest
    dense = dense_folder(DenseFiles(folder), tmp_path / "dense")
    assert DenseExpert("law", dense).digest == digest
    assert dense_folder(DenseFiles(dense), tmp_path / "other") == dense
    check_expert(DenseFiles(dense), DenseFiles(folder), "the dense files")
    ids = torch.arange(20)[None]
    assert torch.equal(load(folder)(ids).logits, load(dense)(ids).logits)
    with pytest.raises(MoergeError, match="the folder is an adapter"):
        expert_files(DenseFiles(folder))
    save_file({**load_file(folder / WEIGHTS), KEY: load_file(folder / WEIGHTS)[KEY] + 1}, folder / WEIGHTS)
    assert DenseExpert("law", folder).digest != digest


def test_only_merged_models_are_removed_from_their_folder(plain: Path, tmp_path: Path) -> None:
    """An owner's home may have an `expert/` of its own, even with the expert."""
    into = Path(shutil.copytree(plain, tmp_path / "expert"))
    (into / "notes").mkdir()
    before = {path.name for path in into.iterdir()}
    first = dense_folder(DenseFiles(into), into)
    save_file({**load_file(into / WEIGHTS), KEY: load_file(into / WEIGHTS)[KEY] + 1}, into / WEIGHTS)
    assert {path.name for path in into.iterdir()} == {*before, first.name}
    second = dense_folder(DenseFiles(into), into)
    assert {path.name for path in into.iterdir()} == {*before, second.name}
    assert dense_folder(DenseFiles(second), into) == second
    assert second.is_dir()
    remove_dense(into)
    assert {path.name for path in into.iterdir()} == before


def test_adapter_without_tokenizer_uses_that_of_its_base(plain: Path, base: Path) -> None:
    assert end_of_text(DenseFiles(plain)) == end_of_text(DenseFiles(base)) == 257
    assert matching_rows([base, plain], [300, 300])[1].equal(torch.arange(300))


KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"


def test_a_base_may_be_a_hub_id_or_beside_the_adapter_or_given(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, merged = made(base, tmp_path / "adapter", target_modules=LINEAR)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    revision, name = "b" * 40, "lab/base-of-adapters"
    shutil.copytree(base, tmp_path / "hub" / "models--lab--base-of-adapters" / "snapshots" / revision)
    shutil.copytree(base, folder / "base")

    def require_merged(place: Path) -> None:
        result = Checkpoint(place).tensor("model.layers.1.mlp.down_proj.weight")
        torch.testing.assert_close(result, merged["model.layers.1.mlp.down_proj.weight"])

    for place, given in ((name, revision), ("base", None)):
        changed(folder, CONFIG, base_model_name_or_path=place, revision=given)
        require_merged(folder)
    changed(folder, CONFIG, base_model_name_or_path="/lost")
    for _ in range(2):
        require_merged(checkpoint_folder(f"{name}@{revision}+{folder}"))
    with pytest.raises(MoergeError, match="not an adapter"):
        checkpoint_folder(f"{folder}+{base}")


@pytest.mark.parametrize(
    ("name", "method", "whole"),
    [
        ("unsloth/Llama-3.2-1B-bnb-4bit", "bitsandbytes", "unsloth/Llama-3.2-1B"),
        ("unsloth/qwen3-4b-unsloth-bnb-4bit", "bitsandbytes", "unsloth/qwen3-4b"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "GPTQ", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "AWQ", "Qwen/Qwen2.5-7B-Instruct"),
    ],
)
def test_a_quantised_base_of_the_hub_is_refused_by_its_name(
    plain: Path, tmp_path: Path, name: str, method: str, whole: str
) -> None:
    folder = shutil.copytree(plain, tmp_path / "adapter")
    changed(folder, CONFIG, base_model_name_or_path=name, revision="unsloth")
    with pytest.raises(IncompatibleExpertError) as caught:
        read_config(folder)
    error = caught.value
    assert error.what == f"the adapter's base {name!r} is quantised by {method}; expected a base in full precision"
    assert error.where == f"{folder / CONFIG}: {BASE}"
    assert error.todo == (
        f"name that before the adapter, as BASE+ADAPTER, both folders or hub ids; the hub may have it as {whole}"
    )


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_a_base_whose_config_is_quantised_is_refused_without_its_weights(
    plain: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    revision, name = "c" * 40, "lab/four-bits"
    cached = tmp_path / "hub" / "models--lab--four-bits" / "snapshots" / revision
    quantised = cached if place == "hub" else tmp_path / "four-bits"
    quantised.mkdir(parents=True)
    shutil.copy(base / "config.json", quantised)
    changed(quantised, "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    folder = shutil.copytree(plain, tmp_path / "adapter")
    named = {"hub": (name, revision), "folder": (str(quantised), None)}[place]
    changed(folder, CONFIG, base_model_name_or_path=named[0], revision=named[1])
    with pytest.raises(
        IncompatibleExpertError, match="is quantised by gptq; expected a base in full precision"
    ) as caught:
        read_config(folder)
    assert caught.value.todo == "name that before the adapter, as BASE+ADAPTER, both folders or hub ids"


def test_an_adapter_on_a_quantised_base_is_merged_with_the_given_one(
    plain: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, said = shutil.copytree(plain, tmp_path / "adapter"), list[str]()
    changed(folder, CONFIG, base_model_name_or_path="unsloth/base-bnb-4bit")
    texts(tmp_path / "law.jsonl", 1, 3)
    expected = DenseFiles(plain).checkpoint
    for place, whole in ((f"{base}+{folder}", None), (str(folder), DenseExpert("base", base))):
        recipe = Recipe(expert={"law": place}, text={"law": [str(tmp_path / "law.jsonl")]})
        [source] = sources(recipe, said.append, whole)
        found = source.expert.checkpoint
        assert all(found.tensor(name).equal(expected.tensor(name)) for name in expected.specs)
    problem = "law: the adapter's base unsloth/base-bnb-4bit is quantised by bitsandbytes"
    assert said == [f"{problem}; merged with {base} instead"]


def changed(folder: Path, name: str, **fields: object) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def renamed(folder: Path, old: str, new: str | None) -> None:
    """Renames a tensor of the adapter, or removes it."""
    tensors = load_file(folder / WEIGHTS)
    tensor = tensors.pop(old)
    save_file({**tensors, **({new: tensor} if new else {})}, folder / WEIGHTS)


def setting(**fields: object) -> Callable[[Path], object]:
    return lambda folder: changed(folder, CONFIG, **fields)


def key(new: str | None) -> Callable[[Path], object]:
    return lambda folder: renamed(folder, KEY, new)


REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "another kind": (setting(peft_type="IA3"), "'IA3' is not supported, only LORA", "peft_type"),
    "another task": (setting(task_type="SEQ_CLS"), "'SEQ_CLS' is not supported", "task_type"),
    "a changed base": (setting(init_lora_weights="pissa"), "'pissa' is not supported", "init_lora_weights"),
    "an unknown setting": (setting(use_newest=True), "True is not supported", "use_newest"),
    "no rank": (setting(r=0), "expected a positive number for .*q_proj, at most .*, found 0", "r"),
    "another rank": (setting(r=4), r"expected shape \[4, 32\], found \[2, 32\]", "lora_A.weight"),
    "no base": (setting(base_model_name_or_path=None), "the adapter names no base model", BASE),
    "a lost base": (setting(base_model_name_or_path="/lost"), "no base model '/lost': no such folder", BASE),
    "an adapter as base": (lambda folder: changed(folder, CONFIG, **{BASE: str(folder)}), "is an adapter itself", BASE),
    "a lost file": (lambda folder: (folder / WEIGHTS).unlink(), "not found", WEIGHTS),
    "an unknown module": (key(KEY.replace("q_proj", "x_proj")), "has no tensor .*x_proj", "x_proj.lora_B.weight"),
    "another prefix": (key("q_proj"), "starts with base_model.model.", "q_proj"),
    "half of LoRA": (key(None), "lora_B is missing", "q_proj.lora_A.weight"),
    "no magnitudes": (setting(use_dora=True), "use_dora is true, but .* lacks", "lora_A.weight"),
    "a lost module": (setting(modules_to_save=["norm"]), "no tensor of it", WEIGHTS),
    "a whole model": (lambda folder: (folder / "model.safetensors").touch(), "an adapter and a whole model", "adapter"),
}


@pytest.fixture(scope="module")
def plain(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(base, tmp_path_factory.mktemp("plain") / "adapter", target_modules=["q_proj"])[0]


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_unsuitable_is_refused_by_name(plain: Path, tmp_path: Path, fault: str) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "adapter"))
    spoil, what, where = REFUSED[fault]
    spoil(folder)
    with pytest.raises(MoergeError, match=what) as caught:
        check_expert(DenseFiles(folder), None, "the adapter")
    assert caught.value.where.endswith(where)
    assert caught.value.todo


def test_a_copied_tensor_is_the_merged_one(plain: Path) -> None:
    merged = Checkpoint(plain)
    for name, spec in merged.specs.items():
        copied = torch.empty(spec.shape, dtype=spec.dtype)
        merged.copy(name, copied)
        assert copied.equal(merged.tensor(name))


def test_a_base_of_another_architecture_is_refused(plain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "adapter"))
    wide = expert(tmp_path / "wide", seed=1, family="qwen2", hidden_size=48, num_hidden_layers=2)
    changed(folder, CONFIG, base_model_name_or_path=str(wide))
    with pytest.raises(MoergeError, match=r"expected shape \[2, 48\], found \[2, 32\]"):
        Checkpoint(folder)


TIED: dict[str, dict[str, Any]] = {
    "a whole embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "both whole": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "a changed head": {"target_modules": ["q_proj", "lm_head"]},
    "a changed embedding": {"target_modules": ["q_proj", "embed_tokens"]},
}


@pytest.mark.parametrize("kind", TIED)
def test_a_tied_head_is_the_one_that_was_trained(tmp_path: Path, kind: str) -> None:
    """PEFT itself merges LoRA of a tied embedding or head into both."""
    base = expert(tmp_path / "base", seed=1, tie_word_embeddings=True, num_hidden_layers=1)
    adapted = trained(base, tmp_path / "adapter", **TIED[kind])
    check_expert(DenseFiles(tmp_path / "adapter"), None, "the adapter")
    ids = torch.arange(20)[None]
    torch.testing.assert_close(load(tmp_path / "adapter")(ids).logits, adapted.eval()(ids).logits)
    assert read_config(tmp_path / "adapter").tie_word_embeddings is False
