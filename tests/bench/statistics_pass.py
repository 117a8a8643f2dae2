"""The speed of the pass over an owner's documents, which sums gram and cross of every layer."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from bench import ours
from bench.inputs import Shape, documents, experts, hybrid_expert, llama
from bench.measure import in_turns, seconds
from bench.registry import Pair, benchmark
from moerge.documents.shards import Shard
from moerge.memory.needs import SUM_ROWS
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import all_counted
from moerge.statistics.accumulate import Sum, inverse
from moerge.statistics.integers import pack, to_integers
from moerge.statistics.streamed import Streamed
from moerge_proto.statistics_file import Int64, gram_length

SHAPE, BATCH, CONTEXT = Shape(), 4, 512
LONG, LONG_BATCH, LONG_CONTEXT = Shape(hidden=512, layers=8, intermediate=2048), 2, 1024
HYBRID = Shape(hidden=512, layers=8, intermediate=2048, vocabulary=8000)
DOMAINS = 4
ROUNDED = 4096
"""H of the rounded sums."""


@torch.inference_mode()
def plain(model: PreTrainedModel, rows: Sequence[Tensor]) -> None:
    """The model's ordinary forward pass."""
    for ids in rows:
        model(input_ids=ids, use_cache=False)


@torch.inference_mode()
def textbook(model: LlamaForCausalLM, rows: Sequence[Tensor]) -> None:
    """X^T X and X^T Y of every layer in float32, from the MLP inputs that hooks stored in a complete forward pass."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kept.append(inputs[0])

    hidden, layers = model.config.hidden_size, model.model.layers
    handles = [layer.mlp.register_forward_hook(keep) for layer in layers]
    gram, cross = torch.zeros(len(layers), hidden, hidden), torch.zeros(len(layers), hidden, DOMAINS)
    for ids in rows:
        kept.clear()
        model(input_ids=ids, use_cache=False)
        y = torch.zeros(ids.numel(), DOMAINS)
        y[:, 0] = 1
        for layer, inputs in enumerate(kept):
            x = inputs.flatten(end_dim=1)  # [n, H]
            gram[layer] += x.T @ x
            cross[layer] += x.T @ y
    for handle in handles:
        handle.remove()


def against(
    theirs: Callable[[LlamaForCausalLM, Sequence[Tensor]], None],
    attention: str,
    shape: Shape,
    batch: int,
    context: int,
) -> list[Pair]:
    """Our pass against `theirs`, with the same weights and one batch of documents of `context` tokens; one thread."""
    torch.set_num_threads(1)
    other, rows = llama(shape, 0, attention), documents(shape, batch, context)
    streamed = Streamed(ours.router_pass(experts(shape, 1)[0]), batch * context)
    shards = [Shard("one", all_counted(rows.tolist()), batch)]
    return in_turns(
        lambda: seconds(lambda: ours.statistics_pass(streamed, shards)),
        lambda: seconds(lambda: theirs(other, [rows])),
    )


@benchmark(
    "statistics",
    "statistics pass, tokens/s",
    "model(input_ids), sdpa",
    ">=",
    1.1,
    f"{SHAPE}, T {CONTEXT}, batch {BATCH}, float32, one thread",
)
def statistics() -> list[Pair]:
    return against(plain, "sdpa", SHAPE, BATCH, CONTEXT)


@benchmark(
    "statistics-textbook",
    "statistics pass, tokens/s",
    "textbook pass: whole forward, eager, X^T X",
    ">=",
    1.4,
    f"{SHAPE}, T {CONTEXT}, batch {BATCH}, float32, one thread",
)
def statistics_textbook() -> list[Pair]:
    return against(textbook, "eager", SHAPE, BATCH, CONTEXT)


@benchmark(
    "statistics-textbook-long",
    "statistics pass, tokens/s",
    "textbook pass: whole forward, eager, X^T X",
    ">=",
    2.3,
    f"{LONG}, T {LONG_CONTEXT}, batch {LONG_BATCH}, float32, one thread",
)
def statistics_textbook_long() -> list[Pair]:
    return against(textbook, "eager", LONG, LONG_BATCH, LONG_CONTEXT)


def rounded_by_numpy(blocks: list[Tensor], exponent: int, gains: Tensor) -> Int64:
    """The triangle of a gram in new memory, step by step over each block of rows: divided, packed, scaled, rounded."""
    factors, done = inverse(gains), 0
    packed = np.empty(gram_length(len(factors)), dtype=np.int64)
    for start in range(0, len(factors), SUM_ROWS):
        block = blocks.pop(0)
        block.mul_(factors[start : start + len(block), None]).mul_(factors[start:])
        rows = pack(block.numpy())
        packed[done : (done := done + len(rows))] = to_integers(rows, exponent)
    return packed


@benchmark(
    "rounding",
    "integers of a layer's sums, in their memory, s",
    "the same in new memory, by numpy step by step",
    "<=",
    0.25,
    f"H {ROUNDED}, float64, one thread",
)
def rounding() -> list[Pair]:
    torch.set_num_threads(1)
    gains, drawing = torch.rand(ROUNDED) + 0.5, torch.Generator().manual_seed(0)
    x = torch.randn(256, ROUNDED, generator=drawing)

    def made() -> Sum:
        sums = Sum()
        sums.add(x)
        return sums

    def by_us() -> float:
        sums = made()
        return seconds(lambda: sums.rounded(16, gains))

    def by_numpy() -> float:
        blocks = [block.clone() for _, block in made().blocks()]
        return seconds(lambda: rounded_by_numpy(blocks, 16, gains))

    return in_turns(by_us, by_numpy, 15)


@benchmark(
    "statistics-hybrid",
    "statistics pass of Qwen3.5, tokens/s",
    "model(input_ids)",
    ">=",
    1.0,
    f"{HYBRID}, linear attention in three of four layers, T {CONTEXT}, batch {BATCH}, float32, one thread",
)
def statistics_hybrid() -> list[Pair]:
    torch.set_num_threads(1)
    folder, rows = hybrid_expert(HYBRID), documents(HYBRID, BATCH, CONTEXT)
    other, streamed = expert_model(DenseFiles(folder)), Streamed(ours.router_pass(folder), BATCH * CONTEXT)
    shards = [Shard("one", all_counted(rows.tolist()), BATCH)]
    return in_turns(
        lambda: seconds(lambda: ours.statistics_pass(streamed, shards)),
        lambda: seconds(lambda: plain(other, [rows])),
    )
