"""The published config says, field by field, what the dense one says; and older readers find it under older names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from support.models import expert
from support.versions import published

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CARRIED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
    "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip


def config_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return content


@pytest.mark.parametrize(
    ("family", "settings"),
    [("llama", {"rope_parameters": LLAMA3}), ("llama", {"head_dim": 16}), ("mistral", {"sliding_window": 8})],
)
def test_every_field_that_computes_is_carried_over(tmp_path: Path, family: str, settings: dict[str, object]) -> None:
    other = {"hidden_act": "gelu", "rms_norm_eps": 1e-3, "max_position_embeddings": 128, "eos_token_id": [257, 2]}
    dense = expert(tmp_path / "dense", seed=1, family=family, **other, **settings)
    version = published([dense, dense, dense], tmp_path, top_k=2)
    before, after = AutoConfig.from_pretrained(dense), AutoConfig.from_pretrained(version)
    for name in (*CARRIED, "sliding_window"):
        assert getattr(after, name) == getattr(before, name, None), name
    assert (after.num_local_experts, after.num_experts_per_tok) == (3, 2)
    assert (after.architectures, after.tie_word_embeddings) == (["MixtralForCausalLM"], False)
    assert config_of(version)["head_dim"] == before.head_dim


@pytest.mark.parametrize(
    ("rope", "theta", "scaling"),
    [
        ({"rope_type": "default", "rope_theta": 5e5}, 5e5, None),
        (LLAMA3, 5e5, {name: value for name, value in LLAMA3.items() if name != "rope_theta"}),
    ],
)
def test_rope_stands_under_its_older_names_too(
    tmp_path: Path, rope: dict[str, object], theta: float, scaling: dict[str, object] | None
) -> None:
    config = config_of(published([expert(tmp_path / "dense", seed=1, rope_parameters=rope)], tmp_path))
    assert config["rope_parameters"] == rope
    assert (config["rope_theta"], config["rope_scaling"]) == (theta, scaling)


def test_bfloat16_experts_give_a_bfloat16_version(tmp_path: Path) -> None:
    dense = expert(tmp_path / "dense", seed=1)
    path = dense / "model.safetensors"
    save_file({name: t.bfloat16() for name, t in load_file(path).items()}, path, metadata={"format": "pt"})
    version = published([dense, dense], tmp_path)
    config = config_of(version)
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    for file in version.glob("*.safetensors"):
        assert {tensor.dtype for tensor in load_file(file).values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(version).dtype == torch.bfloat16


def test_transformers_reads_dtype_decoding_and_chat_template(tmp_path: Path) -> None:
    """`from_pretrained(folder)`, `generate(ids)` and `apply_chat_template(messages)`, without further arguments."""
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    for seed, folder in enumerate(experts, 1):
        (folder / "chat_template.jinja").write_text(
            f"{seed}{{% for each in messages %}}<{{{{ each.content }}}}>{{% endfor %}}"
        )
        decoding = {"eos_token_id": 299, "max_new_tokens": 3, "min_new_tokens": 3, "num_beams": 2}
        (folder / "generation_config.json").write_text(json.dumps(decoding))
    version = published(experts, tmp_path)
    model: Any
    tokenizer: Any
    model, tokenizer = AutoModelForCausalLM.from_pretrained(version), AutoTokenizer.from_pretrained(version)
    assert model.dtype == torch.float32
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], return_tensors="pt")["input_ids"]
    assert tokenizer.decode(ids[0]) == "1<hi>"
    made = model.generate(ids)
    assert made.shape[1] in range(ids.shape[1] + 1, ids.shape[1] + 4)
    assert (model.generation_config.max_new_tokens, model.generation_config.num_beams) == (3, None)
    card = (version / "README.md").read_text()
    assert "The chat template is that of the expert of d0, SHA-256" in card
    assert "Experts with another one, or none: d1." in card


def test_tokenizer_and_generation_config_are_of_first_expert(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    (experts[0] / "generation_config.json").write_text('{"temperature": 0.5}')
    (experts[1] / "generation_config.json").unlink()
    first, turned = (published(order, tmp_path / name) for order, name in ((experts, "a"), (experts[::-1], "b")))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (first / name).read_bytes() == (experts[0] / name).read_bytes()
    expected = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258}
    assert json.loads((turned / "generation_config.json").read_text()) == expected
