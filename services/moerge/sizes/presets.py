"""Configs of experts of four sizes: those of Llama 3, in bfloat16."""

from transformers import LlamaConfig


def preset(name: str) -> LlamaConfig:
    """The config of a size."""
    return {
        "1b": _llama(2048, 16, 8192, heads=32, tied=True),
        "8b": _llama(4096, 32, 14336, heads=32),
        "70b": _llama(8192, 80, 28672, heads=64),
        "400b": _llama(16384, 126, 53248, heads=128),
    }[name]


def _llama(hidden: int, layers: int, intermediate: int, *, heads: int, tied: bool = False) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=tied,
        dtype="bfloat16",
    )
