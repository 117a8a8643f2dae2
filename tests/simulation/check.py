"""Checks at the end: the model's state, bit for bit; no orphan; nothing half-written."""

import hashlib
from contextlib import closing
from functools import cache
from pathlib import Path

from sqlalchemy import select

from moerge.files import file_sha256
from moerge.models.bounds import feature_gains
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import expert_files
from moerge.models.families import EMBEDDING
from moerge.models.reader import Checkpoint
from moerge.routers.solve import solve_layers
from moerge.versions.file_plans import FilePlan, body_files, expert_file, router_file
from moerge_coordinator.settings import read_settings
from moerge_coordinator.storage.database import open_database
from moerge_coordinator.storage.references import needed
from moerge_coordinator.storage.tables import ShardRow, UploadRow
from moerge_proto.experts import ExpertState
from moerge_proto.options import SolveOptions
from moerge_proto.statistics_file import StatisticsFile
from simulation.model import SHARDS, Key, Part
from simulation.operations import Run, experts, sums
from support.statistics import manifest_of, written
from support.versions import body_file


class _Digest:
    """A file that keeps only its SHA-256."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return len(data)


def require_all(run: Run) -> None:
    """Compares the running coordinator with the model; then, after it stopped, its disk."""
    _require_state(run)
    run.world.stop()
    run.world.start()  # what starting sweeps is swept
    _require_state(run)
    run.world.stop()
    _require_disk(run)


def _require_state(run: Run) -> None:
    model = run.model
    with run._as(None) as client:
        states = {row.digest: row.state for row in client.experts()}
        for domain, digest in run.digests.items():
            expected = ExpertState.READY if domain in model.ready else ExpertState.WITHDRAWN
            assert states[digest] is expected, domain
        body = client.current_body()
        assert (run._domains(body.experts) if body else None) == model.body
        assert body is None or (body.retired is not None) == (model.body in model.retired)
        parts = {row.digest: row for row in client.contributions()}
        assert len(parts) == len(model.parts)
        for part, state in model.parts.items():
            row = parts[run.part_digests[part]]
            problem = "active" if row.active else "withdrawn" if row.withdrawn else "superseded"
            assert problem == state, part
        versions = list(client.versions())
        assert [version.number for version in versions] == list(range(1, len(model.versions) + 1))
        for version, made in zip(versions, model.versions, strict=True):
            assert tuple(version.lineage.domains) == made.key.domains
            assert set(version.lineage.contributions) == {run.part_digests[part] for part in made.key.parts}
            assert (version.retired is not None, version.withheld is not None) == (made.retired, made.withheld), version
            files = {file.name: file.sha256 for file in version.files}
            for name, sha256 in _weights(made.key).items():
                assert files[name] == sha256, f"version {version.number}: {name}"
        aliases = {alias.name: alias.version for alias in client.aliases()}
        assert aliases.get("champion") == (model.champion[-1] if model.champion else None)


@cache
def _weights(key: Key) -> dict[str, str]:
    """Name -> SHA-256 of a version's weights, computed by the library alone."""
    folder = next(iter(experts().values())).parent
    dense = [experts()[domain] for domain in key.body]
    path = body_file(dense, folder / f"body-{'-'.join(key.body)}")
    body = DenseBody(path, DenseFiles(dense[0]))
    config, family, layers = body.config, body.family, body.config.num_hidden_layers
    plans = body_files(body, "", file_sha256(path))
    for slot, domain in enumerate(key.domains):
        plans.append(expert_file(Checkpoint(experts()[domain]), family, layers, slot, ""))
    files = [_statistics(part, folder) for part in sorted(key.parts)]
    routers, _ = solve_layers(files, key.domains, feature_gains(body), SolveOptions(ridge_lambda=key.ridge_lambda))
    shape = (len(key.domains), config.hidden_size)
    plans.append(router_file(lambda: routers, layers, shape, family, body.checkpoint.specs[EMBEDDING].dtype, ""))
    return {plan.name: _sha256(plan) for plan in plans}


def _statistics(part: Part, folder: Path) -> StatisticsFile:
    content = sums(part.domain, part.variant)
    path = folder / f"part-{part.domain}-{part.variant}"
    return StatisticsFile(written(path, manifest_of(content, len(SHARDS[part.variant]), domain=part.domain), content))


def _sha256(plan: FilePlan) -> str:
    return plan.write(_Digest())  # type: ignore[arg-type]  # it is only written to


def _require_disk(run: Run) -> None:
    home = run.world.home
    with closing(open_database(read_settings(home).database)) as database, database.reading() as session:
        wanted, uploads = needed(session), set(session.scalars(select(UploadRow.id)))
        shards = {(row.body, row.domain, row.shard): row.contribution for row in session.scalars(select(ShardRow))}
    kept = run.world.kept()
    assert not wanted - kept.keys(), f"missing blobs: {wanted - kept.keys()}"
    assert not kept.keys() - wanted, f"orphans: {kept.keys() - wanted}"
    assert all(name == content for name, content in kept.items()), "an altered blob"
    active = {part for part, state in run.model.parts.items() if state == "active"}
    assert len(shards) == sum(len(SHARDS[part.variant]) for part in active)
    for part in active:
        assert sum(shard == run.part_digests[part] for shard in shards.values()) == len(SHARDS[part.variant])
    _require_folders(run, home, set(map(str, uploads)))


def _require_folders(run: Run, home: Path, uploads: set[str]) -> None:
    assert not [path for path in home.rglob(".*") if path.name != ".lock"]
    kept = {path.name for path in (home / "experts").glob("*")}
    purged = {run.digests[domain] for domain in run.model.purged if domain not in run.model.ready}
    assert not kept & purged
    assert all(path.name in expert_files(DenseFiles(experts()[d])) for d, e in run.digests.items() if e in kept
               for path in (home / "experts" / e).iterdir())  # fmt: skip
    if not (home / "blobs").is_dir():  # it is a store's cache then, and versions are pulled
        return
    assert list((home / "blobs" / "incoming").glob("*")) == []
    assert list((home / "uploads" / "incoming").glob("*")) == []
    assert {path.name for path in (home / "uploads").glob("*")} - {"incoming"} <= uploads
    blobs = {path.name: path for path in (home / "blobs").glob("??/*")}
    live = {str(number) for number, made in enumerate(run.model.versions, start=1) if not made.retired}
    assert {path.name for path in (home / "versions").glob("*")} == live
    for number in live:
        for path in (home / "versions" / number).iterdir():
            assert path.stat().st_ino == blobs[file_sha256(path)].stat().st_ino
