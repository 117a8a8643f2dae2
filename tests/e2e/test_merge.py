"""`moerge merge` makes the service's versions, also when an expert joins."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from moerge.documents.corpus import Corpus
from moerge.files import file_sha256
from moerge.merging.kept_statistics import kept
from moerge.merging.local_lineages import local_body, local_version
from moerge.merging.merge import MergeSettings, Source, merge
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.contribution import Computing
from moerge.versions.folder import write_folder
from moerge.versions.version_plan import plan_version
from moerge_proto.bodies import Body
from moerge_proto.recipes import RECOMMENDED
from moerge_proto.statistics_file import StatisticsSettings
from moerge_proto.version_signatures import PROVENANCE_FILE, SIGNATURE_FILE
from moerge_proto.versions import Lineage
from support.federation import Federation, federation_of
from support.models import expert
from support.processes import Coordinator
from support.worker import Worker, worker_of

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
STATISTICS = StatisticsSettings(context=128, batch_tokens=512)
SEEDED = RECOMMENDED.model_copy(update={"body": "seed", "fit": True})


@dataclass(frozen=True)
class Service:
    """A version of two owners' experts at a coordinator.

    Attributes:
        number: the version's.
        seed: that of the version's body.
        owned: the owners' experts, in order.
        experts: the version's; with fitted MLPs they are the owners' parts.
        body: the version's.
    """

    server: Coordinator
    number: int
    seed: DenseExpert
    owned: list[DenseExpert]
    experts: list[DenseExpert]
    body: Body

    @property
    def version(self) -> Path:
        return self.server.home / "versions" / str(self.number)

    def lineage(self) -> Lineage:
        return Lineage.model_validate_json((self.version / "moerge.json").read_bytes())

    def blob(self, digest: str) -> Path:
        return self.server.home / "blobs" / digest[:2] / digest

    @property
    def settings(self) -> MergeSettings:
        return MergeSettings(
            recipe=SEEDED,
            base=self.seed,
            statistics=STATISTICS,
            held_out_share=0,
            scored_tokens=0,
            computing=Computing(slots=2, key=KEY),
        )

    @property
    def sources(self) -> list[Source]:
        return [Source(item, Corpus([str(_texts(item))], item)) for item in self.owned]

    def merged(self, out: Path, settings: MergeSettings) -> Path:
        """The same version, computed again on this machine."""
        with threads(2):  # more than one must change nothing
            merge(self.sources, out, settings)
        return out


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Runs torch on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _texts(own: DenseExpert) -> Path:
    return own.folder.parent / "data" / "texts.jsonl"


def _write_texts(path: Path, seed: int, letters_each: int) -> None:
    """140 documents; every tenth is there twice."""
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(97 + seed, 110 + seed, (140, letters_each), generator=generator)
    letters[::10] = letters[1::10]
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps({"text": "".join(map(chr, row))}) + "\n" for row in letters.tolist()))


class Owners:
    """The owners of a federation; each contributes by its worker, and versions are solved of all."""

    def __init__(self, federation: Federation, stack: ExitStack) -> None:
        self.federation, self._stack = federation, stack
        self.owned, self.workers = list[DenseExpert](), list[Worker]()

    def join(self, domain: str) -> None:
        """The first owner has more text than MLPs are fitted to."""
        home, seed = self.federation.folder / domain, len(self.owned) + 1
        own = DenseExpert(domain, expert(home / "expert", seed, **SMALL), f"{domain}-owner", f"licence-{seed}")
        _write_texts(_texts(own), seed, 120 if self.owned else 560)
        (home / "worker").mkdir()
        (home / "worker" / "key").write_bytes(KEY)
        member, server = self.federation.join(domain, own.folder), self.federation.server
        self.workers.append(self._stack.enter_context(worker_of(server, member, home, self.federation.seed)))
        self.owned.append(own)

    def contribute(self) -> None:
        """One owner after the other, so that the order is known."""
        for worker, own in zip(self.workers, self.owned, strict=True):
            told: dict[str, Any] = {"domain": own.domain, "license": own.license, "statistics": STATISTICS.model_dump()}
            assert worker.run(**told) == "ran"

    def solved(self) -> Service:
        body = self.federation.body()
        homes = [worker.home / "parts" / body.digest for worker in self.workers]
        folders = [next(home.glob("fitted-*"), None) for home in homes]
        experts = [
            own if at is None else replace(own, folder=at, trained=own)
            for own, at in zip(self.owned, folders, strict=True)
        ]
        made = self.federation
        base = DenseExpert("seed", made.seed, hub_id=body.source)
        return Service(made.server, made.solve().number, base, list(self.owned), experts, body)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    """A version of two experts fitted to a seed's body, and one that a third expert has joined."""
    with ExitStack() as stack:
        owners = Owners(stack.enter_context(federation_of(tmp_path_factory.mktemp("service"), **SMALL)), stack)
        for domain in ("law", "art"):
            owners.join(domain)
        owners.contribute()
        first = owners.solved()
        owners.join("code")
        owners.contribute()
        yield first, owners.solved()


@pytest.fixture
def service(services: tuple[Service, Service]) -> Service:
    return services[0]


def files(folder: Path) -> dict[str, str]:
    """Name -> SHA-256, without signature and provenance, which only a coordinator's versions have."""
    signed = (SIGNATURE_FILE, PROVENANCE_FILE)
    return {path.name: file_sha256(path) for path in folder.iterdir() if path.name not in signed}


def test_equal_inputs_and_lineage_give_equal_version_files(service: Service, tmp_path: Path) -> None:
    body = local_body(service.owned, tmp_path / "body", "seed", base=service.seed)
    lineage = service.lineage()
    parts = [service.blob(digest) for digest in lineage.contributions]
    heads = [service.blob(digest) for digest in lineage.head.contributions]
    made, inputs = local_version(service.experts, body, parts, SEEDED.solve, head=SEEDED.head, head_contributions=heads)
    assert made == lineage
    assert files(write_folder(plan_version(lineage, inputs).files, tmp_path / "out")) == files(service.version)


def unequal(one: Path, other: Path) -> set[str]:
    """Names of files that differ between folders of equal names."""
    made, published = files(one), files(other)
    assert made.keys() == published.keys()
    return {name for name in made if made[name] != published[name]}


def test_with_another_key_all_but_lineage_and_card_are_equal(service: Service, tmp_path: Path) -> None:
    settings = replace(service.settings, computing=Computing(slots=2, key=OTHER_KEY))
    assert unequal(service.merged(tmp_path / "out", settings), service.version) == {"moerge.json", "README.md"}


def test_an_added_expert_gives_the_version_that_it_has_joined(
    services: tuple[Service, Service], tmp_path: Path
) -> None:
    """The version before it is that of the service, file by file, because the key is the same."""
    before, joined = services
    merged = before.merged(tmp_path / "merged", replace(before.settings, keep_statistics=True))
    with threads(2):
        merge(joined.sources[2:], tmp_path / "out", joined.settings, version=kept(merged))
    assert unequal(tmp_path / "out", joined.version) == unequal(merged, before.version) == set()
    shared = sorted(path.name for path in merged.iterdir() if path.samefile(tmp_path / "out" / path.name))
    assert shared == ["model-body.safetensors", "model-expert-00000.safetensors", "model-expert-00001.safetensors"]
