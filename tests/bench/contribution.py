"""The size of a contribution, stored and sent."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bench import ours
from bench.inputs import Shape, cached, gains, llama
from bench.measure import say
from bench.registry import HOME, Pair, benchmark

SHAPE = Shape()
CONTEXT, BATCH = 512, 8
TOKENS = 64 * SHAPE.hidden
"""The smallest shard."""

SHAPES = f"random {SHAPE}, {TOKENS} tokens: bytes of Python's standard library"
NAIVE = "float32 A [H, H] and b [H, 1] of every layer"


def text() -> Iterator[Tensor]:
    """Batches [B, T] of the bytes of the standard library's modules, in order of name."""
    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    data = bytearray(b"".join(module.read_bytes() for module in modules)[:TOKENS])
    return iter(torch.frombuffer(data, dtype=torch.uint8).long().view(-1, CONTEXT).split(BATCH))


@torch.inference_mode()
def sums() -> dict[str, Tensor]:
    """Gram [L, H, H] and cross [L, H], float64, of a random model's features divided by their gains."""
    model = llama(SHAPE, 0)
    gain = gains(model)
    gram = torch.zeros(SHAPE.layers, SHAPE.hidden, SHAPE.hidden, dtype=torch.float64)
    cross = torch.zeros(SHAPE.layers, SHAPE.hidden, dtype=torch.float64)

    def hook(layer: int) -> None:
        def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            u = inputs[0].flatten(end_dim=1) / gain[layer]
            gram[layer] += u.T @ u
            cross[layer] += u.sum(dim=0, dtype=torch.float64)

        model.model.layers[layer].mlp.register_forward_pre_hook(add)

    for layer in range(SHAPE.layers):
        hook(layer)
    for number, ids in enumerate(text(), start=1):
        model.model(input_ids=ids, use_cache=False)
        say(f"  statistics of {number * ids.numel()} of {TOKENS} tokens")
    return {"gram": gram, "cross": cross}


def contribution() -> Path:
    """The statistics file of a real pass; the pass is stored, the file written anew."""
    folder = cached(HOME / f"sums-{SHAPE.name}", lambda folder: save_file(sums(), folder / "sums.safetensors"))
    result = load_file(folder / "sums.safetensors")
    path = HOME / "contribution"
    ours.write_statistics(path, result["gram"], result["cross"], domain="d0", tokens=TOKENS)
    return path


def naive_bytes() -> float:
    return 4 * SHAPE.layers * (SHAPE.hidden**2 + SHAPE.hidden)


@benchmark("contribution-plain", "bytes of a statistics file", NAIVE, "<=", 1.05, SHAPES)
def contribution_plain() -> list[Pair]:
    return [(contribution().stat().st_size, naive_bytes())]


@benchmark("contribution-compressed", "bytes sent, zstd chunks", NAIVE, "<=", 0.7, SHAPES)
def contribution_compressed() -> list[Pair]:
    return [(sum(map(len, ours.compressed_chunks(contribution()))), naive_bytes())]
