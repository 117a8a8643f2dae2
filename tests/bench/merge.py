"""Merging experts and publishing the first version."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from bench import ours, peer
from bench.inputs import Shape, experts, read_once, statistics_files
from bench.measure import Run, in_turns, process, seconds
from bench.registry import HOME, Pair, benchmark

SHAPE = Shape(intermediate=6144)
EXPERTS = 3
SHAPES = f"{EXPERTS} experts of {SHAPE.bytes / 1e9:.2f} GB, {SHAPE}, float32"
ALLOWANCE = 400 * 2**20
CONSTRAINTS = HOME.parents[1] / "constraints.txt"


def mergekit() -> Path:
    """The peer's command, installed with the tests' constraints."""
    return peer.mergekit(HOME / "mergekit", "--constraint", str(CONSTRAINTS))


def inputs() -> tuple[list[Path], list[Path]]:
    """The experts' folders and a statistics file of each, all in the page cache."""
    folders = experts(SHAPE, EXPERTS)
    statistics = statistics_files(SHAPE, [f"d{slot}" for slot in range(EXPERTS)])
    read_once(*statistics, *(folder / "model.safetensors" for folder in folders))
    return folders, statistics


def emptied(folder: Path) -> Path:
    """An empty folder, with no pending writes to the disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()
    return folder


def our_process(folders: list[Path], statistics: list[Path]) -> Run:
    """Average body, solved routers, one file per expert; every file is hashed and synced."""
    work = emptied(HOME / "work")
    command = [sys.executable, "-m", "bench.child", str(work), *map(str, folders), "--", *map(str, statistics)]
    return process(command, HOME / "ours.log", _offline())


def mergekit_process(folders: list[Path]) -> Run:
    """The first expert's body, random routers."""
    work = emptied(HOME / "work")
    config = HOME / "mergekit-moe.yml"  # JSON is YAML
    settings = {
        "base_model": str(folders[0]),
        "gate_mode": "random",
        "dtype": "float32",
        "architecture": "mixtral",
        "experts": [{"source_model": str(folder)} for folder in folders],
    }
    config.write_text(json.dumps(settings), encoding="utf-8")
    return process([str(mergekit()), str(config), str(work / "out")], HOME / "mergekit.log", _offline())


def _offline() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1"}


@cache
def processes() -> list[tuple[Run, Run]]:
    """Both sides' runs, made once for all of their figures."""
    mergekit()
    folders, statistics = inputs()
    runs = in_turns(lambda: our_process(folders, statistics), lambda: mergekit_process(folders))
    shutil.rmtree(HOME / "work")
    return runs


@benchmark(
    "merge-time",
    "merge and first version, s",
    f"{peer.MERGEKIT} mergekit-moe, random gates",
    ">=",
    2.0,
    SHAPES,
    "mergekit",
)
def merge_time() -> list[Pair]:
    return [(our.seconds, their.seconds) for our, their in processes()]


@benchmark(
    "merge-memory",
    "the same, anonymous memory",
    f"{peer.MERGEKIT} mergekit-moe, random gates",
    ">=",
    3.0,
    SHAPES,
    "mergekit",
)
def merge_memory() -> list[Pair]:
    return [(our.anonymous, their.anonymous) for our, their in processes()]


@benchmark("merge-memory-bound", "the same", "400 MB + largest tensor x (D + 1)", "<=", 1.0, SHAPES, "mergekit")
def merge_memory_bound() -> list[Pair]:
    bound = ALLOWANCE + SHAPE.largest_bytes * (EXPERTS + 1)
    return [(our.anonymous, bound) for our, _ in processes()]


def publish(folders: list[Path], statistics: list[Path]) -> float:
    """Seconds from the experts' folders to the version's, in this process."""
    store = ours.Store(emptied(HOME / "work"))

    def work() -> None:
        body = ours.merge(store, folders)
        ours.publish(store, "1", store.blobs.path(body.sha256), folders, statistics)

    return seconds(work)


def cat(folders: list[Path]) -> float:
    """Seconds of `cat` to copy the experts' weights into one file on the disk."""
    target = emptied(HOME / "work") / "out"
    command = ["/bin/cat", *(str(folder / "model.safetensors") for folder in folders)]

    def work() -> None:
        with target.open("wb") as out:
            subprocess.run(command, check=True, stdout=out)  # noqa: S603  # our own command
            os.fsync(out.fileno())

    return seconds(work)


@benchmark("merge-bytes", "merge and first version, bytes of experts/s", "cat of the experts, fsync", ">=", 0.6, SHAPES)
def merge_bytes() -> list[Pair]:
    folders, statistics = inputs()
    runs = in_turns(lambda: publish(folders, statistics), lambda: cat(folders))
    shutil.rmtree(HOME / "work")
    return runs
