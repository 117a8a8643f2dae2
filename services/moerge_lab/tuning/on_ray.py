"""Ray Train: the processes of a training."""

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig, TrainingFailedError
from ray.train.backend import Backend
from ray.train.torch import TorchConfig, TorchTrainer, get_device, prepare_model

from moerge.errors import MoergeError
from moerge.files import locked
from moerge.memory.machine import is_out_of_memory
from moerge_lab.training.job import LOG, Process
from moerge_lab.tuning.request import Request
from moerge_lab.tuning.train_process import train_process
from moerge_workers.computing.cluster import cluster

_LOOK_SECONDS = 0.5
_RESULTS, _STORE = "ray", "processes"


class _Apart(TorchConfig):
    """No process group of Ray's, whose store listens on every interface."""

    @property
    def backend_cls(self) -> type[Backend]:
        return Backend


def train_on_ray(request: Request, work: Path, address: str | None, finished: Callable[[int], None]) -> None:
    """Trains in processes of a local Ray, or of a cluster at an address, with the same storage.

    Args:
        work: with the rows.
        finished: called with the number of finished steps.

    Raises:
        MoergeError: Ray lacks CPUs or GPUs, or the training failed.
    """
    workers, device = request.record.workers, request.record.build.device
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", str(_LOOK_SECONDS))
    results, store = work / _RESULTS, work / _STORE
    store.unlink(missing_ok=True)  # of a killed run
    with cluster(address, workers):
        _require(device, workers)
        trainer = TorchTrainer(
            _run,
            train_loop_config={"request": request, "work": work, "store": None if address else str(store)},
            torch_config=TorchConfig() if address else _Apart(),
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=device == "cuda"),
            run_config=RunConfig(name="tune", storage_path=str(results)),
        )
        try:
            _follow(trainer, work / LOG, finished)
        finally:
            shutil.rmtree(results, ignore_errors=True)
            store.unlink(missing_ok=True)


def _require(device: str, workers: int) -> None:
    """Requires a CPU or a GPU per process, for which Ray would wait."""
    kind = "GPU" if device == "cuda" else "CPU"
    count = int(ray.cluster_resources().get(kind, 0))  # type: ignore[no-untyped-call]
    if count < workers:
        todo = "give fewer `workers`" if count else "use `device` cpu"
        raise MoergeError(f"{workers} processes need a {kind} each; Ray has {count}", where="`workers`", todo=todo)


def _follow(trainer: TorchTrainer, log: Path, finished: Callable[[int], None]) -> None:
    """Runs the trainer and reports the steps in its log. Its thread leaves Ctrl-C to this one."""
    failed = list[Exception]()

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:  # noqa: BLE001  # raised below
            failed.append(error)

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        with suppress(FileNotFoundError):
            finished(max(0, log.read_bytes().count(b"\n") - 1))
    if failed:
        raise _failure(failed[0]) from failed[0]


def _failure(error: Exception) -> Exception:
    causes = list(getattr(error, "worker_failures", {}).values())
    for cause in causes:
        if isinstance(cause, MoergeError):
            return cause
        if is_out_of_memory(cause):
            todo = "give a smaller batch with `recipe`, a larger `accumulate`, or a smaller `context`"
            return MoergeError(f"the training needs more memory: {cause}", where="`recipe`", todo=todo)
    if not isinstance(error, TrainingFailedError):
        return error
    what = next((f"{type(cause).__name__}: {cause}" for cause in causes), str(error))
    todo = "run the same command again, which continues; if memory was short, use a smaller batch"
    return MoergeError(f"the training failed: {what}", where="Ray Train", todo=todo)


def _run(config: dict[str, Any]) -> None:
    work: Path = config["work"]
    context = ray.train.get_context()
    rank, count, device = int(context.get_world_rank()), int(context.get_world_size()), get_device()
    with _group(config["store"], rank, count, device), _only(work, rank):

        def mean(value: float) -> float:
            total = torch.tensor(value, dtype=torch.float64, device=device)
            if count > 1:
                dist.all_reduce(total)
            return float(total) / count

        train_process(config["request"], work, Process(rank, count, prepare_model, mean), str(device))


@contextmanager
def _group(store: str | None, rank: int, count: int, device: torch.device) -> Iterator[None]:
    """The process group of a local Ray: on the loopback interface, by a file."""
    if store is None or count == 1:
        yield
        return
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=loopback)
    backend = "gloo" if device.type == "cpu" else "nccl"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _only(work: Path, rank: int) -> Iterator[None]:
    """Waits for the end of a killed run's first process."""
    if rank:
        yield
        return
    with locked(work / "first", 60):
        yield
