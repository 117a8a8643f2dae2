"""A folder of named files, for a trunk on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from moerge.files import atomic_file
from moerge_proto.messages import FileEntry


class FolderFiles:
    """A folder of named files; each is complete or absent."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._paths = folder, dict[str, Path]()

    def put(self, name: str, write: Callable[[BinaryIO], str]) -> FileEntry:
        path = self.folder / name
        with atomic_file(path) as out:
            sha256 = write(out)
        self._paths[sha256] = path
        return FileEntry(name=name, sha256=sha256, size=path.stat().st_size)

    def source(self, digest: str) -> Path:
        return self._paths[digest]
