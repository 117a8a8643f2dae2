"""Models of four sizes, bytes of a federation's files without headers, and the table of docs/scale.md."""

from dataclasses import replace

import torch
from rich.filesize import decimal
from transformers import LlamaConfig

from moerge.bodies.methods.registry import METHODS
from moerge.memory import needs
from moerge.memory.shapes import Shape
from moerge.models.published import expected_config
from moerge.scoring import public
from moerge_proto.statistics_file import StatisticsSettings, gram_length

NAMES = ("1B", "8B", "70B", "400B")
EXPERTS, CORES = 16, 4
"""Of the table, and of its coordinator."""


def preset(name: str) -> LlamaConfig:
    """The config of an expert of a size: that of Llama 3, in bfloat16."""
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


def expert_bytes(shape: Shape) -> int:
    """An expert's weights."""
    return shape.number * shape.expert


def body_bytes(shape: Shape) -> int:
    """A body: an expert without MLPs and head."""
    return shape.number * shape.body


def head_bytes(shape: Shape) -> int:
    """A head: last norm and language model head, V H + H weights."""
    return shape.number * shape.head


def part_bytes(shape: Shape) -> int:
    """An expert's parts: its MLPs and a head of its own."""
    return mlp_bytes(shape) + head_bytes(shape)


def mlp_bytes(shape: Shape) -> int:
    """One expert's file in a version: its MLPs, 3 L H M weights."""
    return shape.number * shape.layers * shape.mlp


def router_bytes(shape: Shape, experts: int) -> int:
    """A version's routers: L D H weights."""
    return shape.number * shape.layers * experts * shape.hidden


def version_bytes(shape: Shape, experts: int) -> int:
    """A version's weights: body, head, MLPs of each expert, routers."""
    return body_bytes(shape) + head_bytes(shape) + experts * mlp_bytes(shape) + router_bytes(shape, experts)


def head_contribution_bytes(shape: Shape) -> int:
    """A head contribution: the triangle of a gram."""
    return 8 * gram_length(shape.hidden)


def table() -> list[str]:
    """The table's lines: a version of `EXPERTS` fitted experts under the seed's body, with a solved head."""
    columns = [_column(preset(name.lower())) for name in NAMES]
    rows = [f"| {' | '.join((*key, *(decimal(column[key]) for column in columns)))} |" for key in columns[0]]
    return [f"| | | {' | '.join(NAMES)} |", "|---|---|---:|---:|---:|---:|", *rows]


def _column(config: LlamaConfig) -> dict[tuple[str, str], int]:
    """(whose, what) -> bytes, of one size."""
    shape = Shape.of(config, torch.bfloat16)
    memory = [
        needs.receiving(shape),
        needs.checking(shape),
        needs.merging(shape, EXPERTS, METHODS["seed"], CORES),
        needs.merging_head(shape, EXPERTS, solved=True),
        needs.solving(shape, CORES),
        needs.influence(shape, CORES),
        needs.publishing(shape),
        replace(public.need_of(expected_config(config, EXPERTS, 1)), work="the loss on public texts"),
    ]
    batch = StatisticsSettings().batch_tokens
    passed, parts = needs.passing(shape, batch, body=False), part_bytes(shape)
    routers = shape.contribution(body=False)
    sums = {"a head contribution": head_contribution_bytes(shape), "a router contribution": routers}
    sent = parts + sum(sums.values())
    files = {
        "an expert's parts, or the seed's": parts,
        **sums,
        "the body": body_bytes(shape),
        "an expert's MLPs in a version": mlp_bytes(shape),
        "the head of a version": head_bytes(shape),
        "a version": version_bytes(shape, EXPERTS),
    }
    return {
        **{("coordinator", f"memory, {need.work}"): need.total() for need in memory},
        ("worker", "memory, hidden states of a million tokens"): 10**6 * passed.token,
        ("worker", "memory, device"): passed.on_device,
        ("worker", "memory, device, fitting"): needs.fitting(shape, batch).on_device,
        ("worker", "disk"): files["the body"] + parts + 2 * sum(sums.values()),
        ("worker", "sent"): sent,
        ("coordinator", "received"): EXPERTS * sent,
        ("coordinator", "disk or S3"): parts + EXPERTS * sent + files["a version"],
        **{("file", name): size for name, size in files.items()},
    }
