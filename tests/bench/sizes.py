"""A streamed pass over a model of a large shape, and a plain forward of the same tokens where the model fits.

`python -m bench.sizes --shape 70b --device cuda`. Weights are made while they are read, at the speed of a copy, so the
model needs no disk. Hidden states are on the device, or with `--states host` in host memory.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from bench import ours
from bench.made import MadePass, made_pass
from bench.measure import say, seconds
from bench.passes import random_rows
from moerge.documents.shards import Shard, enough
from moerge.memory.machine import free_bytes
from moerge.models.batches import batches
from moerge.models.dense import assign, empty_model
from moerge.statistics.streamed import Streamed
from moerge_lab.peaks import PeakMemory
from moerge_proto.statistics_file import StatisticsSettings
from support.sizes import preset

TINY = LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=300,
    max_position_embeddings=4096,
)
SHAPES = {"tiny": TINY, "8b": preset("8b"), "70b": preset("70b")}
"""Those of Llama 3.1, and one for tests."""

BATCH_TOKENS = StatisticsSettings().batch_tokens
FILLED = 0.9
"""The share of the device's free memory that weights and logits of a plain forward may take."""


@dataclass(frozen=True)
class Side:
    """One way through the tokens.

    Attributes:
        speed: tokens per second, the median of the runs.
        memory: peak bytes on the device; None if unknown.
    """

    speed: float
    memory: int | None


@dataclass(frozen=True)
class Comparison:
    """The streamed pass, and the plain forward, or the reason why it was skipped."""

    streamed: Side
    plain: Side | str


def resident(work: MadePass) -> PreTrainedModel:
    """The whole model on its device, one tensor at a time in host memory."""
    weights, dtype = work.weights(), getattr(torch, work.precision)
    model = empty_model(weights.config, dtype)
    for name in weights.places:
        tensor = torch.empty(weights.shape(name), dtype=dtype)
        weights.copy(name, tensor)
        assign(model, name, tensor.to(work.device))
    model.model.rotary_emb.to(work.device)
    return model


@torch.inference_mode()
def forward(model: PreTrainedModel, given: Sequence[Tensor], device: str) -> None:
    """The model's ordinary forward pass, with logits."""
    for ids in given:
        model(input_ids=ids.to(device), use_cache=False)
    if device == "cuda":
        torch.cuda.synchronize()


def unfit(work: MadePass, free: int | None) -> str | None:
    """The reason why the whole model doesn't fit into the free bytes of its device; None if it does."""
    every, dtype = work.weights(), getattr(torch, work.precision)
    size = dtype.itemsize * sum(torch.Size(every.shape(name)).numel() for name in every.places)
    size += 2 * 4 * BATCH_TOKENS * work.config.vocab_size
    if free is None or size <= FILLED * free:
        return None
    return f"skipped: it needs {decimal(size)}, and {decimal(free)} are free"


def compare(work: MadePass, tokens: int, runs: int, room: int | None) -> Comparison:
    """Both ways in turns, each after a warm-up; the window holds all tokens, `room` as in `Streamed`."""
    device, rows = work.device, random_rows(tokens)
    few, shard = Shard("few", rows[:1], 1), Shard("all", rows, len(rows))
    given = [batch.input_ids for batch in batches(rows, BATCH_TOKENS)]
    peak, streamed = PeakMemory(device), Streamed(work, BATCH_TOKENS, room=room)

    def passed() -> float:
        taken = seconds(lambda: ours.statistics_pass(streamed, [shard]))
        say(f"  streamed pass: {taken:.3g} s")
        return taken

    def plain() -> float:
        taken = seconds(lambda: forward(model, given, device))
        say(f"  plain forward: {taken:.3g} s")
        return taken

    say("  warm-up")
    ours.statistics_pass(streamed, [few])
    own, memory = [passed()], peak.bytes()
    reason = unfit(work, free_bytes(device))
    if reason is not None:
        own += [passed() for _ in range(runs - 1)]
        return Comparison(Side(tokens / median(own), memory), reason)
    peak, model = PeakMemory(device), resident(work)
    forward(model, given[:1], device)
    theirs, their_memory = [plain()], peak.bytes()
    for _ in range(runs - 1):
        own.append(passed())
        theirs.append(plain())
    return Comparison(Side(tokens / median(own), memory), Side(tokens / median(theirs), their_memory))


def table(found: Comparison, title: str, states: int) -> Table:
    shown = Table(title=title, caption=f"hidden states of the window: {decimal(states)}")
    for column in ("", "tokens/s", "peak device memory"):
        shown.add_column(column, justify="right" if column else "left")
    for name, side in (("streamed pass", found.streamed), ("plain forward", found.plain)):
        if isinstance(side, str):
            shown.add_row(name, side, "")
        else:
            memory = "unknown" if side.memory is None else decimal(side.memory)
            shown.add_row(name, f"{side.speed:,.0f}", memory)
    if isinstance(found.plain, Side):
        shown.add_row("ratio", f"{found.streamed.speed / found.plain.speed:.2f}", "")
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sizes", description=__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--tokens", type=int, help="of the window; default: those of the smallest shard, 64 H")
    parser.add_argument("--states", choices=["device", "host"], default="device", help="where hidden states are")
    parser.add_argument("--runs", type=int, default=1)
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU; use --device cpu for a small shape")
    work = made_pass(SHAPES[chosen.shape], chosen.precision, chosen.device)
    hidden = work.config.hidden_size
    tokens = chosen.tokens or enough(hidden)
    result = compare(work, tokens, chosen.runs, 0 if chosen.states == "host" else None)
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    title = f"{chosen.shape}, {chosen.precision}, {tokens:,} tokens, states on the {chosen.states}, {device}"
    Console(width=120).print(table(result, title, getattr(torch, chosen.precision).itemsize * hidden * tokens))


if __name__ == "__main__":
    main()
