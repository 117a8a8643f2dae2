"""Backups of a home: a snapshot of its databases, its settings, and the blobs that they need.

A folder is incremental: its blobs stay, and `backup.json`, written last, names the valid databases.

    backup.json                     contents
    databases-<id>/*.sqlite         and the settings
    blobs/<first two digits>/<digest>
"""

import hashlib
import os
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Literal

from pydantic import ValidationError

from moerge.blobs.local import LocalBlobs
from moerge.errors import MoergeError
from moerge.files import atomic_file, file_sha256, private_folder, require_locks, sync_folder
from moerge.progress import Progress, Tracker
from moerge_coordinator.domain import version_keys
from moerge_coordinator.operation.verify import blob_file, folders, required_blobs, verify
from moerge_coordinator.settings import FILE, Settings, read_settings
from moerge_coordinator.storage.database import open_database, utc_now
from moerge_coordinator.storage.version_key import keep_public_key
from moerge_proto.digests import Digest
from moerge_proto.messages import Message

CONTENTS = "backup.json"
_ATTEMPTS = 5
_PIECE = 2**22


class Backup(Message):
    """A backup's contents. `folder` holds `databases`, file name -> SHA-256; the settings count as one."""

    format: Literal[1] = 1
    made: datetime
    folder: str
    databases: dict[str, Digest]
    blobs: list[Digest]


class _ChangedError(Exception):
    """The coordinator removed a blob after its database was copied."""


def back_up(settings: Settings, target: Path, progress: Progress) -> Backup:
    """Backs up a home into a folder, or into one file if `target` ends in .tar; the coordinator may serve meanwhile."""
    _database(settings)
    write = _into_tar if target.suffix == ".tar" else _into_folder
    made = write(settings, target, progress)
    settings.backed_up.touch()
    return made


def _into_tar(settings: Settings, target: Path, progress: Progress) -> Backup:
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=settings.home) as folder:  # same disk, so blobs are links
        made = _into_folder(settings, Path(folder), progress)
        with (
            atomic_file(target, private=True) as out,
            tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            total = sum(path.stat().st_size for path in paths)
            with progress.track(f"writing {target.name}", total, "B") as tracker:
                for path in paths:
                    tar.add(path, path.relative_to(folder), recursive=False)
                    tracker.advance(path.stat().st_size)
    return made


def _into_folder(settings: Settings, target: Path, progress: Progress) -> Backup:
    if target.exists() and not (target.is_dir() and all(map(_is_ours, target.iterdir()))):
        todo = "name a new folder, or an earlier backup"
        raise MoergeError("exists, but is not a backup", where=str(target), todo=todo)
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    for place in (settings.home, target):
        require_locks(place)
    for _ in range(_ATTEMPTS):
        folder = target / f"databases-{secrets.token_hex(4)}"
        try:
            made = _copied(settings, target, folder, progress)
        except _ChangedError:
            continue
        with atomic_file(target / CONTENTS, private=True) as out:
            out.write(made.model_dump_json(indent=1).encode())
        _prune(target, made)
        return made
    raise MoergeError("blobs were removed repeatedly during the copy", where=str(target), todo="run it again later")


def _is_ours(path: Path) -> bool:
    return path.name in (CONTENTS, "blobs") or path.name.startswith(("databases-", f".{CONTENTS}."))


def _copied(settings: Settings, target: Path, folder: Path, progress: Progress) -> Backup:
    """Copies databases, then blobs. First the workflows', so that the other has all results of finished ones."""
    private_folder(folder)
    own = _database(settings)
    for database in (settings.home / "workflows.sqlite", own):
        copy_database(database, folder / database.name)
    shutil.copyfile(settings.home / FILE, folder / FILE)
    copies = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    with closing(open_database(folder / own.name)) as copy, copy.reading() as session:
        digests = sorted(required_blobs(session))
    copies[own.name] = file_sha256(folder / own.name)
    blobs = LocalBlobs(settings.home / "blobs")
    private_folder(target / "blobs")
    new = [digest for digest in digests if not (target / blob_file(digest)).is_file()]
    try:
        total = sum(blobs.path(digest).stat().st_size for digest in new)
        with progress.track(f"backing up {len(new)} of {len(digests)} blobs", total, "B") as tracker:
            for digest in new:
                _copy_blob(blobs.path(digest), target / blob_file(digest), digest, tracker)
    except FileNotFoundError as error:
        shutil.rmtree(folder)
        if _is_required(settings, Path(str(error.filename)).name):
            todo = f"run: moerge coordinator verify {quote(str(settings.home))}"
            raise MoergeError("a blob is missing", where=str(error.filename), todo=todo) from error
        raise _ChangedError from error
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.fsync(file.fileno())
    sync_folder(folder)
    sync_folder(target)
    return Backup(made=utc_now(), folder=folder.name, databases=copies, blobs=digests)


def copy_database(source: Path, target: Path) -> None:
    """Copies a snapshot through SQLite's backup interface, even with concurrent writers or after a killed one."""
    if not source.is_file():
        return
    address = f"{source.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def _is_required(settings: Settings, digest: str) -> bool:
    with closing(open_database(settings.database)) as database, database.reading() as session:
        return digest in required_blobs(session)


def _copy_blob(source: Path, target: Path, digest: str, tracker: Tracker) -> None:
    """Makes a hard link, which only the disk can alter, or on another disk a checked copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    size = source.stat().st_size
    try:
        os.link(source, target)
        tracker.advance(size)
        return
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or one without links
        content = hashlib.sha256()
    with source.open("rb") as file, atomic_file(target) as out:
        for piece in iter(partial(file.read, _PIECE), b""):
            content.update(piece)
            out.write(piece)
            tracker.advance(len(piece))
        if content.hexdigest() != digest:
            raise MoergeError(f"its SHA-256 is {content.hexdigest()}", where=str(source), todo="verify the home")
    target.chmod(0o444)


def _prune(target: Path, made: Backup) -> None:
    """Removes files needed only by earlier backups."""
    for folder in target.glob("databases-*"):
        if folder.name != made.folder:
            shutil.rmtree(folder)
    kept = set(made.blobs)
    for path in (target / "blobs").glob("??/*"):
        if path.name not in kept:
            path.unlink()


def restore(source: Path, home: Path, progress: Progress) -> Backup:
    """Restores a home from a backup; verifies it before it appears. A damaged backup leaves no home."""
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise MoergeError("is not empty", where=str(home), todo="name a new folder")
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as temporary:
        unpacked = _unpacked(source, Path(temporary) / "backup") if source.is_file() else source
        try:
            made = Backup.model_validate_json((unpacked / CONTENTS).read_bytes())
        except (OSError, ValidationError) as error:
            todo = "name a backup by `moerge coordinator backup`"
            raise MoergeError(f"not a complete backup: {error}", where=str(unpacked / CONTENTS), todo=todo) from error
        fresh = Path(temporary) / "home"
        fresh.mkdir(mode=0o700)
        _fill(unpacked, made, fresh, progress)
        _require_whole(fresh, progress)
        fresh.replace(home)
    sync_folder(home.parent)
    return made


def _unpacked(source: Path, target: Path) -> Path:
    try:
        with tarfile.open(source) as tar:
            tar.extractall(target, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise MoergeError(f"can't be unpacked: {error}", where=str(source)) from error
    return target


def _fill(source: Path, made: Backup, home: Path, progress: Progress) -> None:
    """Copies everything into the home, and recreates its folders of links."""
    for name, digest in made.databases.items():
        path = source / Path(made.folder).name / Path(name).name
        if not path.is_file() or file_sha256(path) != digest:
            raise MoergeError("missing or altered", where=str(path), todo="use another backup")
        shutil.copyfile(path, home / Path(name).name)
    try:
        total = sum((source / blob_file(digest)).stat().st_size for digest in made.blobs)
        with progress.track(f"restoring {len(made.blobs)} blobs", total, "B") as tracker:
            for digest in made.blobs:
                _copy_blob(source / blob_file(digest), home / blob_file(digest), digest, tracker)
    except FileNotFoundError as error:
        raise MoergeError("missing", where=str(error.filename), todo="use another backup") from error
    blobs = LocalBlobs(home / "blobs")
    with closing(open_database(read_settings(home).database)) as database, database.reading() as session:
        if (key := version_keys.active(session)) is not None:
            keep_public_key(home, key.public_key)
        for place, (_, files) in folders(session).items():
            for name, digest in files.items():
                blobs.link(digest, home / place / name)


def _require_whole(home: Path, progress: Progress) -> None:
    settings = read_settings(home)
    with closing(open_database(settings.database)) as database:
        damage = [item for item in verify(settings, database, LocalBlobs(home / "blobs"), progress) if item.damage]
    if damage:
        problem = f"{damage[0].what}, needed by {', '.join(damage[0].needed_by)}; {len(damage)} findings in total"
        raise MoergeError(problem, where=damage[0].file, todo="use another backup")


def _database(settings: Settings) -> Path:
    """The home's SQLite database. The error for PostgreSQL and S3 has the commands for a backup."""
    if isinstance(settings.database, Path) and settings.s3 is None:
        return settings.database
    todo = "run: pg_dump --format=custom --file=moerge.dump DATABASE; then copy the blobs, which never change"
    if isinstance(settings.database, Path):
        todo = f"copy the bucket's blobs, which never change, and {settings.database} while the coordinator is stopped"
    raise MoergeError("use PostgreSQL's own tools to back it up", where="database", todo=todo)
