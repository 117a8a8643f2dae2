"""A federation: a running coordinator, owners with experts, and their honest contributions, computed without Ray."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.documents.shards import enough
from moerge.fits.fitting import fit
from moerge.fits.parts import write_parts
from moerge.models.batches import batches
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, expert_files
from moerge.models.tokens import all_counted
from moerge.progress import LogProgress
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.contribution import head_manifest, router_manifest
from moerge.statistics.passes import HeadPass, RouterPass
from moerge_coordinator.settings import read_settings
from moerge_coordinator.storage.stores import stores
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import Expert, ExpertState, NewExpert, Parts
from moerge_proto.owners import NewOwner, NewToken, Role
from moerge_proto.statistics_file import HeadManifest, RouterManifest, StatisticsSettings
from moerge_proto.versions import NewVersion, Version
from support.models import SEED, expert, on_body, seed_model
from support.passes import sums_of
from support.processes import Coordinator, coordinator, moerge
from support.statistics import written
from support.uploads import RawClient
from support.versions import ROWS

SILENT = LogProgress()


@dataclass
class Member:
    """An owner with one domain: its token, its client, and its expert's folder at home.

    `parts`: those that it registers, from the folder `at`.
    """

    name: str
    domain: str
    token: str
    client: Client
    folder: Path
    parts: Parts | None = None
    at: Path | None = None

    @property
    def place(self) -> Path:
        """The folder with the registered files."""
        return self.at or self.folder

    @property
    def dense(self) -> str:
        """The digest of the dense expert at home."""
        return DenseExpert(self.domain, self.folder).digest

    def upload_files(self) -> dict[str, str]:
        paths = expert_files(DenseFiles(self.place))
        return {name: self.client.upload(path, SILENT, title=name).sha256 for name, path in paths.items()}

    def register(self) -> Expert:
        """Uploads and registers the expert's parts, and waits until the weights are checked."""
        digest = self.client.register_expert(self.new()).digest
        eventually(lambda: self.client.expert(digest).state is not ExpertState.RECEIVED)
        return self.client.expert(digest)

    def new(self, files: dict[str, str] | None = None, **more: Any) -> NewExpert:
        """The message that registers its parts, whose files are uploaded unless they are given."""
        assert self.parts is not None
        return NewExpert(domain=self.domain, files=files or self.upload_files(), parts=self.parts, **more)

    def allow(self, *, redistribute: bool = True) -> Expert:
        """Sets whether the registered expert may be redistributed."""
        files = {file.name: file.sha256 for file in registered(self).files}
        return self.client.register_expert(self.new(files, redistribute=redistribute))


def join(server: Coordinator, domain: str, folder: Path) -> Member:
    """A new owner for `domain` with an unregistered expert."""
    name = f"{domain}-owner"
    with server.client() as operator:
        operator.add_owner(NewOwner(name=name, domains=[domain]))
        token = operator.add_token(NewToken(role=Role.OWNER, owner=name)).secret
    return Member(name, domain, token, server.client(token), folder)


def joined(server: Coordinator, domain: str, folder: Path, seed: int, **settings: Any) -> Member:
    """A new owner whose random expert's parts are ready; the first one's seed model is registered, if none is."""
    member = join(server, domain, expert(folder / domain, seed, **settings))
    try:
        member = parted(server, member, body_of(server, folder / "seed", **settings), fitted=False)
        assert member.register().state is ExpertState.READY
    except BaseException:
        member.client.close()
        raise
    return member


def body_of(server: Coordinator, folder: Path, **settings: Any) -> Body:
    """The current body; a seed model with these settings is made in the folder and registered, if there is none."""
    with server.client() as operator:
        if (body := operator.current_body()) is None:
            moerge("coordinator", "seed", server.home, seed_model(folder, **settings))
            body = operator.body("current")
    return body


def registered(member: Member) -> Expert:
    """The member's expert at the coordinator, or the parts that it registers."""
    rows = [item for item in member.client.experts() if (item.domain, item.parts) == (member.domain, member.parts)]
    [expert] = [row for row in rows if row.withdrawn is None]
    return expert


def body_path(server: Coordinator, body: Body) -> Path:
    """The body's tensors in the coordinator's store."""
    [entry] = [file for file in body.files if file.name == "body.safetensors"]
    return stores(read_settings(server.home))[0].local(entry.sha256)


def parted(server: Coordinator, member: Member, body: Body, *, fitted: bool = True) -> Member:
    """The member with its expert's parts for a body, not registered yet; fitted ones over the fixed rows."""
    home = member.folder.with_name(f"{member.folder.name}-{body.digest[:8]}")
    if fitted:
        fit(*on_body(member.folder, body_path(server, body)), list(batches(all_counted(ROWS), 512)), home)
    else:
        write_parts(DenseFiles(member.folder), home)
    return replace(member, parts=Parts(expert=member.dense, body=body.digest, fitted=fitted), at=home)


def honest(
    server: Coordinator,
    member: Member,
    body: Body,
    shards: int = 1,
    first: int = 0,
    split: str = "statistics",
) -> tuple[RouterManifest, ShardSums]:
    """The sums and the manifest of the member's worker, over the fixed rows. Several shards repeat the rows."""
    rows = ROWS if shards == 1 else _enough(ROWS, shards * enough(body.hidden_size))
    sums = sums_of(RouterPass(*on_body(member.place, body_path(server, body)), body.exponents), rows)
    name = registered(member).digest
    manifest = router_manifest(member.name, name, member.domain, body, StatisticsSettings(), split)
    names = sorted(sha256_hex(f"{member.domain} {first + n}".encode()) for n in range(shards))
    return manifest.model_copy(update={"tokens": sums.tokens, "documents": sums.documents, "shards": names}), sums


def _enough(rows: list[list[int]], tokens: int) -> list[list[int]]:
    """The rows, repeated up to a number of tokens."""
    return rows * -(-tokens // sum(map(len, rows)))


def honest_head(member: Member, rows: list[list[int]] = ROWS) -> tuple[HeadManifest, ShardSums]:
    """The sums for a head contribution of the member's worker, over these rows, as one shard."""
    dense = DenseExpert(member.domain, member.folder)
    manifest = head_manifest(member.name, dense, registered(member).digest, StatisticsSettings(), member.domain)
    sums = sums_of(HeadPass(dense, manifest.exponents), _enough(rows, enough(dense.config.hidden_size)))
    counts = {"tokens": sums.tokens, "documents": sums.documents, "shards": [sha256_hex(member.domain.encode())]}
    return manifest.model_copy(update=counts), sums


def send(member: Member, path: Path, *supersedes: str) -> Contribution:
    stored = member.client.upload(path, SILENT, title="contribution", compress=True)
    return member.client.contribute(NewContribution(sha256=stored.sha256, supersedes=list(supersedes)))


def files_below(server: Coordinator) -> dict[str, int]:
    """The coordinator's files except databases, logs and views of links: path -> size."""
    places = [server.home / name for name in ("blobs", "uploads")]
    return {
        str(path.relative_to(server.home)): path.stat().st_size
        for place in places
        for path in place.rglob("*")
        if path.is_file()
    }


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Waits for background work, such as removing refused files."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("the condition never became true")


@dataclass
class Federation:
    """A running coordinator with a registered `seed`, its operator, and the members by domain, in joining order."""

    server: Coordinator
    operator: Client
    folder: Path
    seed: Path
    members: dict[str, Member] = field(default_factory=dict)
    clients: ExitStack = field(default_factory=ExitStack)
    model: dict[str, Any] = field(default_factory=dict)

    def join(self, domain: str, folder: Path) -> Member:
        """A new owner with an unregistered expert."""
        return self.enter(join(self.server, domain, folder))

    def add(self, domain: str, seed: int = 0, **settings: Any) -> Member:
        """A new owner whose random expert is ready; by default the first one's seed is 1, the second one's 2, …"""
        seed = seed or len(self.members) + 1
        return self.enter(joined(self.server, domain, self.folder, seed, **settings))

    def enter(self, member: Member) -> Member:
        """Lists a member; its client is closed at the end."""
        self.clients.enter_context(member.client)
        self.members[member.domain] = member
        return member

    def reader(self, name: str, *groups: str) -> str:
        """The token of a new reader."""
        return self.operator.add_token(NewToken(role=Role.READER, name=name, groups=[*groups])).secret

    def expert(self, domain: str) -> Expert:
        return registered(self.members[domain])

    def digests(self, *domains: str) -> list[str]:
        """The experts of these domains."""
        return [self.expert(domain).digest for domain in domains]

    def body(self) -> Body:
        """The current body."""
        return self.operator.body("current")

    def reseed(self, number: int = 1) -> Body:
        """Registers another seed, and every member's parts fitted to it; its body, now the current one."""
        self.register_seed(expert(self.folder / f"seed-{number}", SEED + number, **self.model))
        body = self.body()
        for domain, member in self.members.items():
            self.members[domain] = parted(self.server, member, body)
            assert self.members[domain].register().state is ExpertState.READY
        return body

    def register_seed(self, folder: Path) -> None:
        moerge("coordinator", "seed", self.server.home, folder)

    def contribute(self, body: Body, *domains: str, **how: Any) -> list[Contribution]:
        """Contributions of these domains, by default of every member; `how` is for `honest`."""
        return [
            send(member, written(self.folder / "contribution", *honest(self.server, member, body, **how)))
            for member in map(self.members.__getitem__, domains or self.members)
        ]

    def contribute_heads(self, *domains: str) -> list[Contribution]:
        """Head contributions of these domains, by default of every member."""
        return [
            send(member, written(self.folder / "head", *honest_head(member)))
            for member in map(self.members.__getitem__, domains or self.members)
        ]

    def solve(self, **new: Any) -> Version:
        workflow = self.operator.solve_version(NewVersion(**new))
        return self.operator.version(int(wait(self.operator, workflow)))

    def version(self, number: int) -> Path:
        """Its folder at the coordinator."""
        return self.server.home / "versions" / str(number)

    def moerge(self, *arguments: object, **environment: str) -> str:
        """Runs a command as the operator."""
        return moerge(*arguments, **self.server.environment(), **environment)

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """The answer to the operator."""
        return RawClient(self.server.url, self.server.operator_token).request(method, path, **kwargs)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.request("GET", path, headers=headers)


@contextmanager
def federation_of(folder: Path, *domains: str, settings: str = "", **model: Any) -> Iterator[Federation]:
    """A federation with a ready random expert for each domain, near a registered seed."""
    seed = seed_model(folder / "seed", **model)
    with (
        coordinator(folder / "home", settings=settings, seed=seed) as server,
        server.client() as operator,
        ExitStack() as clients,
    ):
        federation = Federation(server, operator, folder, seed, clients=clients, model=model)
        for domain in domains:
            federation.add(domain, **model)
        yield federation


@contextmanager
def champion_of(folder: Path, *domains: str) -> Iterator[Federation]:
    """A federation whose version 1, of these domains, is the champion."""
    with federation_of(folder, *domains) as federation:
        federation.contribute(federation.body())
        federation.solve()
        federation.operator.promote("champion", 1)
        yield federation


@dataclass
class Owners:
    """law and art, and the seed's body."""

    server: Coordinator
    law: Member
    art: Member
    body: Body


@contextmanager
def owners_in(folder: Path) -> Iterator[Owners]:
    with federation_of(folder, "law", "art") as federation:
        law, art = federation.members.values()
        yield Owners(federation.server, law, art, federation.body())
