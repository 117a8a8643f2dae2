"""A coordinator on S3 reads weights and sums in ranges, and publishes the same bytes as from local files."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from moerge.blobs.s3 import S3
from moerge.client.register import register
from moerge.files import file_sha256
from moerge.merging.local import local_body, local_version
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, dense_folder, file_digests, is_weights
from moerge.versions.folder import write_folder
from moerge.versions.plan import plan_version
from moerge_proto.experts import NewExpert
from moerge_proto.messages import FileEntry
from support.federation import SILENT, Federation, federation_of, honest, honest_body, send
from support.models import adapter
from support.servers import settings
from support.statistics import written


def _empty(federation: Federation) -> None:
    """Empties the cache."""
    for folder in (federation.server.home / "cache").glob("??"):
        shutil.rmtree(folder)


def _weights(files: Iterable[FileEntry]) -> dict[str, str]:
    return {file.name: file.sha256 for file in files if is_weights(file.name)}


def local_files(federation: Federation, folder: Path, sums: Sequence[Path], routers: Sequence[Path]) -> dict[str, str]:
    """The weights of the same version made from local files: name -> SHA-256."""
    experts = [DenseExpert(member.domain, member.folder, member.name) for member in federation.members.values()]
    body = local_body(experts, folder / "body", "regmean", sums)
    version = write_folder(
        plan_version(*local_version(experts, body, routers, head="average")).files, folder / "version"
    )
    return {path.name: file_sha256(path) for path in version.iterdir() if is_weights(path.name)}


def test_a_coordinator_on_s3_publishes_the_local_bytes(s3: S3, tmp_path: Path) -> None:
    with federation_of(tmp_path, "law", settings=settings(None, s3)) as federation:
        base = federation.members["law"]
        base.allow()
        member = federation.join("art", adapter(tmp_path / "art", base.folder, seed=2))
        member.folder = dense_folder(DenseFiles(member.folder), tmp_path / "dense")
        _empty(federation)
        new = NewExpert(domain="art", files=file_digests(DenseFiles(member.folder)))
        register(member.client, DenseFiles(member.folder), new, SILENT, adapter=tmp_path / "art")
        sums, routers = [], []
        for item in federation.members.values():
            sums.append(written(tmp_path / f"body-{item.domain}", *honest_body(item)))
            send(item, sums[-1])
        _empty(federation)
        body = federation.merge(method="regmean")
        for item in federation.members.values():
            routers.append(written(tmp_path / f"router-{item.domain}", *honest(federation.server, item, body)))
            send(item, routers[-1])
        _empty(federation)
        version = federation.solve()
        held = {path.name for path in (federation.server.home / "cache").glob("??/*")}
        experts = [
            digest for domain in federation.members for digest in _weights(federation.expert(domain).files).values()
        ]
        assert not held & {*map(file_sha256, (*sums, *routers)), *_weights(body.files).values(), *experts}
        assert [path for path in (federation.server.home / "experts").rglob("*") if is_weights(path.name)] == []
        assert _weights(version.files) == local_files(federation, tmp_path, sums, routers)
