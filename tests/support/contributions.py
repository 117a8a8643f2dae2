"""Owners who register experts and contribute over HTTP, without Ray."""

import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from moerge.client import Client
from moerge.experts import expert_files
from moerge.files import file_sha256
from moerge.progress import LogProgress
from moerge.statistics.accumulate import ShardSums, shard_sums
from moerge.trunk.domain_model import domain_model
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import Expert, ExpertState, NewExpert
from moerge_proto.owners import NewOwner, NewToken, Role
from moerge_proto.problems import MEDIA_TYPE, Problem, ProblemType
from moerge_proto.statistics_file import Int64, Manifest, StatisticsSettings, write
from moerge_proto.trunks import Trunk
from moerge_workers.shards import batches
from support.processes import Coordinator


@dataclass(frozen=True)
class Party:
    """An owner of one domain (or of several; the first is its own name)."""

    name: str
    token: str
    client: Client
    url: str

    @property
    def domain(self) -> str:
        return self.name

    def post(self, path: str, message: object) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=message, headers=bearer(self.token), timeout=60)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def join(coordinator: Coordinator, name: str, *more_domains: str) -> Party:
    """Adds an owner. Its client is the caller's to close."""
    with coordinator.client() as operator:
        operator.add_owner(NewOwner(name=name, domains=[name, *more_domains]))
        token = operator.add_token(NewToken(role=Role.OWNER, owner=name)).secret
    return Party(name, token, coordinator.client(token), coordinator.url)


def upload(party: Party, path: Path) -> str:
    return party.client.upload(path, LogProgress(), title=path.name, compress=True).sha256


def upload_expert(party: Party, folder: Path, domain: str | None = None) -> NewExpert:
    """Uploads an expert's files; what it returns registers them."""
    paths = expert_files(folder)
    for path in paths.values():
        party.client.upload(path, LogProgress(), title=path.name)
    files = {name: file_sha256(path) for name, path in paths.items()}
    return NewExpert(domain=domain or party.domain, files=files, license="Apache-2.0")


def checked(client: Client, expert: Expert) -> Expert:
    """The expert once the coordinator has looked at its weights."""
    for _ in range(600):
        if expert.state is not ExpertState.RECEIVED:
            return expert
        time.sleep(0.05)
        expert = client.expert(expert.digest)
    raise AssertionError(f"expert {expert.digest} is never looked at")


def register(party: Party, folder: Path, domain: str | None = None) -> Expert:
    """Uploads and registers an expert, and waits until it is ready or refused."""
    return checked(party.client, party.client.register_expert(upload_expert(party, folder, domain)))


def rows_of(seed: int, count: int = 40, length: int = 32) -> list[list[int]]:
    """Token ids, more varied than the features are many, so that the sums are definite."""
    drawn = np.random.default_rng(seed).integers(0, 250, size=(count, length))
    return [[int(token) for token in row] for row in drawn]


@dataclass(frozen=True)
class Contributor:
    """An owner with a ready expert, and honest sums of `rows` under a trunk."""

    party: Party
    expert: Expert
    trunk: Trunk
    sums: ShardSums

    def manifest(self, *shards: str, **changes: object) -> Manifest:
        """The honest manifest of shards of these names; `changes` are not checked."""
        manifest = Manifest(
            owner=self.party.name,
            expert=self.expert.digest,
            domain=self.party.domain,
            trunk=self.trunk.digest,
            settings=StatisticsSettings(),
            hidden_size=self.trunk.hidden_size,
            layers=self.trunk.layers,
            exponents=self.trunk.exponents,
            tokens=self.sums.tokens,
            documents=self.sums.documents,
            shards=sorted(sha256_hex(f"{self.party.name} {shard}".encode()) for shard in shards or ("first",)),
        )
        return manifest.model_copy(update=changes)

    def layers(self) -> list[tuple[Int64, Int64]]:
        return list(zip(self.sums.gram.copy(), self.sums.cross.copy(), strict=True))

    def written(self, path: Path, manifest: Manifest, layers: Iterable[tuple[Int64, Int64]] | None = None) -> Path:
        with path.open("wb") as out:
            write(out, manifest, self.layers() if layers is None else layers)
        return path

    def send(self, folder: Path, *shards: str, supersedes: str | None = None) -> Contribution:
        """Contributes honestly."""
        path = self.written(folder / "honest", self.manifest(*shards))
        return self.party.client.contribute(NewContribution(sha256=upload(self.party, path), supersedes=supersedes))


def contributor(party: Party, folder: Path, expert: Expert, trunk: Trunk, weights: Path, seed: int = 0) -> Contributor:
    model, gains = domain_model(folder, weights)
    rows = rows_of(seed)
    sums = shard_sums(model, gains, trunk.exponents, batches(rows, 512), len(rows))
    return Contributor(party, expert, trunk, sums)


def problem_of(response: httpx.Response, kind: ProblemType, field: str | None = None) -> Problem:
    """The refusal that `response` is: problem+json of this kind, about `field` if one is given."""
    assert response.headers["Content-Type"] == MEDIA_TYPE, response.text
    problem = Problem.model_validate_json(response.content)
    assert (problem.type, problem.status) == (kind.urn, response.status_code), response.text
    assert problem.detail
    assert field is None or problem.field == field, response.text
    return problem


def database_rows(home: Path, tables: Sequence[str]) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(home / "coordinator.sqlite")) as database:
        return {table: sorted(database.execute(f"SELECT * FROM {table}"), key=repr) for table in tables}  # noqa: S608


class Kept(NamedTuple):
    """Everything that the coordinator keeps of what owners send."""

    files: list[Path]
    folders: list[Path]
    rows: dict[str, list[tuple[object, ...]]]


def kept(home: Path) -> Kept:
    """Blobs; upload and expert folders; rows."""
    files = sorted(path for path in (home / "blobs").rglob("*") if path.is_file())
    folders = sorted([*(home / "uploads").glob("*"), *(home / "experts").glob("*")])
    return Kept(files, folders, database_rows(home, ["holdings", "experts", "contributions", "shards"]))
