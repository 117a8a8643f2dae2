"""A pass on the nodes of the owner's own cluster, which see the worker's files under the same paths."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
import transformers
from ray.exceptions import RayActorError, RayError

from moerge import __version__
from moerge.errors import MoergeError
from moerge.memory.machine import free_for
from moerge.memory.room import Slots, room_for
from moerge.models.dense_files import Dense
from moerge.statistics.passes import Pass, RouterPass, need_of
from moerge_proto.statistics_file import StatisticsSettings

_MOUNT = "mount the folders of `expert` and `home` on every node, under the paths of the worker's machine"
_INSTALL = "install the same versions on every node, because others give other sums; then start Ray there again"


@dataclass(frozen=True)
class NodePass:
    """A pass for any node.

    Attributes:
        work: the pass; its paths are absolute.
        settings: of the batches.
        files: path -> size and modification time of each file that a node reads, as the worker sees it.
        versions: package -> the worker's version.
    """

    work: Pass
    settings: StatisticsSettings
    files: dict[Path, tuple[int, int]]
    versions: dict[str, str]

    @classmethod
    def of(cls, work: Pass, settings: StatisticsSettings) -> Self:
        models: list[Dense] = [work.expert, work.body] if isinstance(work, RouterPass) else [work.expert]
        paths = {file for model in models for file in model.checkpoint.files}
        paths.add(work.expert.folder / "config.json")
        return cls(work, settings, {path: _seen(path) for path in sorted(paths)}, versions())

    @property
    def device(self) -> str:
        return self.work.device

    def here(self) -> Pass:
        """The pass on this node.

        Raises:
            MoergeError: names the node, which sees other files, or has other versions or too little memory.
        """
        node = f"node {socket.gethostname()}"
        try:
            for path, seen in self.files.items():
                require_same(path, seen)
            require_versions(self.versions)
            room_for(need_of(self.work, self.settings), self.settings, free_for(self.device), Slots())
        except MoergeError as error:
            where = f"{node}: {error.where}" if error.where else node
            raise MoergeError(error.what, where=where, todo=error.todo) from error
        return self.work


def _seen(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, int(status.st_mtime)  # some network file systems have no fractions


def require_same(path: Path, seen: tuple[int, int]) -> None:
    """Require a file of this size and modification time.

    Raises:
        MoergeError: it is missing, or another one.
    """
    try:
        problem = None if _seen(path) == seen else "not the worker's file: its size or modification time differs"
    except OSError as error:
        problem = f"the worker's file isn't readable here: {error.strerror}"
    if problem is not None:
        raise MoergeError(problem, where=str(path), todo=_MOUNT)


def require_folder(path: Path) -> None:
    """Require the folder of the journal, for saved hidden states."""
    if not path.is_dir():
        where = f"node {socket.gethostname()}: {path}"
        raise MoergeError("the worker's folder isn't readable here", where=where, todo=_MOUNT)


def versions() -> dict[str, str]:
    """The versions that decide a pass's integers; torch's without the kind of its build, such as "+cpu"."""
    torch_version = str(torch.__version__).partition("+")[0]
    return {"moerge": __version__, "torch": torch_version, "transformers": transformers.__version__}


def require_versions(expected: dict[str, str]) -> None:
    """Require the worker's versions.

    Raises:
        MoergeError: one differs.
    """
    for name, version in versions().items():
        if version != expected[name]:
            raise MoergeError(f"{name} is {version}; the worker's is {expected[name]}", todo=_INSTALL)


def not_started(error: RayError) -> MoergeError | None:
    """The error of an actor whose node lacks a package; None: the actor was lost."""
    if not (isinstance(error, RayActorError) and error.actor_init_failed):
        return None
    text = str(error).strip()
    node = re.search(r"\bip=([\w.:]+)", text)
    where = f"node {node[1]}" if node else "Ray"
    return MoergeError(f"a Ray actor can't start: {text.splitlines()[-1]}", where=where, todo=_INSTALL)
