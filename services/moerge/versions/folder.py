"""Planned files in a new folder."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from moerge.errors import MoergeError
from moerge.files import atomic_file, linked, sync_folder
from moerge.versions.file_plan import FilePlan


def write_folder(
    files: Sequence[FilePlan],
    folder: Path,
    written: Callable[[FilePlan], None] = lambda file: None,
    earlier: Mapping[str, Path] = MappingProxyType({}),
) -> Path:
    """Writes files into a folder, new or empty, which appears whole (law 10), and returns it.

    Args:
        written: called after each file.
        earlier: key of a planned file -> an existing file of that content, which is linked instead of written.

    Raises:
        MoergeError: the folder is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise MoergeError("already exists", where=str(folder), todo="name a new folder, or remove this one")
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a killed run
    part.mkdir(parents=True)
    for file in files:
        if file.key not in earlier or not linked(earlier[file.key], part / file.name):
            with atomic_file(part / file.name) as out:
                file.write(out)
        written(file)
    if folder.is_dir():
        folder.rmdir()
    os.rename(part, folder)
    sync_folder(folder.parent)
    return folder
