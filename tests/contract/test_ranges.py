"""A coordinator on S3 reads weights and sums in ranges; its versions have the bytes of one on a local folder."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from moerge.blobs.local import LocalBlobs
from moerge.blobs.objects import PART, SMALL
from moerge.blobs.s3 import S3, S3Blobs
from moerge.blobs.store import Blobs
from moerge.client.register import register
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.merging.local import local_trunk, local_version
from moerge.models.expert_folder import DenseExpert, dense_folder, file_digests, is_weights
from moerge.versions.folder import write_version
from moerge.versions.plan import plan_version
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import NewExpert
from moerge_proto.messages import FileEntry
from moerge_proto.ranges import opened, read_bytes
from support.federation import SILENT, Federation, federation_of, honest, honest_trunk, send, send_trunk
from support.models import adapter
from support.servers import settings
from support.statistics import written

LARGE = os.urandom(SMALL + PART + 1)


@pytest.fixture(params=["local", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "local":
        return LocalBlobs(tmp_path / "blobs")
    return S3Blobs(request.getfixturevalue("s3"), tmp_path / "cache", 2**40)


def put(blobs: Blobs, data: bytes) -> str:
    def write(out: BinaryIO) -> str:
        out.write(data)
        return sha256_hex(data)

    return blobs.put("file", write).sha256


def test_every_range_of_a_blob_is_its_bytes(blobs: Blobs) -> None:
    file = opened(blobs.source(put(blobs, LARGE)))
    assert file.size == len(LARGE)
    for start, count in [(0, 8), (5, 2 * PART), (len(LARGE) - 3, 9), (len(LARGE), 1), (7, 0)]:
        assert read_bytes(file, start, count) == LARGE[start : start + count]
    file.close()


def test_an_absent_blob_has_no_ranges(blobs: Blobs) -> None:
    with pytest.raises(FileNotFoundError):
        blobs.source(sha256_hex(b"absent"))


def test_only_small_blobs_stay_on_disk(s3: S3, tmp_path: Path) -> None:
    blobs = S3Blobs(s3, tmp_path / "cache", 2**40)
    put(blobs, LARGE)
    small = put(blobs, LARGE[:SMALL])
    found = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [(path.name, path.stat().st_size) for path in found] == [(small, SMALL)]


def test_a_blob_removed_while_it_is_read_is_named(s3: S3, tmp_path: Path) -> None:
    blobs = S3Blobs(s3, tmp_path / "cache", 2**40)
    digest = put(blobs, b"data")
    file = opened(blobs.source(digest))
    blobs.delete(digest)
    with pytest.raises(MoergeError, match="removed") as caught:
        read_bytes(file, 0, 4)
    assert digest in caught.value.where


# --- a coordinator


def _empty(made: Federation) -> None:
    """Empties the cache."""
    for folder in (made.server.home / "cache").glob("??"):
        shutil.rmtree(folder)


def _weights(files: Iterable[FileEntry]) -> dict[str, str]:
    return {file.name: file.sha256 for file in files if is_weights(file.name)}


def local_files(made: Federation, folder: Path, sums: Sequence[Path], routers: Sequence[Path]) -> dict[str, str]:
    """The weights of the same version made from local files: name -> SHA-256."""
    own = [DenseExpert(member.domain, member.folder, member.name) for member in made.members.values()]
    trunk = local_trunk(own, folder / "trunk", "regmean", sums)
    version = write_version(plan_version(*local_version(own, trunk, routers)), folder / "version")
    return {path.name: file_sha256(path) for path in version.iterdir() if is_weights(path.name)}


def test_a_coordinator_on_s3_publishes_the_local_bytes(s3: S3, tmp_path: Path) -> None:
    with federation_of(tmp_path, "law", settings=settings(None, s3)) as made:
        base = made.members["law"]
        base.allow()
        member = made.join("art", adapter(tmp_path / "art", base.folder, seed=2))
        member.folder = dense_folder(member.folder, tmp_path / "dense")
        _empty(made)
        new = NewExpert(domain="art", files=file_digests(member.folder))
        register(member.client, member.folder, new, SILENT, adapter=tmp_path / "art")
        sums, routers = [], []
        for each in made.members.values():
            sums.append(written(tmp_path / f"trunk-{each.domain}", *honest_trunk(each)))
            send_trunk(each, sums[-1])
        _empty(made)
        trunk = made.merge(method="regmean")
        for each in made.members.values():
            routers.append(written(tmp_path / f"router-{each.domain}", *honest(made.server, each, trunk)))
            send(each, routers[-1])
        _empty(made)
        version = made.solve()
        held = {path.name for path in (made.server.home / "cache").glob("??/*")}
        experts = [digest for domain in made.members for digest in _weights(made.expert(domain).files).values()]
        assert not held & {*map(file_sha256, (*sums, *routers)), *_weights(trunk.files).values(), *experts}
        assert [path for path in (made.server.home / "experts").rglob("*") if is_weights(path.name)] == []
        assert _weights(version.files) == local_files(made, tmp_path, sums, routers)
