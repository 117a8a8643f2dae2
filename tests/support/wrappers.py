"""Tiny random wrappers of a text model, saved by transformers' own classes."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from support.models import SMALL, tokenizer

_TEXT = {**SMALL, "head_dim": 8}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
_QWEN_VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
}  # fmt: skip
_VISION = {
    "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "head_dim": 8,
    "image_size": 16, "patch_size": 4,
}  # fmt: skip
WRAPPERS: dict[str, dict[str, Any]] = {
    "gemma3": {"text_config": _TEXT, "vision_config": {**_VISION, "model_type": "siglip_vision_model"}},
    "gemma4": {
        "text_config": {**_TEXT, "num_hidden_layers": 6, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0},
        "vision_config": _VISION,
        "audio_config": None,
    },
    "mistral3": {
        "text_config": {**_TEXT, "model_type": "mistral"},
        "vision_config": {**_VISION, "model_type": "pixtral"},
    },
    "qwen2_5_vl": {
        "text_config": {**_TEXT, "rope_parameters": _MROPE},
        "vision_config": {**_QWEN_VISION, "fullatt_block_indexes": [0]},
    },
    "qwen2_vl": {
        "text_config": {**_TEXT, "rope_parameters": _MROPE},
        "vision_config": {
            "depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4,
        },
    },
    "qwen3_5": {
        "text_config": {
            **_TEXT, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        },
        "vision_config": {**_QWEN_VISION, "num_position_embeddings": 16},
    },
    "qwen3_vl": {
        "text_config": {**_TEXT, "rope_parameters": {**_MROPE, "mrope_interleaved": True}},
        "vision_config": {**_QWEN_VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    },
}  # fmt: skip
"""Model_type of a wrapper -> settings."""


def wrapper(folder: Path, kind: str, seed: int = 1, text: Any = (), **settings: Any) -> PreTrainedModel:
    """A wrapper in evaluation mode, saved in a folder; `settings` are its own, those of its text model are in `text`.

    Those of other seeds differ little, as models that were trained from one.
    """
    torch.manual_seed(0)
    parts = {**WRAPPERS[kind], "text_config": {**WRAPPERS[kind]["text_config"], **dict(text)}}
    config = AutoConfig.for_model(kind, **parts, **{"tie_word_embeddings": False, **settings})
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.02)
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.005)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    model.eval()
    return model
