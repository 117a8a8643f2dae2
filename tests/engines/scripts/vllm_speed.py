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

TEXTS, LENGTH, NEW, TURNS, LOADS = 4, 256, 64, 3, 2


def main(job: dict[str, Any]) -> None:
    found: dict[str, list[list[float]]] = {"load": [], "memory": [], "prefill": [], "decoding": []}
    for load in range(LOADS):
        engines, seconds, memory = {}, {}, {}
        for name in sorted(job["models"], reverse=bool(load % 2)):
            before, started = _memory(), time.perf_counter()
            engines[name] = LLM(
                job["models"][name], dtype="float32", enforce_eager=True, enable_prefix_caching=False,
                max_num_seqs=TEXTS, max_num_batched_tokens=TEXTS * LENGTH, num_gpu_blocks_override=32,
            )  # fmt: skip
            seconds[name], memory[name] = time.perf_counter() - started, _memory() - before
        found["load"].append([seconds["dense"], seconds["version"]])
        found["memory"].append([memory["dense"], memory["version"]])
        for _ in range(TURNS):
            for what, texts, length, new in (("prefill", TEXTS, LENGTH - 1, 1), ("decoding", TEXTS, 4, NEW)):
                turn = {name: _seconds(engine, texts, length, new) for name, engine in sorted(engines.items())}
                found[what].append([turn["dense"], turn["version"]])
        engines.clear()
        cleanup_dist_env_and_memory()
        gc.collect()
    Path(job["answers"]).write_text(json.dumps(found), encoding="utf-8")


def _seconds(engine: LLM, texts: int, length: int, new: int) -> float:
    rows = [{"prompt_token_ids": [97 + (row + 7 * place) % 26 for place in range(length)]} for row in range(texts)]
    started = time.perf_counter()
    engine.generate(rows, SamplingParams(temperature=0, max_tokens=new, ignore_eos=True), use_tqdm=False)
    return time.perf_counter() - started


def _memory() -> int:
    """Bytes of this process in memory."""
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
