"""Downloads of versions into folders."""

import ctypes
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from functools import partial as partial_of
from pathlib import Path

import httpx
from filelock import Timeout
from rich.filesize import decimal

from moerge.client.client import Client
from moerge.client.signatures import (
    expected_fingerprint,
    folder_provenance,
    parsed,
    read_provenance,
    read_signature,
    require_key,
    require_owners,
    require_served,
    require_valid,
)
from moerge.errors import CoordinatorError, MoergeError
from moerge.files import atomic_file, file_sha256, locked, sync_folder
from moerge.progress import Progress
from moerge_proto.digests import sha256_hex
from moerge_proto.messages import FileEntry
from moerge_proto.problems import ProblemType
from moerge_proto.provenance import Provenance
from moerge_proto.records import RECORD_FILE, read_record
from moerge_proto.version_files import CARD_FILE, expert_name, foreign_names
from moerge_proto.version_names import part_digest
from moerge_proto.version_signatures import PROVENANCE_FILE, SIGNATURE_FILE, SignedVersion
from moerge_proto.versions import Lineage, SignedCard, Version

_RENAME_EXCHANGE = 2
_HERE = -100  # AT_FDCWD
_LENGTH = 8  # of a safetensors header's length
_LONGEST_HEADER = 10**8  # as of the safetensors library
_PIECE = 2**22
_ATTEMPTS = 5
"""Pulls until a reader's grants stay the same during one."""


def pull(
    client: Client,
    version: Version,
    folder: Path,
    progress: Progress,
    key: str | None = None,
    accept_owners: Collection[str] = (),
    *,
    keep: bool = False,
    tell: Callable[[str], object] = lambda line: None,
) -> int:
    """Replaces `folder` with the version's files; returns the fetched bytes without the card.

    A reader who may not use all of a version's experts gets the part of it with those that it may. If its grants change
    meanwhile, it gets the part before or after, whole.

    Files of an earlier pull are linked into the new folder, which then replaces the old one. Every file is checked
    against the version's signature before the folder appears. The key is the one of `key`, a fingerprint or a file;
    by default that of the folder's earlier pull, if there was one. Signed rotations of that key are followed. Owners of
    the earlier pull sign with the keys that they had there, but those of `accept_owners`. `keep` keeps the earlier
    version beside the folder, as FOLDER-VERSION. `tell` gets a line about experts that leave the folder, before.

    Raises:
        MoergeError: the folder has other content, another pull uses it, the version is not served, has files with
            names that no version has, isn't signed by that key or by a revoked one, has other files or owners' keys
            than at the earlier pull, or none of its experts is granted; or `keep` would keep one that isn't granted.
    """
    is_part = version.part is not None
    for _ in range(_ATTEMPTS):
        try:
            return _pulled(client, version, folder, progress, key, accept_owners, keep, tell)
        except CoordinatorError as error:
            if is_part or error.type != ProblemType.NOT_GRANTED.urn:
                raise
            version = _part(client, version, folder)
    todo = "try again; if it happens again, ask the operator"
    raise MoergeError("your grants changed again and again", where=f"version {version.number}", todo=todo)


def _part(client: Client, version: Version, folder: Path) -> Version:
    """The part of a version that the caller may use, which the coordinator makes unless it is there."""
    try:
        made = client.version(client.wait(client.make_part(version.number)))
    except CoordinatorError as error:
        if error.type != ProblemType.NOT_GRANTED.urn or not folder.exists():
            raise
        raise MoergeError(error.what, where=str(folder), todo=f"stop using {folder}, and remove it") from error
    if made.number != version.number:
        what, todo = f"the coordinator offers {made.name} as its part", "tell its operator, and don't use the version"
        raise MoergeError(what, where=f"version {version.number}", todo=todo)
    return made


def _pulled(
    client: Client,
    version: Version,
    folder: Path,
    progress: Progress,
    key: str | None,
    accept_owners: Collection[str],
    keep: bool,
    tell: Callable[[str], object],
) -> int:
    if foreign := foreign_names(file.name for file in version.files):
        what = f"the coordinator lists files that no version has: {', '.join(map(repr, foreign))}"
        raise MoergeError(what, where=f"version {version.name}", todo="tell its operator, and don't use the version")
    folder = folder.absolute()
    if folder.exists() and not (folder / RECORD_FILE).is_file():
        todo = "name a new folder, or the folder of an earlier pull"
        raise MoergeError("exists, but is not a pulled version", where=str(folder), todo=todo)
    if not isinstance(record := read_record(folder), Lineage | None):
        what = "contains a tuned model, which no coordinator has"
        raise MoergeError(what, where=str(folder), todo="name another folder")
    earlier = read_signature(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.part")
    try:
        with locked(folder.with_name(f".{folder.name}.lock")):
            files: list[FileEntry] = [file for file in version.files if file.name != CARD_FILE]
            signed_card = client.signed_card(version.name)
            bundles, made = _require_signed(client, version, signed_card, key, earlier)
            if earlier is not None:
                require_owners(made, folder_provenance(folder, earlier), accept_owners, f"version {version.name}")
            kept = _kept(client, folder, earlier, record) if keep and earlier is not None and record else None
            if record is not None and kept is None and (line := _leaving(folder, record, earlier, version)):
                tell(line)
            _take_over(folder, partial, files, progress)
            if record is not None:
                _move_slots(client, record, version, folder, partial)
            title = f"fetching version {version.name}"
            fetched = client.download(f"/v1/versions/{version.name}/files", files, partial, progress, title=title)
            _require_named_experts(partial, version)
            with atomic_file(partial / CARD_FILE) as out:
                out.write(signed_card.card.encode())
            for name, text in bundles.items():
                with atomic_file(partial / name) as out:
                    out.write(text.encode())
            names = {*bundles, *(file.name for file in version.files)}
            for path in partial.iterdir():
                if path.name not in names:
                    path.unlink()
            sync_folder(partial)
            _exchange(partial, folder, kept)
    except Timeout as error:
        raise MoergeError("another pull is using this folder", where=str(folder), todo="wait for it") from error
    return fetched


def _require_signed(
    client: Client, version: Version, card: SignedCard, key: str | None, earlier: SignedVersion | None
) -> tuple[dict[str, str], Provenance]:
    """Signature and provenance as files, and the latter's content, after all checks of them."""
    signed = parsed(card.signature, f"version {version.name}")
    require_valid(signed, keys := list(client.version_keys()))
    if key is not None:
        require_key(signed, expected_fingerprint(key), "given one", keys)
    elif earlier is not None:
        require_key(signed, earlier.fingerprint, "one of the earlier pull into this folder", keys)
    served = {file.name: file.sha256 for file in version.files} | {CARD_FILE: sha256_hex(card.card.encode())}
    require_served(signed, version.name, served, earlier, keys)
    made = read_provenance(card.provenance, signed, f"version {version.name}")
    return {SIGNATURE_FILE: str(card.signature), PROVENANCE_FILE: str(card.provenance)}, made


def _require_named_experts(partial: Path, version: Version) -> None:
    """Requires that a part has the experts that its name is of, and no others."""
    if version.part is None:
        return
    record = read_record(partial)
    if not isinstance(record, Lineage) or part_digest(record.experts) != version.part:
        todo = "tell the coordinator's operator, and don't use the version"
        raise MoergeError("has other experts than its name says", where=f"version {version.name}", todo=todo)


def _kept(client: Client, folder: Path, earlier: SignedVersion, record: Lineage) -> Path:
    """The place of an earlier version that is kept, all of whose experts the caller may still use."""
    target = folder.with_name(f"{folder.name}-{earlier.name}")
    if target.exists():
        raise MoergeError("already exists", where=str(target), todo="remove it, or pull without `keep`")
    granted = {item.domain for item in client.usable()}
    if gone := [domain for domain in record.domains if domain not in granted]:
        what = f"`keep` would keep the MLPs of experts that aren't granted to you: {', '.join(gone)}"
        raise MoergeError(what, where=str(folder), todo="pull without `keep`")
    return target


def _leaving(folder: Path, record: Lineage, earlier: SignedVersion | None, version: Version) -> str:
    """A line about the experts of an earlier version that the new one lacks; empty if there are none."""
    if not (gone := [domain for domain in record.domains if domain not in version.lineage.domains]):
        return ""
    digests = {file.sha256 for file in version.files}
    names = [] if earlier is None else [name for name, digest in earlier.files.items() if digest not in digests]
    size = decimal(sum(path.stat().st_size for name in names if (path := folder / name).is_file()))
    return f"{folder}: {', '.join(gone)} leaves it, with {size} of files: version {version.name} doesn't have it."


def _take_over(folder: Path, partial: Path, files: Sequence[FileEntry], progress: Progress) -> None:
    """Links the folder's usable files into the new one, under their new names."""
    partial.mkdir(exist_ok=True)
    names = {file.sha256: file.name for file in files}
    old = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    with progress.track("checking existing files", sum(path.stat().st_size for path in old), "B") as tracker:
        for path in old:
            digest = file_sha256(path)
            tracker.advance(path.stat().st_size)
            if digest in names and not (target := partial / names[digest]).exists():
                _link(path, target)


def _move_slots(client: Client, record: Lineage, version: Version, folder: Path, partial: Path) -> None:
    """Makes the files of experts that are in other slots now, from the folder's files of these experts.

    Only the tensors' names differ, which are in a file's header: that is fetched. A file with another digest is left to
    the download.
    """
    files = {file.name: file for file in version.files}
    for slot, expert in enumerate(version.lineage.experts):
        name = expert_name(slot)
        if expert not in record.experts or name not in files or (partial / name).exists():
            continue
        source = folder / expert_name(record.experts.index(expert))
        if source.is_file() and source.name != name:
            path = f"/v1/versions/{version.name}/files/{name}"
            header = client.patiently(partial_of(_header, client, path, files[name].size))
            _compose(header, source, partial / name, files[name])


def _header(client: Client, path: str, size: int) -> bytes:
    """The beginning of a safetensors file at the coordinator, before its tensors; empty without ranges."""
    length = int.from_bytes(_first(client, path, _LENGTH), "little")
    return _first(client, path, min(_LENGTH + length, size, _LONGEST_HEADER))


def _first(client: Client, path: str, count: int) -> bytes:
    with client.content(path, {"Range": f"bytes=0-{count - 1}"}) as response:
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            return b""
        found = bytearray()
        for piece in response.iter_bytes():
            found += piece
            if len(found) >= count:
                break
        return bytes(found[:count])


def _compose(header: bytes, source: Path, target: Path, file: FileEntry) -> None:
    """Writes the header and the tensors of another safetensors file, if they are the content of `file`."""
    with source.open("rb") as tensors:
        begin = _LENGTH + int.from_bytes(tensors.read(_LENGTH), "little")
        if len(header) + source.stat().st_size - begin != file.size:
            return
        tensors.seek(begin)
        digest = hashlib.sha256(header)
        part = target.with_name(f".{target.name}.moved")
        with part.open("wb") as out:
            out.write(header)
            while piece := tensors.read(_PIECE):
                digest.update(piece)
                out.write(piece)
    if digest.hexdigest() == file.sha256:
        part.replace(target)
    else:
        part.unlink()


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK):
            raise
        shutil.copyfile(path, target)


def _exchange(new: Path, folder: Path, kept: Path | None) -> None:
    """Replaces the old folder, atomically if the system supports it, and removes it, or keeps it under another name."""
    if not folder.exists():
        new.replace(folder)
    elif _renameat2(new, folder):
        _remove(new, kept)
    else:  # a crash between the renames leaves only the new folder, complete, beside its place
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.replace(old)
        new.replace(folder)
        _remove(old, kept)
    sync_folder(folder.parent)


def _remove(old: Path, kept: Path | None) -> None:
    if kept is None:
        shutil.rmtree(old)
    else:
        old.replace(kept)


def _renameat2(new: Path, folder: Path) -> bool:
    """Exchanges two names (Linux); False without support of the system or the file system."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    return bool(call(_HERE, os.fsencode(new), _HERE, os.fsencode(folder), _RENAME_EXCHANGE) == 0)
