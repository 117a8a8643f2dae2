"""Speed of llama.cpp with two models by turns, run by its own Python: `llama_cpp_speed.py JOB`. Models are GGUFs."""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from llama_cpp import Llama  # type: ignore[import-not-found]  # in an environment of its own

TEXTS, LENGTH, NEW, TURNS = 4, 256, 64, 5


def main(job: dict[str, Any]) -> None:
    _load(job["first"])  # what is loaded once doesn't count
    engines, seconds, memory = {}, {}, {}
    for name in ("version", "dense"):
        before, started = _memory(), time.perf_counter()
        engines[name] = _load(job[name])
        seconds[name], memory[name] = time.perf_counter() - started, float(_memory() - before)
    result = {"load": [_pair(seconds)], "memory": [_pair(memory)], "prefill": [], "decoding": []}
    for _ in range(TURNS):
        for what, length, new in (("prefill", LENGTH - 1, 0), ("decoding", 4, NEW)):
            result[what].append(_pair({name: _seconds(engine, length, new) for name, engine in engines.items()}))
    Path(job["answers"]).write_text(json.dumps(result), encoding="utf-8")


def _load(file: str) -> Llama:
    return Llama(file, n_ctx=LENGTH, n_threads=1, n_threads_batch=1, use_mmap=False, verbose=False)


def _pair(values: dict[str, float]) -> list[float]:
    return [values["dense"], values["version"]]


def _seconds(engine: Llama, length: int, new: int) -> float:
    started = time.perf_counter()
    for row in range(TEXTS):
        engine.reset()
        engine.eval([97 + (row + 7 * place) % 26 for place in range(length)])
        for _ in range(new):
            engine.eval([engine.sample(temp=0.0)])
    return time.perf_counter() - started


def _memory() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
