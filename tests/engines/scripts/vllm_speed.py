"""Speed of vLLM with two models by turns, run by its own Python: `vllm_speed.py JOB`."""

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
from vllm.distributed import cleanup_dist_env_and_memory  # type: ignore[import-not-found]

TEXTS, LENGTH, NEW, TURNS = 4, 256, 64, 5


def main(job: dict[str, Any]) -> None:
    _load(job["first"])  # what is loaded and imported once doesn't count
    cleanup_dist_env_and_memory()
    gc.collect()
    engines, seconds, memory = {}, {}, {}
    for name in ("version", "dense"):  # a dense model doesn't start what an MoE needs
        before, started = _memory(), time.perf_counter()
        engines[name] = _load(job[name])
        seconds[name], memory[name] = time.perf_counter() - started, float(_memory() - before)
    result = {"load": [_pair(seconds)], "memory": [_pair(memory)], "prefill": [], "decoding": []}
    for _ in range(TURNS):
        for what, length, new in (("prefill", LENGTH - 1, 1), ("decoding", 4, NEW)):
            result[what].append(_pair({name: _seconds(engine, length, new) for name, engine in engines.items()}))
    Path(job["answers"]).write_text(json.dumps(result), encoding="utf-8")


def _load(folder: str) -> LLM:
    return LLM(
        folder, dtype="float32", enforce_eager=True, enable_prefix_caching=False,
        max_num_seqs=TEXTS, max_num_batched_tokens=TEXTS * LENGTH, num_gpu_blocks_override=32,
    )  # fmt: skip


def _pair(values: dict[str, float]) -> list[float]:
    return [values["dense"], values["version"]]


def _seconds(engine: LLM, length: int, new: int) -> float:
    rows = [{"prompt_token_ids": [97 + (row + 7 * place) % 26 for place in range(length)]} for row in range(TEXTS)]
    started = time.perf_counter()
    engine.generate(rows, SamplingParams(temperature=0, max_tokens=new, ignore_eos=True), use_tqdm=False)
    return time.perf_counter() - started


def _memory() -> int:
    """Bytes of this process in memory."""
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
