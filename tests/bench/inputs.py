"""The inputs: random Llama models, and statistics. Made from fixed seeds, and stored below `HOME`."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from bench import ours
from bench.registry import HOME
from support.models import tokenizer

DRAWN_TOKENS = 4096


@dataclass(frozen=True)
class Shape:
    """A Llama's sizes; a head has 64 dimensions, and the LM head is not tied."""

    hidden: int = 768
    layers: int = 12
    intermediate: int = 3072
    vocabulary: int = 32000

    def __str__(self) -> str:
        return f"H {self.hidden}, L {self.layers}, MLP {self.intermediate}, V {self.vocabulary}"

    @property
    def name(self) -> str:
        return f"h{self.hidden}-l{self.layers}-m{self.intermediate}-v{self.vocabulary}"

    @property
    def layer(self) -> int:
        """Parameters of a layer, without gains."""
        return 4 * self.hidden**2 + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """Of the model, without gains."""
        return self.layers * self.layer + 2 * self.vocabulary * self.hidden

    @property
    def bytes(self) -> int:
        """Bytes of the model in float32, without gains."""
        return 4 * self.parameters

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest tensor in float32."""
        return 4 * self.hidden * max(self.intermediate, self.vocabulary)


def cached(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` if missing; it appears whole."""
    if not folder.is_dir():
        temporary = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        make(temporary)
        temporary.replace(folder)
    return folder


def llama_config(shape: Shape) -> LlamaConfig:
    return LlamaConfig(**_sizes(shape))


def _sizes(shape: Shape) -> dict[str, Any]:
    heads = shape.hidden // 64
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": 4096,
    }


def llama(shape: Shape, seed: int, attention: str = "sdpa") -> LlamaForCausalLM:
    """A random model in float32, in evaluation mode; its norms' gains are between 0.5 and 1.5."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config(shape))
    model.set_attn_implementation(attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand(parameter.shape) + 0.5)
    model.eval()
    return model


def gains(model: LlamaForCausalLM) -> Tensor:
    """[L, H], of the norm before each MLP."""
    return torch.stack([layer.post_attention_layernorm.weight.detach() for layer in model.model.layers])


def documents(shape: Shape, batch: int, context: int) -> Tensor:
    """Random ids [B, T]."""
    return torch.randint(shape.vocabulary, (batch, context), generator=torch.Generator().manual_seed(0))


def experts(shape: Shape, count: int) -> list[Path]:
    """Checkpoint folders of random experts in float32, with a tokenizer."""

    def make(folder: Path) -> None:
        for slot in range(count):
            llama(shape, slot).save_pretrained(folder / str(slot), max_shard_size="100GB")
            tokenizer().save_pretrained(folder / str(slot))

    folder = cached(HOME / f"experts-{shape.name}", make)
    return [folder / str(slot) for slot in range(count)]


def hybrid_expert(shape: Shape) -> Path:
    """A random expert of Qwen3.5 in float32, with linear attention in three of four layers, and a tokenizer."""
    heads, types = shape.hidden // 64, ["linear_attention"] * 3 + ["full_attention"]
    config = AutoConfig.for_model(
        "qwen3_5_text",
        **_sizes(shape),
        head_dim=64,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        layer_types=[types[layer % 4] for layer in range(shape.layers)],
    )

    def make(folder: Path) -> None:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
        tokenizer().save_pretrained(folder)

    return cached(HOME / f"hybrid-{shape.name}", make)


def features(hidden: int, tokens: int, seed: int, domain: int) -> Tensor:
    """Vectors u [tokens, H] float32 with ||u||^2 = H; a few directions dominate, and the mean is the domain's.

    All domains of a seed share their directions.
    """
    shared, own = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(1000 * seed + domain + 1)
    strength = torch.logspace(0, -2.5, hidden)[:, None]  # condition 1e7; random models have 1e5 to 1e8
    directions = strength * torch.randn(hidden, hidden, generator=shared)
    x = (torch.randn(tokens, hidden, generator=own) + 0.1 * torch.randn(hidden, generator=own)) @ directions
    return x / x.pow(2).mean(dim=1, keepdim=True).sqrt()


def drawn_sums(shape: Shape, number: int) -> tuple[Tensor, Tensor]:
    """Gram [L, H, H] and cross [L, H], float64, of random features, different in every layer."""

    def make(folder: Path) -> None:
        grams, crosses = [], []
        for layer in range(shape.layers):
            u = features(shape.hidden, DRAWN_TOKENS, layer, number)
            grams.append((u.T @ u).double())
            crosses.append(u.sum(dim=0, dtype=torch.float64))
        save_file({"gram": torch.stack(grams), "cross": torch.stack(crosses)}, folder / "sums.safetensors")

    folder = cached(HOME / f"drawn-h{shape.hidden}-l{shape.layers}-{number}", make)
    result = load_file(folder / "sums.safetensors")
    return result["gram"], result["cross"]


def statistics_files(shape: Shape, domains: list[str]) -> list[Path]:
    """A statistics file per entry of `domains`; a repeated domain has files of different shards."""
    folder = HOME / f"statistics-h{shape.hidden}-l{shape.layers}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, domain in enumerate(domains):
        path = folder / f"{number}-{domain}"
        gram, cross = drawn_sums(shape, number)
        ours.write_statistics(path, gram, cross, domain=domain, tokens=DRAWN_TOKENS, shard=number)
        paths.append(path)
    return paths


def read_once(*paths: Path) -> None:
    """Reads files into the page cache, and flushes pending writes to the disk."""
    for path in paths:
        with path.open("rb") as file:
            while file.read(2**24):
                pass
    os.sync()
