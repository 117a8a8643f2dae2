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
from moerge.experts.fitting import fit as fit_expert
from moerge.models.batches import batches
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, expert_files
from moerge.models.tokens import all_counted
from moerge.progress import LogProgress
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.contribution import body_manifest, router_manifest
from moerge.statistics.passes import BodyPass, RouterPass
from moerge_proto.bodies import Body, NewBody
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import Expert, ExpertState, Fitted, NewExpert
from moerge_proto.owners import NewOwner, NewToken, Role
from moerge_proto.statistics_file import BodyManifest, RouterManifest, StatisticsSettings
from moerge_proto.versions import NewVersion, Version
from support.models import expert, on_body
from support.passes import sums_of
from support.processes import Coordinator, coordinator, moerge
from support.statistics import written
from support.uploads import RawClient
from support.versions import ROWS

SILENT = LogProgress()


@dataclass
class Member:
    """An owner with one domain: its token, its client, and its expert's folder at home."""

    name: str
    domain: str
    token: str
    client: Client
    folder: Path

    def upload_files(self) -> dict[str, str]:
        paths = expert_files(DenseFiles(self.folder))
        return {name: self.client.upload(path, SILENT, title=name).sha256 for name, path in paths.items()}

    def register(self, fitted: Fitted | None = None) -> Expert:
        """Uploads and registers the expert, and waits until its weights are checked."""
        new = NewExpert(domain=self.domain, files=self.upload_files(), fitted=fitted)
        digest = self.client.register_expert(new).digest
        eventually(lambda: self.client.expert(digest).state is not ExpertState.RECEIVED)
        return self.client.expert(digest)

    def allow(self, *, redistribute: bool = True) -> Expert:
        """Sets whether the registered expert may be redistributed."""
        files = {file.name: file.sha256 for file in registered(self).files}
        return self.client.register_expert(NewExpert(domain=self.domain, files=files, redistribute=redistribute))


def join(server: Coordinator, domain: str, folder: Path) -> Member:
    """A new owner for `domain` with an unregistered expert."""
    name = f"{domain}-owner"
    with server.client() as operator:
        operator.add_owner(NewOwner(name=name, domains=[domain]))
        token = operator.add_token(NewToken(role=Role.OWNER, owner=name)).secret
    return Member(name, domain, token, server.client(token), folder)


def joined(server: Coordinator, domain: str, folder: Path, seed: int, **settings: object) -> Member:
    """A new owner whose random expert is registered and ready."""
    member = join(server, domain, expert(folder / domain, seed, **settings))  # type: ignore[arg-type]  # no family
    try:
        assert member.register().state is ExpertState.READY
    except BaseException:
        member.client.close()
        raise
    return member


def merge(server: Coordinator, experts: list[str] | None = None, **how: object) -> Body:
    """Merges a body; `how` may name a method and its options."""
    with server.client() as operator:
        wait(operator, operator.merge_body(NewBody.model_validate({"experts": experts, **how})))
        body = operator.current_body()
    assert body is not None
    return body


def registered(member: Member) -> Expert:
    """The member's expert at the coordinator."""
    [expert] = [item for item in member.client.experts() if item.domain == member.domain and item.fitted is None]
    return expert


def body_path(server: Coordinator, body: Body) -> Path:
    """The body's tensors in the coordinator's folder; from a remote store they are downloaded."""
    [entry] = [file for file in body.files if file.name == "body.safetensors"]
    path = server.home / "blobs" / entry.sha256[:2] / entry.sha256
    if path.exists():
        return path
    folder = server.home.with_name(f"{server.home.name}-pulled-{body.digest}")
    with server.client() as operator:
        operator.download(f"/v1/bodies/{body.digest}/files", [entry], folder, SILENT, title="body")
    return folder / entry.name


def fit(server: Coordinator, member: Member, body: Body) -> Member:
    """The member with its expert's MLPs fitted to a body over the fixed rows; not registered yet."""
    path, home = body_path(server, body), member.folder.with_name(f"{member.folder.name}-{body.digest[:8]}")
    return replace(
        member, folder=fit_expert(*on_body(member.folder, path), list(batches(all_counted(ROWS), 512)), home)
    )


def honest(
    server: Coordinator,
    member: Member,
    body: Body,
    shards: int = 1,
    first: int = 0,
    split: str = "statistics",
    fitted: Expert | None = None,
) -> tuple[RouterManifest, ShardSums]:
    """The sums and the manifest of the member's worker, over the fixed rows.

    Several shards repeat the rows. With `fitted` they are for that expert, in the member's folder.
    """
    rows = ROWS if shards == 1 else _enough(ROWS, shards * enough(body.hidden_size))
    sums = sums_of(RouterPass(*on_body(member.folder, body_path(server, body)), body.exponents), rows)
    name = (fitted or registered(member)).digest
    manifest = router_manifest(member.name, name, member.domain, body, StatisticsSettings(), split)
    names = sorted(sha256_hex(f"{member.domain} {first + n}".encode()) for n in range(shards))
    return manifest.model_copy(update={"tokens": sums.tokens, "documents": sums.documents, "shards": names}), sums


def _enough(rows: list[list[int]], tokens: int) -> list[list[int]]:
    """The rows, repeated up to a number of tokens."""
    return rows * -(-tokens // sum(map(len, rows)))


def honest_body(member: Member, rows: list[list[int]] = ROWS) -> tuple[BodyManifest, ShardSums]:
    """The sums for a body contribution of the member's worker, over these rows."""
    dense = DenseExpert(member.domain, member.folder)
    rows = _enough(rows, enough(dense.config.hidden_size))
    manifest = body_manifest(member.name, dense, registered(member).digest, StatisticsSettings())
    sums = sums_of(BodyPass(DenseFiles(member.folder), manifest.exponents), rows)
    names = [sha256_hex(member.domain.encode())]
    return manifest.model_copy(update={"tokens": sums.tokens, "documents": sums.documents, "shards": names}), sums


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
    """A running coordinator, its operator, and the members by domain, in joining order."""

    server: Coordinator
    operator: Client
    folder: Path
    members: dict[str, Member] = field(default_factory=dict)
    clients: ExitStack = field(default_factory=ExitStack)

    def join(self, domain: str, folder: Path) -> Member:
        """A new owner with an unregistered expert."""
        return self.enter(join(self.server, domain, folder))

    def add(self, domain: str, seed: int = 0, **settings: Any) -> Member:
        """A new owner whose random expert is ready; by default the first one's seed is 1, the second one's 2, …"""
        return self.enter(joined(self.server, domain, self.folder, seed or len(self.members) + 1, **settings))

    def enter(self, member: Member) -> Member:
        """Lists a member; its client is closed at the end."""
        self.clients.enter_context(member.client)
        self.members[member.domain] = member
        return member

    def expert(self, domain: str) -> Expert:
        return registered(self.members[domain])

    def digests(self, *domains: str) -> list[str]:
        """The experts of these domains."""
        return [self.expert(domain).digest for domain in domains]

    def merge(self, *domains: str, **how: Any) -> Body:
        """Merges a body of these domains, by default of all."""
        if domains:
            how["experts"] = self.digests(*domains)
        return merge(self.server, **how)

    def body(self) -> Body:
        """The current body."""
        return self.operator.body("current")

    def contribute(self, body: Body, *domains: str, **how: Any) -> list[Contribution]:
        """Contributions of these domains, by default of every member; `how` is for `honest`."""
        return [
            send(member, written(self.folder / "contribution", *honest(self.server, member, body, **how)))
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
    """A federation with a ready random expert for each domain."""
    with coordinator(folder / "home", settings=settings) as server, server.client() as operator, ExitStack() as clients:
        federation = Federation(server, operator, folder, clients=clients)
        for domain in domains:
            federation.add(domain, **model)
        yield federation


@dataclass
class Owners:
    """law and art, with a body of both experts."""

    server: Coordinator
    law: Member
    art: Member
    body: Body


@contextmanager
def owners_in(folder: Path) -> Iterator[Owners]:
    with federation_of(folder, "law", "art") as federation:
        law, art = federation.members.values()
        yield Owners(federation.server, law, art, federation.merge())
