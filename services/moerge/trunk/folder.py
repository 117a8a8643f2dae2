"""A trunk in a folder, without a coordinator."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from moerge.files import atomic_file
from moerge.progress import NoProgress
from moerge.trunk.merge import DENSE_TRUNK_FILE, TrunkInputs, merge_trunk
from moerge.trunk.methods.registry import METHODS
from moerge_proto.digests import digest_of
from moerge_proto.messages import FileEntry
from moerge_proto.trunks import TrunkLineage, TrunkMethod, TrunkOptions


class FolderFiles:
    """Files under their own names in one folder; each is complete or absent."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._paths = folder, dict[str, Path]()

    def put(self, name: str, write: Callable[[BinaryIO], str]) -> FileEntry:
        """Writes a file."""
        path = self.folder / name
        with atomic_file(path) as out:
            sha256 = write(out)
        self._paths[sha256] = path
        return FileEntry(name=name, sha256=sha256, size=path.stat().st_size)

    def local(self, digest: str) -> Path:
        """The path of a file that was put here."""
        return self._paths[digest]


def domain_name(slot: int) -> str:
    """The domain of a slot where users' own names don't matter: d0, d1, …"""
    return f"d{slot}"


def write_trunk(
    experts: Sequence[Path],
    folder: Path,
    method: TrunkMethod = "average",
    options: TrunkOptions | None = None,
    *,
    statistics: Sequence[Path] = (),
    base: Path | None = None,
) -> Path:
    """Merges dense folders, of the domains d0, d1, …, into `folder`; returns the trunk's safetensors file.

    Args:
        experts: in order.
        options: without `base`; domains in them are d0, d1, …
        statistics: the experts' trunk contributions, for solved methods.
        base: the base model's folder, for methods that take one.
    """
    named = [digest_of({"expert": slot}) for slot in range(len(experts))]
    sent = [digest_of({"trunk contribution": slot}) for slot in range(len(statistics))]
    folders, chosen = dict(zip(named, experts, strict=True)), options or TrunkOptions()
    if base is not None:
        chosen = chosen.model_copy(update={"base": digest_of("base")})
        folders[digest_of("base")] = base
    lineage = TrunkLineage(
        method=method, options=chosen, experts=named, contributions=sent, revision=METHODS[method].revision
    )
    domains = {digest: domain_name(slot) for slot, digest in enumerate(named)}
    inputs = TrunkInputs(folders, domains, dict(zip(sent, statistics, strict=True)))
    merge_trunk(lineage, inputs, FolderFiles(folder), NoProgress())
    return folder / DENSE_TRUNK_FILE
