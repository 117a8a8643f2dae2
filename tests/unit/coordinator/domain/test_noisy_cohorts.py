"""Cohorts with noise: a coordinator, a keeper and three owners' workers in one process, under a seed's body."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from sqlalchemy import select

from moerge.files import file_sha256
from moerge.keeper.journal import Keeper, make_key
from moerge.models.bounds import feature_bounds
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.routers.solve import solve_layers
from moerge.statistics.passes import RouterPass
from moerge.statistics.release import release_cohort, write_whitenings
from moerge.statistics.whitening import Whitenings
from moerge.trunk.merge import DENSE_BODY_FILE
from moerge.versions.file_plans import copied_bytes
from moerge_coordinator.domain import cohorts, contributions, owner_keys, owners, versions
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.operation.seeds import register
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.references import needed
from moerge_coordinator.storage.tables import CohortRow
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.digests import sha256_hex
from moerge_proto.masks import MasksRequest, summed
from moerge_proto.options import SolveOptions
from moerge_proto.owners import Role
from moerge_proto.statistics_file import RouterManifest, StatisticsFile
from moerge_proto.versions import Lineage, NewVersion
from moerge_workers.computing import pending
from moerge_workers.leaving.owner_key import join_request
from support.federation import SILENT
from support.models import expert, texts
from support.rows import add_expert
from support.stages import MemoryClient, context_of, contribute, seeded

DOMAINS = ("art", "code", "law")
POLICY = {"bodies": ["seed"], "min_documents": 5, "min_tokens": 1}


class Sealing(MemoryClient):
    """Keeps the last request."""

    def contribute(self, new: NewContribution) -> Contribution:
        self.sent = new
        return super().contribute(new)


@dataclass
class Seeded:
    """A coordinator with a seed, a keeper, and owners; `body` is the seed's."""

    ports: Ports
    keeper: Keeper
    body: Body
    folder: Path
    asked: int = 0

    def contribute(self, domain: str, number: int) -> None:
        """Runs the worker of a new owner, and accepts what it sends."""
        home, owner = self.folder / domain, f"{domain}-owner"
        dense = DenseExpert(domain, expert(home / "expert", number + 2))
        texts(home / "texts.jsonl", number + 1, 60)
        request, client = join_request(home / f"{owner}.pem", owner, [domain]), Sealing(Path())
        with self.ports.database.transaction("test") as session:
            add_expert(session, domain, digest=dense.digest)
            owner_keys.add_key(session, owner, request.public_key, "key")
        self.keeper.approve(request, replace=False)
        client.current = self.body
        given: dict[str, Any] = {
            "domain": domain, "seed": self.folder / "seed", "policy": POLICY, "privacy": {"epsilon": 100.0},
            "masks": {"keepers": [self.keeper.public_key]}, "statistics": {"context": 64},
        }  # fmt: skip
        with context_of(home, home, client, owner=owner, **given) as context:
            contribute(context, self.body)
        assert {path.suffix for path in (home / "contributions").iterdir()} == {".sqlite", ".safetensors", ".seeds"}
        ports, [path] = self.ports, client.uploaded
        assert ports.blobs.put("file", partial(copied_bytes, path)).sha256 == file_sha256(path)
        with ports.database.reading() as session:
            caller = owners.identity(session, Role.OWNER, owner)
        contributions.accept(ports, client.sent, contributions.check(ports, caller, client.sent))

    def lineage(self) -> Lineage:
        with self.ports.database.reading() as session:
            return versions.lineage_of(session, NewVersion(partial=True, options=SolveOptions()))

    def fetch(self, url: str, request: MasksRequest, out: BinaryIO) -> str:
        self.asked += 1
        answer = b"".join(summed(request, self.keeper.seeds(request)))
        out.write(answer)
        return sha256_hex(answer)

    def expected(self, lineage: Lineage) -> bytes:
        """The released sums, from the owners' whitening, which is that of the whole seed."""
        [found] = cohorts.sources(self.ports.database, self.ports.blobs, lineage)
        seed, path = DenseFiles(self.folder / "seed"), self.folder / "expected"
        own = DenseBody(self.folder / "registered" / DENSE_BODY_FILE, seed.config)
        with ExitStack() as stack, path.open("wb") as out:
            files = [stack.enter_context(StatisticsFile(self.ports.blobs.source(name))) for name in found.members]
            cohort = replace(found, released=None).opened(stack, files)
            settings = cohort.manifest.settings
            assert settings.privacy is not None
            whitenings = Whitenings(self.folder / "whitening", settings.privacy, cohort.manifest.layers)
            write_whitenings(RouterPass(seed, own, cohort.manifest.exponents), settings, whitenings.path)
            release_cohort(cohort, feature_bounds(own), whitenings, out)
        return path.read_bytes()


@pytest.fixture
def made(ports: Ports, tmp_path: Path) -> Seeded:
    make_key(tmp_path / "keeper")
    keeper, body = Keeper(tmp_path / "keeper"), seeded(tmp_path)
    settings = Settings(home=tmp_path, keepers={keeper.public_key: "http://127.0.0.1:1"})
    assert register(ports.database, ports.blobs, str(tmp_path / "seed"), SILENT).digest == body.digest
    return Seeded(replace(ports, settings=settings), keeper, body, tmp_path)


def test_the_sum_of_noisy_contributions_is_released_once_by_the_seed_s_whitening(
    made: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    whitened = list[Path]()

    def watched(work: RouterPass, *given: Any) -> Path:
        whitened.append(work.expert.folder)
        return write_whitenings(work, *given)

    monkeypatch.setattr(pending, "write_whitenings", watched)
    for number, domain in enumerate(DOMAINS):
        made.contribute(domain, number)
    assert whitened == [made.folder / "seed"] * 3
    lineage = made.lineage()
    for _ in range(2):
        cohorts.unmask(made.ports, lineage, made.fetch)
    assert made.asked == 1
    with made.ports.database.reading() as session:
        [row] = session.scalars(select(CohortRow))
        assert row.released is not None
        assert row.released in needed(session)
    assert b"".join(made.ports.blobs.content(row.released)) == made.expected(lineage)
    assert not list((made.folder / "cohorts").iterdir())
    [found] = cohorts.sources(made.ports.database, made.ports.blobs, lineage)
    with ExitStack() as stack:
        files = [stack.enter_context(StatisticsFile(made.ports.blobs.source(name))) for name in found.members]
        cohort, gains = found.opened(stack, files), torch.ones(made.body.layers, made.body.hidden_size)
        routers, _ = solve_layers([cohort], lineage.domains, gains, lineage.options)
        assert cohort.gram(0).tobytes() == made.expected(lineage)[: cohort.gram(0).nbytes]
    assert [tuple(router.shape) for router in routers] == [(3, made.body.hidden_size)] * made.body.layers
    for digest in lineage.contributions:
        with StatisticsFile(made.ports.blobs.source(digest)) as file:
            assert isinstance(file.manifest, RouterManifest)
            assert file.manifest.tokens == file.manifest.documents * 64
            privacy = file.manifest.settings.privacy
            assert privacy is not None
            assert (privacy.owners, file.manifest.keepers) == (3, [made.keeper.public_key])
