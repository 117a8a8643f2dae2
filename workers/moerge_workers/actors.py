"""Ray: one actor per slot, each with the model and one thread. The only module that imports ray."""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from moerge.statistics.accumulate import ShardSums
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_workers.shards import Shard, batches

_WAITING_PER_SLOT = 2


class Slot:
    """Computes shards, one at a time. It keeps nothing that matters: each shard's sums are returned."""

    def __init__(self, work: RouterPass | TrunkPass, batch_tokens: int) -> None:
        import torch

        torch.set_num_threads(1)  # another number gives other integers
        self._compute, self._batch_tokens = work.load(), batch_tokens

    def sums(self, shard: Shard) -> ShardSums:
        return self._compute(batches(shard.rows, self._batch_tokens), shard.documents)


@contextmanager
def cluster(address: str | None, slots: int) -> Iterator[None]:
    """A Ray cluster: the owner's existing one, or a local one of `slots` CPUs that ends with the context."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    local: dict[str, Any] = {"num_cpus": slots, "include_dashboard": False} if address is None else {}
    ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
    try:
        yield
    finally:
        ray.shutdown()


def compute(
    shards: Iterable[Shard], slots: int, work: RouterPass | TrunkPass, batch_tokens: int
) -> Iterator[tuple[Shard, ShardSums]]:
    """Every shard with its sums, in whatever order they come. A shard whose actor dies is computed again.

    Only a few shards per slot are held in memory at a time. On a GPU each slot has one of its own.
    """
    gpus = 1 if work.device == "cuda" else 0
    actor: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=-1)(Slot)
    pool = [actor.remote(work, batch_tokens) for _ in range(slots)]
    running: dict[Any, tuple[int, Shard]] = {}
    free = [slot for slot in range(slots) for _ in range(_WAITING_PER_SLOT)]
    for shard in shards:
        if not free:
            yield _next(running, free)
        slot = free.pop(0)
        running[pool[slot].sums.remote(shard)] = slot, shard
    while running:
        yield _next(running, free)


def _next(running: dict[Any, tuple[int, Shard]], free: list[int]) -> tuple[Shard, ShardSums]:
    done, _ = ray.wait(list(running), num_returns=1)
    slot, shard = running.pop(done[0])
    free.append(slot)
    return shard, ray.get(done[0])
