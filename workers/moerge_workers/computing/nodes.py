"""A pass on the nodes of the owner's own cluster: its files, versions and memory there."""

import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
import transformers
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.filesize import decimal

from moerge import __version__
from moerge.errors import MoergeError
from moerge.memory.machine import free_for
from moerge.memory.room import Slots, room_for
from moerge.models.dense_files import DenseFiles, DenseTrunk
from moerge.models.expert_folder import expert_files
from moerge.statistics.passes import Pass, RouterPass, need_of
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.computing.copies import Original, Reader, Source, here

_TELL_SECONDS = 60.0
_ANSWER_SECONDS = 1.0
_AT_ONCE = 16  # reads of the nodes


@dataclass(frozen=True)
class _Remote:
    """The source of the files, called from another node."""

    reader: Any

    def sha256(self, path: Path) -> str:
        return str(ray.get(self.reader.sha256.remote(path)))

    def piece(self, path: Path, start: int) -> bytes:
        piece: bytes = ray.get(self.reader.piece.remote(path, start))
        return piece

    def tell(self, host: str, path: Path, done: int, total: int) -> None:
        self.reader.tell.remote(host, path, done, total)


@dataclass(frozen=True)
class NodePass:
    """A pass for any node.

    Attributes:
        work: the pass on the worker's machine.
        files: "expert" and "trunk" -> their files.
        source: reads them on the worker's machine.
        settings: of the batches.
        build: versions on the worker's machine.
    """

    work: Pass
    files: dict[str, Original]
    source: Source
    settings: StatisticsSettings
    build: dict[str, str]

    @property
    def device(self) -> str:
        return self.work.device

    def here(self) -> Pass:
        """The pass with the files of this node.

        Raises:
            MoergeError: names the node; it has other versions, too little memory or disk, or can't get the files.
        """
        node = f"node {socket.gethostname()}"
        try:
            require_build(self.build)
            work = self._copied()
            require_memory(work, self.settings)
        except MoergeError as error:
            where = f"{node}: {error.where}" if error.where else node
            raise MoergeError(error.what, where=where, todo=error.todo) from error
        return work

    def _copied(self) -> Pass:
        try:
            places = {name: here(file, self.source) for name, file in self.files.items()}
        except OSError as error:
            todo = "free space there, start Ray there with another XDG_CACHE_HOME, or put the files on shared storage"
            problem = f"can't write a copy of the pass's files: {error.strerror or error}"
            raise MoergeError(problem, where=str(error.filename or "disk"), todo=todo) from error
        expert = DenseFiles(places["expert"])
        if isinstance(self.work, RouterPass):
            return replace(self.work, expert=expert, trunk=DenseTrunk(places["trunk"], expert))
        return replace(self.work, expert=expert)


def build() -> dict[str, str]:
    """The versions that decide a pass's integers; torch's without the kind of its build, such as "+cpu"."""
    return {
        "moerge": __version__,
        "torch": str(torch.__version__).partition("+")[0],
        "transformers": transformers.__version__,
    }


def require_build(expected: dict[str, str]) -> None:
    """Require the worker's versions.

    Raises:
        MoergeError: one differs.
    """
    for name, version in build().items():
        if version != expected[name]:
            todo = "install the same versions on every node, because others give other sums; then start Ray there again"
            raise MoergeError(f"{name} is {version}; the worker's is {expected[name]}", todo=todo)


def not_started(error: RayError) -> MoergeError | None:
    """The error of an actor that can't start, because its node lacks a package; None: of one that was lost."""
    if not (isinstance(error, RayActorError) and error.actor_init_failed):
        return None
    told = str(error).strip()
    node = re.search(r"\bip=([\w.:]+)", told)
    todo = "install moerge and the worker's versions of its packages on every node, then start Ray there again"
    where = f"node {node[1]}" if node else "Ray"
    return MoergeError(f"a Ray actor can't start: {told.splitlines()[-1]}", where=where, todo=todo)


def require_memory(work: Pass, settings: StatisticsSettings) -> None:
    """Require that one slot of a pass fits into this machine, or its GPU, with the hidden states of a shard.

    Raises:
        MoergeError: it doesn't; names the options to change.
    """
    room_for(need_of(work, settings), settings, free_for(work.device), Slots())


def originals(work: Pass) -> dict[str, Original]:
    """Field of a pass -> the files that it needs there."""
    files = {"expert": Original.of(work.expert.folder, expert_files(work.expert).values())}
    if isinstance(work, RouterPass):
        path = work.trunk.checkpoint.path
        files["trunk"] = Original.of(path, [path]) if path.is_file() else files["expert"]  # in a check, the expert's
    return files


class Nodes:
    """A pass's files for all nodes of the connected cluster.

    Attributes:
        work: the pass for any node.
    """

    def __init__(self, work: Pass, settings: StatisticsSettings, say: Callable[[str], None]) -> None:
        named = originals(work)
        paths = [file.path for item in named.values() for file in item.files]
        this = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        kind: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Reader)
        self._reader = kind.options(max_concurrency=_AT_ONCE, scheduling_strategy=this).remote(paths)
        self._say, self._said, self._told = say, set[tuple[str, Path]](), time.monotonic()
        self.work = NodePass(work, named, _Remote(self._reader), settings, build())

    def tell(self) -> None:
        """Say which files are copied to which nodes: at the begin of a copy, and its progress every minute."""
        try:
            result = ray.get(self._reader.copies.remote(), timeout=_ANSWER_SECONDS)
        except (GetTimeoutError, RayError):
            return
        late = time.monotonic() - self._told >= _TELL_SECONDS
        for (host, path), (done, total) in result.items():
            if (host, path) not in self._said:
                self._say(f"node {host} doesn't have {path} of this machine; it gets a copy, {decimal(total)}")
            elif late and done < total:
                self._say(f"node {host} has {decimal(done)} of {decimal(total)} of {path}")
            self._said.add((host, path))
        if late:
            self._told = time.monotonic()
