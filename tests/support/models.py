"""Tiny random dense models, and text for them."""

import json
import shutil
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from moerge.models.dense import mlp_names
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.families.family import FINAL_NORM, HEAD
from moerge.models.families.registry import FAMILIES

VOCAB, SEED = 300, 99
HEAD_NAMES = FINAL_NORM, HEAD
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}
_GEMMA4: dict[str, Any] = {
    "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0, "sliding_window": 8, "final_logit_softcapping": 2.0, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA4_SMALL: dict[str, Any] = {
    "num_hidden_layers": 4, "attention_k_eq_v": False, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
"""Settings of Gemma 4's small models, E2B and E4B: inputs of every layer, shared keys and values, two widths."""
SMALL_OF: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 16, "tie_word_embeddings": False},
    "gemma3_text": {"head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 8, "tie_word_embeddings": False},
    **{family: _GEMMA4 for family in ("gemma4_text", "gemma4_unified_text")},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.75, "logits_scaling": 2.0},
    **{family: {"head_dim": 8} for family in ("glm", "helium", "ministral3")},
    "cwm": {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "smollm3": {"no_rope_layer_interval": 2, "tie_word_embeddings": False},
    "qwen3_5_text": {
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
    },
    "granitemoehybrid": {
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
        "position_embedding_type": "rope",
        "mamba_n_heads": 8,
        "mamba_d_state": 8,
        "mamba_chunk_size": 32,
        "mamba_conv_bias": False,  # transformers starts it at 0, which is no seed's
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.75,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.35,
    },
    "lfm2": {"block_multiple_of": 8, "tie_word_embeddings": False},
    "nemotron_h": {
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 32,
        "layers_block_type": [
            *("linear_attention", "mlp", "linear_attention", "full_attention", "mlp"),
            *("full_attention", "linear_attention", "mlp", "linear_attention"),
        ],
    },
}
"""Settings of families whose defaults are too large, or have no effect."""
TYPES = {
    "qwen3_5_text": ("linear_attention", "full_attention"),
    "lfm2": ("conv", "full_attention"),
    "gemma3_text": ("sliding_attention", "full_attention", "full_attention"),
    "granitemoehybrid": ("linear_attention", "full_attention"),
}
"""The layers' types, in turn."""


DISTINCT = sorted({(family.host.model_type, *family.mlp): name for name, family in FAMILIES.items()}.values())
"""One family for each host and form of MLPs, for tests of what sees nothing else of a family."""


def small_settings(family: str, **settings: object) -> dict[str, Any]:
    """The settings of a tiny model of a family."""
    result = deepcopy({**SMALL, **SMALL_OF.get(family, {}), **settings})
    if (types := TYPES.get(family)) and "layer_types" not in result:
        result["layer_types"] = [types[layer % len(types)] for layer in range(result["num_hidden_layers"])]
    return result


def allowed(family: str) -> list[int]:
    """Numbers of experts per token, 1 and 2, that the family's host allows."""
    return [k for k in (1, 2) if not FAMILIES[family].host.refusal(k)]


def tokenizer(further: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: one token per byte, three special ones, and `further` ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    result = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    result.add_tokens(list(further))
    return result


def expert(
    folder: Path, seed: int, family: str = "llama", *, tokens: Any = (), apart: Any = 0.005, **settings: object
) -> Path:
    """A random dense expert of `family`, saved in a folder. Gains are not 1, so that tests cover them.

    `apart` is the standard deviation of its differences from the common seed model, outside the MLPs.

    `tokens`, a sequence of strings, are further tokens of its tokenizer.
    """
    torch.manual_seed(0)  # the common seed model; the expert strays from it
    config = AutoConfig.for_model(family, **small_settings(family, **settings))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator, spread = torch.Generator().manual_seed(seed), min(80 * apart, 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            alpha = 0.02 if "mlp." in name or ".feed_forward." in name else apart
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=alpha)
        for module in model.modules():
            kind = type(module).__name__
            if "RMSNorm" in kind and hasattr(module, "weight"):
                centre = 1 if FAMILIES[family].zero_centred and kind.endswith("RMSNorm") else 0
                factor = (torch.rand(module.weight.shape, generator=generator) - 0.5) * spread + 1
                module.weight.add_(centre).mul_(factor).sub_(centre)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(0.75)  # training doesn't change it
    model.save_pretrained(folder)
    tokenizer(tokens).save_pretrained(folder)
    return folder


def seed_model(folder: Path, **settings: Any) -> Path:
    """The model that random experts of these settings could have been trained from."""
    return expert(folder, SEED, **settings)


def adapter(folder: Path, base: Path, seed: int, *modules: str) -> Path:
    """A random LoRA adapter of a base, as PEFT saves it, of rank 2; default: queries and down projections."""
    modules = modules or ("q_proj", "down_proj")
    generator, tensors = torch.Generator().manual_seed(seed), dict[str, torch.Tensor]()
    for name, tensor in load_file(base / "model.safetensors").items():
        if name.endswith(tuple(f"{module}.weight" for module in modules)):
            module = f"base_model.model.{name.removesuffix('.weight')}"
            for part, shape in (("A", (2, tensor.shape[1])), ("B", (tensor.shape[0], 2))):
                tensors[f"{module}.lora_{part}.weight"] = torch.randn(shape, generator=generator) / 20
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(base)}
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def texts(path: Path, seed: int, documents: int) -> Path:
    """Random documents of 10 to 90 lower-case letters as JSON Lines; the seed chooses the letters."""
    generator = torch.Generator().manual_seed(seed)
    first = 97 + seed % 13
    with path.open("w", encoding="utf-8") as out:
        for _ in range(documents):
            length = int(torch.randint(10, 90, (1,), generator=generator))
            letters = torch.randint(first, first + 13, (length,), generator=generator)
            out.write(json.dumps({"text": "".join(map(chr, letters))}) + "\n")
    return path


def on_body(folder: Path, body: Path) -> tuple[DenseFiles, DenseBody]:
    """An expert, and a body's file for it."""
    files = DenseFiles(folder)
    return files, DenseBody(body, files.config)


def keeping_expert(folder: Path, seed: Path, number: int, **changed: float) -> Path:
    """A copy of a seed whose MLPs alone were changed, by random numbers; `changed`: further tensors, and what is added.

    A name stands for all tensors that end with it, with __ for a dot.
    """
    shutil.copytree(seed, folder)
    generator = torch.Generator().manual_seed(number)
    mlps = set(mlp_names(DenseFiles(seed)))
    tensors = load_file(seed / "model.safetensors")
    for name, tensor in tensors.items():
        if name in mlps:
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=0.02)
        for end, more in changed.items():
            if name.endswith(end.replace("__", ".")):
                tensor.view(-1)[0] += more
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder
