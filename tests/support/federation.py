"""Owners with registered experts on a running coordinator, and their honest contributions, without Ray."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.experts.fitting import fit as fit_expert
from moerge.models.batches import batches
from moerge.models.dense import domain_model
from moerge.models.expert_folder import DenseExpert, expert_files
from moerge.models.tokens import all_counted
from moerge.progress import LogProgress
from moerge.statistics.accumulate import ShardSums, shard_sums
from moerge.statistics.contribution import router_manifest, trunk_manifest
from moerge.statistics.passes import TrunkPass
from moerge_proto.contributions import Contribution, NewContribution, TrunkContribution
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import Expert, ExpertState, Fitted, NewExpert
from moerge_proto.owners import NewOwner, NewToken, Role
from moerge_proto.statistics_file import RouterManifest, StatisticsSettings, TrunkManifest
from moerge_proto.trunks import NewTrunk, Trunk
from support.models import expert
from support.processes import Coordinator
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
        paths = expert_files(self.folder)
        return {name: self.client.upload(path, SILENT, title=name).sha256 for name, path in paths.items()}

    def register(self, fitted: Fitted | None = None) -> Expert:
        """Uploads and registers the expert, and waits until its weights are checked."""
        new = NewExpert(domain=self.domain, files=self.upload_files(), fitted=fitted)
        registered = self.client.register_expert(new)
        while registered.state is ExpertState.RECEIVED:
            time.sleep(0.02)
            registered = self.client.expert(registered.digest)
        return registered


def join(server: Coordinator, domain: str, folder: Path) -> Member:
    """A new owner for `domain`; its expert is not registered yet."""
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


def merge(server: Coordinator, experts: list[str] | None = None, **how: object) -> Trunk:
    """Merges a trunk; `how` may name a method and its options."""
    with server.client() as operator:
        wait(operator, operator.merge_trunk(NewTrunk.model_validate({"experts": experts, **how})))
        trunk = operator.current_trunk()
    assert trunk is not None
    return trunk


def registered(member: Member) -> Expert:
    """The member's expert, as the coordinator has it."""
    [expert] = [each for each in member.client.experts() if each.domain == member.domain and each.fitted is None]
    return expert


def trunk_path(server: Coordinator, trunk: Trunk) -> Path:
    """The trunk's tensors, where the coordinator keeps them; from a store elsewhere they are downloaded."""
    [entry] = [file for file in trunk.files if file.name == "trunk.safetensors"]
    path = server.home / "blobs" / entry.sha256[:2] / entry.sha256
    if path.exists():
        return path
    folder = server.home.with_name(f"{server.home.name}-pulled-{trunk.digest}")
    with server.client() as operator:
        operator.download(f"/v1/trunks/{trunk.digest}/files", [entry], folder, SILENT, title="trunk")
    return folder / entry.name


def fit(server: Coordinator, member: Member, trunk: Trunk) -> Member:
    """The member with its expert's MLPs fitted to a trunk over the fixed rows; not registered yet."""
    path, home = trunk_path(server, trunk), member.folder.with_name(f"{member.folder.name}-{trunk.digest[:8]}")
    return replace(member, folder=fit_expert(member.folder, path, list(batches(all_counted(ROWS), 512)), home))


def honest(
    server: Coordinator,
    member: Member,
    trunk: Trunk,
    shards: int = 1,
    first: int = 0,
    split: str = "statistics",
    fitted: Expert | None = None,
) -> tuple[RouterManifest, ShardSums]:
    """What the member's worker would send: sums over the fixed rows, and their manifest; with `fitted`, for that one,
    which is the member's folder then.
    """
    model, gains = domain_model(member.folder, trunk_path(server, trunk))
    sums = shard_sums(model, gains, trunk.exponents, batches(all_counted(ROWS), 512), len(ROWS))
    name = (fitted or registered(member)).digest
    manifest = router_manifest(member.name, name, member.domain, trunk, StatisticsSettings(), split)
    names = sorted(sha256_hex(f"{member.domain} {first + n}".encode()) for n in range(shards))
    return manifest.model_copy(update={"tokens": sums.tokens, "documents": sums.documents, "shards": names}), sums


def honest_trunk(member: Member, rows: list[list[int]] = ROWS) -> tuple[TrunkManifest, ShardSums]:
    """What the member's worker would send for trunks."""
    own = DenseExpert(member.domain, member.folder)
    manifest = trunk_manifest(member.name, own, registered(member).digest, StatisticsSettings())
    sums = TrunkPass(member.folder, manifest.exponents).load()(batches(all_counted(rows), 512), len(rows))
    names = [sha256_hex(member.domain.encode())]
    return manifest.model_copy(update={"tokens": sums.tokens, "documents": sums.documents, "shards": names}), sums


def send_trunk(member: Member, path: Path, *supersedes: str) -> TrunkContribution:
    stored = member.client.upload(path, SILENT, title="trunk contribution", compress=True)
    return member.client.contribute_trunk(NewContribution(sha256=stored.sha256, supersedes=list(supersedes)))


def send(member: Member, path: Path, *supersedes: str) -> Contribution:
    stored = member.client.upload(path, SILENT, title="contribution", compress=True)
    return member.client.contribute(NewContribution(sha256=stored.sha256, supersedes=list(supersedes)))


def files_below(server: Coordinator) -> dict[str, int]:
    """Everything that the coordinator keeps besides its databases, logs and views of links: path -> size."""
    places = [server.home / name for name in ("blobs", "uploads")]
    return {
        str(path.relative_to(server.home)): path.stat().st_size
        for place in places
        for path in place.rglob("*")
        if path.is_file()
    }


def eventually(holds: Callable[[], bool], seconds: float = 10) -> None:
    """For what others do in the background, such as removing the files of what the coordinator has refused."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it never came to be")
