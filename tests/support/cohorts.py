"""Masked contributions of three owners at a coordinator without HTTP, and a keeper who knows them."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import select

from moerge.blobs.local import LocalBlobs, LocalChunks
from moerge.masks.answer_file import answer
from moerge.masks.keeper import Keeper, make_key
from moerge_coordinator.domain import contribution_kinds, contributions, owner_keys, owners, versions, withdrawal
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.masks import cohorts, seals
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.folders import Folders
from moerge_coordinator.storage.tables import BodyRow, ContributionRow, ExpertRow
from moerge_proto.contributions import Contribution, NewContribution, signed_contribution
from moerge_proto.digests import sha256_hex
from moerge_proto.masks import MasksRequest
from moerge_proto.owners import Role
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import exponent
from moerge_proto.versions import Lineage, NewVersion
from support.masked import MaskedOwner
from support.rows import Clock, add_body, add_expert, rows_in_memory
from support.statistics import LAYERS, honest_sums, manifest_of, written

HIDDEN, TOKENS = 8, 512
DOMAINS = ("art", "code", "law")
EQUAL = SolveOptions()


@dataclass
class Rounds:
    """Three owners with keys and experts, a body, and a keeper who has approved them."""

    ports: Ports
    keeper: Keeper
    body: BodyRow
    experts: dict[str, ExpertRow]
    owners: dict[str, MaskedOwner]
    folder: Path

    def new(
        self, domain: str, number: int = 0, add: int = 0, tensor: str = "layers.0.gram", masked: bool = True
    ) -> NewContribution:
        """A kept contribution; `add`: to an entry of a tensor."""
        sums = honest_sums(HIDDEN, TOKENS, 1, HIDDEN, seed=DOMAINS.index(domain) + 10 * number)
        sums.arrays[tensor][1] += add
        manifest = manifest_of(sums, 1, domain=domain, first_shard=number).model_copy(
            update={"expert": self.experts[domain].digest, "body": self.body.digest, "owner": f"{domain}-owner"}
        )
        path, masks = self.folder / "file", None
        if masked:
            _, part = self.owners[domain].contribution(path, manifest, sums, [self.keeper.public_key])
            masks = part.seals
        else:
            written(path, manifest, sums)
        content = path.read_bytes()

        def write(out: BinaryIO) -> str:
            out.write(content)
            return sha256_hex(content)

        digest = self.ports.blobs.put("file", write).sha256
        signed = signed_contribution(manifest, digest).sign(self.owners[domain].key)
        return NewContribution(sha256=digest, masks=masks, signature=signed)

    def send(self, domain: str, **how: Any) -> Contribution:
        return self.accept(domain, self.new(domain, **how))

    def accept(self, domain: str, new: NewContribution) -> Contribution:
        with self.ports.database.reading() as session:
            caller = owners.identity(session, Role.OWNER, f"{domain}-owner")
        return contributions.accept(self.ports, new, contributions.check(self.ports, caller, new))

    def lineage(self, **new: Any) -> Lineage:
        given = {"options": EQUAL, "partial": True, **new}
        with self.ports.database.reading() as session:
            return versions.lineage_of(session, NewVersion.model_validate(given))

    def ask(self, *domains: str) -> MasksRequest:
        return cohorts.ask(self.ports.database, self.ports.blobs, domains)

    def answer(self, request: MasksRequest) -> Path:
        """The keeper's answer."""
        path, asked = self.folder / f"answer-{request.digest[:12]}", self.folder / "request.json"
        asked.write_text(request.model_dump_json())
        answer(self.keeper, asked, path)
        return path

    def unmask(self) -> int:
        """Asks the keeper, and makes the sum known."""
        return cohorts.unmask(self.ports.database, self.ports.blobs, [self.answer(self.ask())])

    def withdraw(self, digest: str) -> None:
        with self.ports.database.transaction("test") as session:
            row = session.scalars(select(ContributionRow).where(ContributionRow.digest == digest)).one()
            withdrawal.withdraw_contribution(session, row)


@contextmanager
def rounds_in(folder: Path) -> Iterator[Rounds]:
    make_key(folder / "keeper")
    keeper, known = Keeper(folder / "keeper"), {domain: MaskedOwner(domain) for domain in DOMAINS}
    settings = Settings(home=folder)
    with closing(rows_in_memory(Clock())) as database:
        blobs = LocalBlobs(folder / "blobs")
        uploads = Uploads(database, blobs, LocalChunks(folder / "uploads"), settings)
        with database.transaction("test") as session:
            exponents, bounds = [exponent(HIDDEN)] * LAYERS, [float(HIDDEN)] * LAYERS
            body = add_body(session, hidden_size=HIDDEN, layers=LAYERS, exponents=exponents, bounds=bounds)
            experts = {domain: add_expert(session, domain) for domain in DOMAINS}
            for owner in known.values():
                owner_keys.add_key(session, owner.name, owner.request.public_key, "key")
                keeper.approve(owner.request, replace=False)
        rules = {**contribution_kinds.RULES, **seals.RULES}
        ports = Ports(settings, database, blobs, Folders(database, blobs, folder), uploads, rules)
        yield Rounds(ports, keeper, body, experts, known, folder)
