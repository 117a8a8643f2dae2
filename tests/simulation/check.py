"""Checks at the end: the model's state, bit for bit; no orphan; nothing half-written."""

import hashlib
from contextlib import closing
from functools import cache
from pathlib import Path

from sqlalchemy import select

from moerge.bodies.heads import HeadInputs, head_plan
from moerge.bodies.merge import SEED_HEAD_FILE
from moerge.client.client import Client
from moerge.files import file_sha256
from moerge.models.bounds import feature_gains
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import expert_files
from moerge.models.families.family import EMBEDDING, mlp_layers
from moerge.models.reader import Checkpoint
from moerge.models.writer import write_safetensors
from moerge.progress import NoProgress
from moerge.routers.solve import solve_layers
from moerge.versions.file_plan import FilePlan, body_files, mlp_files, router_file
from moerge_coordinator.operation.verify import verify
from moerge_coordinator.settings import read_settings
from moerge_coordinator.storage.database import open_database
from moerge_coordinator.storage.references import needed
from moerge_coordinator.storage.stores import stores
from moerge_coordinator.storage.tables import ComposedRow, ShardRow, UploadRow, VersionRow
from moerge_proto.contributions import Contribution
from moerge_proto.experts import ExpertState
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.version_files import HEAD_FILE
from simulation.model import READERS, REVOKED, SHARDS, Key, Made, Sent
from simulation.operations import Run, experts, head_sums, parts, seed_body_file, seed_folder, sums
from support.statistics import manifest_of, written


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
        for place, digest in run.digests.items():
            expected = ExpertState.READY if place in model.ready else ExpertState.WITHDRAWN
            assert states[digest] is expected, place
        assert client.body("current").digest == seed_body_file(model.body)[1].digest
        heads = {row.digest: row for row in client.contributions("head")}
        assert {domain: _state(heads[run.head_digests[domain]]) for domain in model.heads} == model.heads
        assert len(heads) == len(model.heads)
        sent = {row.digest: row for row in client.contributions()}
        assert len(sent) == len(model.sent)
        for item, state in model.sent.items():
            row = sent[run.sent_digests[item]]
            assert _state(row) == state, item
        versions = list(client.versions())
        assert [version.number for version in versions] == list(range(1, len(model.versions) + 1))
        for version, made in zip(versions, model.versions, strict=True):
            assert tuple(version.lineage.domains) == made.key.domains
            assert version.lineage.head.method == made.key.head
            assert set(version.lineage.contributions) == {run.sent_digests[item] for item in made.key.sent}
            assert (version.retired is not None, version.withheld is not None) == (made.retired, made.withheld), version
            files = {file.name: file.sha256 for file in version.files}
            for name, sha256 in _weights(made.key).items():
                assert files[name] == sha256, f"version {version.number}: {name}"
            _require_parts(run, client, version.number, made)
        aliases = {alias.name: alias.version for alias in client.aliases()}
        assert aliases.get("champion") == (model.champion[-1] if model.champion else None)
        grants = [(row.domain, row.reader, row.granted, row.until) for row in client.grants()]
        decided = [(item.domain, item.reader, item.end != REVOKED, run.until(item.end)) for item in model.decisions]
        assert grants == decided
        _require_log(run, client)


def _require_parts(run: Run, client: Client, number: int, made: Made) -> None:
    for domains, part in made.parts.items():
        version = client.version(name := run.name(number, domains))
        assert tuple(version.lineage.domains) == domains
        assert (version.retired is not None, version.withheld is not None) == (made.retired, part.withheld), name
        files = {file.name: file.sha256 for file in version.files}
        for file, sha256 in _weights(part.key).items():
            assert files[file] == sha256, f"version {name}: {file}"
    if made.retired or made.withheld:
        return
    sets = {run.model.granted(number, reader) for reader in READERS if reader in run.tokens} - {()}
    there = {domains for domains, part in made.parts.items() if not part.withheld} | {made.key.domains}
    listed = {tuple(part.domains): part.made for part in client.version_parts(number)}
    assert listed == {domains: domains in there for domains in sets}, f"parts of version {number}"


def _require_log(run: Run, client: Client) -> None:
    """Each version, part and decision is once in the public log."""
    logged = [(entry.kind, entry.name) for entry in client.log() if entry.kind in ("version", "grant")]
    expected = [("grant", str(number)) for number, _ in enumerate(run.model.decisions, start=1)]
    for number, made in enumerate(run.model.versions, start=1):
        expected += [("version", run.name(number, domains)) for domains in (made.key.domains, *made.parts)]
    assert sorted(logged) == sorted(expected)


def _state(row: Contribution) -> str:
    return "active" if row.active else "withdrawn" if row.withdrawn else "superseded"


@cache
def _weights(key: Key) -> dict[str, str]:
    """Name -> SHA-256 of a version's weights, computed by the library alone."""
    folder, path = next(iter(experts().values())).parent, seed_body_file(key.body)[0]
    body = DenseBody(path, DenseFiles(seed_folder(key.body)).config)
    family, layers = body.family, mlp_layers(body.config)
    plans = body_files(body, "", file_sha256(path))
    slots = [Checkpoint(parts((key.body, domain))[0]) for domain in key.domains]
    plans += mlp_files([(weights, "") for weights in slots], family, layers)
    seed_head = Checkpoint.of_file(path.with_name(SEED_HEAD_FILE))
    solved = [written(folder / f"head-{domain}", *head_sums(domain)) for domain in key.domains]
    head = head_plan(key.head, HeadInputs(slots, lambda: solved, seed_head, body, as_embedding=False))
    plans.append(FilePlan(HEAD_FILE, "", lambda out: write_safetensors(out, head), {}))
    files = [_statistics(item, folder) for item in sorted(key.sent)]
    routers, _ = solve_layers(files, key.domains, feature_gains(body), SolveOptions(ridge_lambda=key.ridge_lambda))
    dtype = body.checkpoint.specs[EMBEDDING].dtype
    plans.append(router_file(lambda: routers, feature_gains(body), layers, len(key.domains), family.host, dtype, ""))
    return {plan.name: _sha256(plan) for plan in plans}


def _statistics(item: Sent, folder: Path) -> StatisticsFile:
    content = sums(item.domain, item.variant)
    path = folder / f"item-{item.domain}-{item.variant}"
    return StatisticsFile(written(path, manifest_of(content, len(SHARDS[item.variant]), domain=item.domain), content))


def _sha256(plan: FilePlan) -> str:
    return plan.write(_Digest())  # type: ignore[arg-type]  # it is only written to


def _require_disk(run: Run) -> None:
    home, settings = run.world.home, read_settings(run.world.home)
    with closing(open_database(settings.database)) as database:
        assert not (found := verify(settings, database, stores(settings)[0], NoProgress())), found
    with closing(open_database(settings.database)) as database, database.reading() as session:
        wanted, uploads = needed(session), set(session.scalars(select(UploadRow.id)))
        made = {(row.part_of, row.sha256) for row in session.scalars(select(ComposedRow))}
        live = list(session.scalars(select(VersionRow).where(VersionRow.retired.is_(None))))
        of_parts = {(row.part_of, file.sha256) for row in live for file in row.files}
        stored = {digest for of, digest in of_parts if (of, digest) not in made}
        shards = {(row.body, row.domain, row.shard): row.contribution for row in session.scalars(select(ShardRow))}
    kept = run.world.kept()
    assert made <= of_parts, f"composed files of no part: {made - of_parts}"
    required = wanted - {digest for _, digest in made} | stored
    assert not required - kept.keys(), f"missing blobs: {required - kept.keys()}"
    assert not kept.keys() - wanted, f"orphans: {kept.keys() - wanted}"
    assert all(name == content for name, content in kept.items()), "an altered blob"
    active = {item for item, state in run.model.sent.items() if state == "active"}
    assert len(shards) == sum(len(SHARDS[item.variant]) for item in active)
    for item in active:
        assert sum(shard == run.sent_digests[item] for shard in shards.values()) == len(SHARDS[item.variant])
    _require_folders(run, home, set(map(str, uploads)))


def _require_folders(run: Run, home: Path, uploads: set[str]) -> None:
    assert not [path for path in home.rglob(".*") if path.name != ".lock"]
    kept = {path.name for path in (home / "experts").glob("*")}
    model = run.model
    assert not kept & {run.digests[place] for place in model.purged - model.ready}
    places = {digest: parts(place)[0] for place, digest in run.digests.items()}
    assert all(path.name in expert_files(DenseFiles(place)) for digest, place in places.items() if digest in kept
               for path in (home / "experts" / digest).iterdir())  # fmt: skip
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
