"""The streamed pass in little memory, and the memory that building a model takes."""

import json
import os
import sys
from functools import cache, partial
from pathlib import Path

import torch

from bench.inputs import Shape, cached, llama_config, read_once
from bench.made import write_expert
from bench.measure import Run, process, say
from bench.passes import Measured
from bench.registry import HOME, Pair, benchmark

SHAPE, TOKENS, RUNS = Shape(hidden=2048, intermediate=16384, vocabulary=4000), 8192, 2
PRECISION = torch.bfloat16
LIMIT = 3 * SHAPE.layer * PRECISION.itemsize
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**23)}
"""One thread; glibc gives freed blocks of 8 MiB and more back to the system, and keeps none of up to 32 MiB."""

SHAPES = f"{SHAPE}, bfloat16, a window of {TOKENS} tokens, T 512, batch 1, one thread"


def folder(shape: Shape = SHAPE) -> Path:
    """An expert in bfloat16, in the page cache."""
    make = partial(write_expert, config=llama_config(shape), dtype=torch.bfloat16)
    result = cached(HOME / f"made-{shape.name}", make)
    read_once(*result.glob("*.safetensors"))
    return result


def alone(way: str, expert: Path, precision: torch.dtype, tokens: int = TOKENS, limit: int = 0) -> tuple[Run, Measured]:
    """A pass of `bench.passes` in a process of its own, with one thread."""
    given = [str(expert), str(precision).removeprefix("torch."), str(tokens), str(limit)]
    log = HOME / f"{way}.log"
    ran = process([sys.executable, "-m", "bench.passes", way, *given], log, {**os.environ, **ENVIRONMENT})
    return ran, Measured(**json.loads(log.read_text(encoding="utf-8").splitlines()[-1]))


@cache
def runs() -> list[tuple[tuple[Run, Measured], tuple[Run, Measured]]]:
    """Both sides' runs in turns, made once for both figures; a new process needs no warm-up."""
    expert, result = folder(), []
    for _ in range(RUNS):
        result.append((alone("streamed", expert, PRECISION, limit=LIMIT), alone("whole", expert, PRECISION)))
        say(f"  {result[-1]}")
    return result


@benchmark(
    "streamed",
    "streamed pass, memory limited to three layers, tokens/s",
    "the same pass with the whole model in memory",
    ">=",
    0.9,
    SHAPES,
    process="streamed",
)
def streamed() -> list[Pair]:
    return [(ours.seconds, theirs.seconds) for (_, ours), (_, theirs) in runs()]


@benchmark(
    "streamed-memory",
    "the same, anonymous memory above the imports",
    "three layers",
    "<=",
    1.0,
    SHAPES,
    process="streamed",
)
def streamed_memory() -> list[Pair]:
    return [(run.anonymous - ours.imported, LIMIT) for (run, ours), _ in runs()]


def built(precision: torch.dtype) -> list[Pair]:
    run, result = alone("build", folder(), precision)
    return [(run.anonymous - result.imported, precision.itemsize * SHAPE.parameters)]


@benchmark(
    "build-float32",
    "building a model from bfloat16 files, anonymous memory",
    "the model in float32",
    "<=",
    1.1,
    f"{SHAPE}",
)
def build_float32() -> list[Pair]:
    return built(torch.float32)


@benchmark("build-bfloat16", "the same in bfloat16", "the model in bfloat16", "<=", 1.1, f"{SHAPE}")
def build_bfloat16() -> list[Pair]:
    return built(torch.bfloat16)
