"""A version as a folder of one's own, complete or untouched."""

import ctypes
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.files import atomic_file, file_sha256, sync_folder
from moerge.progress import Progress
from moerge_proto.messages import FileEntry
from moerge_proto.versions import Version

CARD_FILE = "README.md"
MARK = "moerge.json"
_RENAME_EXCHANGE = 2
_HERE = -100  # AT_FDCWD


def pull(client: Client, version: Version, folder: Path, progress: Progress) -> int:
    """Makes `folder` the version's files and nothing else; returns how many bytes were fetched, without the card.

    Files that it has already, from an earlier pull, are linked into the new folder, which then takes its place. The
    model card is the coordinator's, with number, date and scores; every other file is checked against its digest.

    Raises:
        MoergeError: the folder holds something else, another pull works on it, or the version is not served.
    """
    folder = folder.absolute()
    if folder.exists() and not (folder / MARK).is_file():
        todo = "name a folder that does not exist, or one that was pulled before"
        raise MoergeError("is there, and no pulled version", where=str(folder), todo=todo)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.part")
    lock = FileLock(folder.with_name(f".{folder.name}.lock"), blocking=False)
    try:
        with lock:
            files: list[FileEntry] = [file for file in version.files if file.name != CARD_FILE]
            _take_over(folder, partial, files, progress)
            path = f"/v1/versions/{version.number}/files"
            title = f"fetching version {version.number}"
            fetched = client.download(path, files, partial, progress, title=title)
            with atomic_file(partial / CARD_FILE) as out:
                out.write(client.version_card(version.number).encode())
            _remove_others(partial, {file.name for file in version.files})
            sync_folder(partial)
            _exchange(partial, folder)
    except Timeout as error:
        raise MoergeError("another pull works on this folder", where=str(folder), todo="wait for it") from error
    return fetched


def _take_over(folder: Path, partial: Path, files: Sequence[FileEntry], progress: Progress) -> None:
    """Links what the folder has already into the new one, under the names that it has there."""
    partial.mkdir(exist_ok=True)
    wanted = {file.sha256: file for file in files}
    old = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    with progress.track("checking what is here", sum(path.stat().st_size for path in old), "B") as tracker:
        for path in old:
            digest = file_sha256(path)
            tracker.advance(path.stat().st_size)
            for file in (each for each in wanted.values() if each.sha256 == digest):
                target = partial / file.name
                if not target.exists():
                    _link(path, target)


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK):
            raise
        shutil.copyfile(path, target)


def _remove_others(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


def _exchange(new: Path, folder: Path) -> None:
    """Puts the new folder in the old one's place, at once where the system can, and removes the old one."""
    if not folder.exists():
        new.replace(folder)
    elif _renameat2(new, folder):
        shutil.rmtree(new)
    else:  # for a moment there is no folder; after a crash in it the new one lies beside it, complete
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.replace(old)
        new.replace(folder)
        shutil.rmtree(old)
    sync_folder(folder.parent)


def _renameat2(new: Path, folder: Path) -> bool:
    """Exchanges two names (Linux); False where the system or the file system can't."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    return bool(call(_HERE, os.fsencode(new), _HERE, os.fsencode(folder), _RENAME_EXCHANGE) == 0)
