"""A coordinator on S3 reads weights and sums in ranges, and publishes the same bytes as from local files."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from moerge.blobs.s3 import S3
from moerge.client.register import register
from moerge.files import file_sha256
from moerge.fits.parts import write_parts
from moerge.merging.local_lineages import local_body, local_version
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, expert_digest, file_digests, is_weights
from moerge.versions.folder import write_folder
from moerge.versions.version_plan import plan_version
from moerge_proto.experts import Parts
from moerge_proto.messages import FileEntry
from support.federation import SILENT, Federation, federation_of, honest, send
from support.models import adapter
from support.servers import settings
from support.statistics import written


def _empty(federation: Federation) -> None:
    """Empties the cache."""
    for folder in (federation.server.home / "cache").glob("??"):
        shutil.rmtree(folder)


def _weights(files: Iterable[FileEntry]) -> dict[str, str]:
    return {file.name: file.sha256 for file in files if is_weights(file.name)}


def local_files(federation: Federation, folder: Path, routers: Sequence[Path]) -> dict[str, str]:
    """The weights of the same version made from local files: name -> SHA-256."""
    law, art = federation.members.values()
    experts = [DenseExpert("law", law.place, law.name), DenseExpert("art", folder / "parts", art.name)]
    body = local_body([], folder / "body", "seed", base=DenseExpert("seed", federation.seed))
    made = local_version(experts, body, routers, head="average", seed_heads={"art"})
    version = write_folder(plan_version(*made).files, folder / "version")
    return {path.name: file_sha256(path) for path in version.iterdir() if is_weights(path.name)}


def test_a_coordinator_on_s3_publishes_the_local_bytes(s3: S3, tmp_path: Path) -> None:
    """Of law's parts, and art's, which an adapter of the seed makes."""
    with federation_of(tmp_path, "law", settings=settings(None, s3)) as federation:
        body, lora = federation.body(), adapter(tmp_path / "art", federation.seed, 2, "up_proj", "down_proj")
        made = write_parts(DenseFiles(lora), tmp_path / "parts", own_head=False)
        digest = expert_digest(file_digests(DenseFiles(lora)))
        parts = Parts(expert=digest, body=body.digest, fitted=False, own_head=False)
        member = federation.enter(replace(federation.join("art", lora), parts=parts))
        _empty(federation)
        register(member.client, DenseFiles(made), member.new(file_digests(DenseFiles(made))), SILENT, adapter=lora)
        assert federation.expert("art").adapter is not None
        _empty(federation)
        routers = list[Path]()
        for item in federation.members.values():
            routers.append(written(tmp_path / f"router-{item.domain}", *honest(federation.server, item, body)))
            send(item, routers[-1])
        _empty(federation)
        version = federation.solve()
        held = {path.name for path in (federation.server.home / "cache").glob("??/*")}
        experts = [
            digest for domain in federation.members for digest in _weights(federation.expert(domain).files).values()
        ]
        assert not held & {*map(file_sha256, routers), *_weights(body.files).values(), *experts}
        assert [path for path in (federation.server.home / "experts").rglob("*") if is_weights(path.name)] == []
        assert _weights(version.files) == local_files(federation, tmp_path, routers)
