"""Law 10: nothing half-written is ever visible; and equal content is stored once, read-only."""

import os
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moerge.blobs.local import LocalBlobs
from moerge.files import atomic_file
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.versions.file_plan import FilePlan, text_file
from moerge.versions.folder import write_folder
from moerge_proto.digests import sha256_hex


class Interrupted(Exception):  # noqa: N818  # stands for any failure
    pass


def everything_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def write_half(path: Path) -> None:
    with atomic_file(path) as out:
        out.write(b"half")
        raise Interrupted


def test_law_10_a_writer_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        write_half(tmp_path / "new")
    assert everything_below(tmp_path) == []


def test_law_10_a_writer_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"whole")
    with pytest.raises(Interrupted):
        write_half(path)
    assert path.read_bytes() == b"whole"
    assert everything_below(tmp_path) == [path]


def test_law_10_a_tensor_unlike_its_plan_leaves_no_file(tmp_path: Path) -> None:
    wrong = TensorPlan("wrong", torch.float32, (2,), lambda: torch.zeros(3))
    with pytest.raises(ValueError, match="wrong"), atomic_file(tmp_path / "file") as out:
        write_safetensors(out, [wrong])
    assert everything_below(tmp_path) == []


def test_law_10_a_version_s_folder_appears_with_its_last_file(tmp_path: Path) -> None:
    def fail(out: BinaryIO) -> str:
        out.write(b"half")
        raise Interrupted

    files = [text_file("first", "whole"), FilePlan("last", "key", fail, {})]
    with pytest.raises(Interrupted):
        write_folder(files, tmp_path / "version")
    assert not (tmp_path / "version").exists()


@pytest.mark.parametrize("kind", ["file", "blob"])
def test_law_10_content_is_on_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    data, sync, synced = b"whole", os.fsync, list[tuple[int, bool]]()
    target = tmp_path / "file" if kind == "file" else LocalBlobs(tmp_path).path(sha256_hex(data))

    def watched(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_size, target.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    if kind == "file":
        with atomic_file(target) as out:
            out.write(data)
    else:
        LocalBlobs(tmp_path).put("file", lambda out: (out.write(data), sha256_hex(data))[1])
    assert synced[0] == (len(data), False)
    assert synced[-1][1]  # the folder, when the name is there


def test_law_10_a_blob_is_whole_or_absent(tmp_path: Path) -> None:
    def write(out: BinaryIO) -> str:
        out.write(b"half")
        raise Interrupted

    with pytest.raises(Interrupted):
        LocalBlobs(tmp_path).put("file", write)
    assert everything_below(tmp_path) == []


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_blobs_are_named_by_content_and_stored_once(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("blobs")
    blobs = LocalBlobs(folder)

    def writer(data: bytes) -> str:
        entry = blobs.put("file", lambda out: (out.write(data), sha256_hex(data))[1])
        assert entry.size == len(data)
        return entry.sha256

    digests = [writer(data) for data in contents]
    assert sorted(path.name for path in everything_below(folder)) == sorted({sha256_hex(data) for data in contents})
    for digest, data in zip(digests, contents, strict=True):
        assert blobs.path(digest).read_bytes() == data
        assert blobs.path(digest).stat().st_mode & 0o777 == 0o444


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    kept = blobs.put("file", lambda out: sha256_hex(b""))
    (tmp_path / "incoming" / "leftover").write_bytes(b"half")
    blobs.sweep()
    assert [path.name for path in everything_below(tmp_path)] == [kept.sha256]
