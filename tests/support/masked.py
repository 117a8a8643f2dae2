"""Masked contributions of owners with keys, without workers and coordinator."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from moerge.files import file_sha256
from moerge.masks.files import write_masked
from moerge.masks.keeper import Keeper, make_key
from moerge.statistics.accumulate import ShardSums
from moerge_proto.digests import sha256_hex
from moerge_proto.masks import MaskedPart, facts_of, new_seed
from moerge_proto.signatures import JoinRequest
from moerge_proto.statistics_file import RouterManifest, StatisticsFile
from support.rows import START
from support.statistics import written

BODY = "7" * 64


@dataclass(frozen=True)
class MaskedOwner:
    """An owner of one domain, with its key."""

    domain: str
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    @property
    def name(self) -> str:
        return f"{self.domain}-owner"

    @property
    def request(self) -> JoinRequest:
        return JoinRequest.make(self.key, self.name, [self.domain], START)

    def part(
        self,
        keepers: Sequence[str],
        contribution: str = "",
        owners: int = 3,
        body: str = BODY,
        hidden: int = 4,
    ) -> MaskedPart:
        """A signed part with random seeds."""
        contribution = contribution or sha256_hex(f"{self.domain} {body}".encode())
        seeds = {keeper: new_seed() for keeper in keepers}
        facts = {"owner": self.name, "domain": self.domain, "body": body, "hidden_size": hidden, "layers": 2}
        return MaskedPart.signed(self.key, owners, seeds, contribution=contribution, **facts)

    def contribution(
        self, path: Path, manifest: RouterManifest, sums: ShardSums, keepers: Sequence[str]
    ) -> tuple[Path, MaskedPart]:
        """A masked statistics file, and its signed part."""
        manifest = manifest.model_copy(update={"owner": self.name, "domain": self.domain, "keepers": sorted(keepers)})
        return path, self.masked(written(path.with_suffix(".exact"), manifest, sums), path)

    def masked(self, exact: Path, path: Path) -> MaskedPart:
        """Writes the masked file of exact sums; its signed part."""
        with StatisticsFile(exact) as file:
            manifest = file.manifest
        assert isinstance(manifest, RouterManifest)
        seeds = {keeper: new_seed() for keeper in manifest.keepers}
        write_masked(exact, path, list(seeds.values()))
        digest = file_sha256(path)
        return MaskedPart.signed(self.key, 3, seeds, contribution=digest, **facts_of(manifest))


def keeper_of(home: Path, owners: Sequence[MaskedOwner]) -> Keeper:
    """A new keeper that knows these owners."""
    make_key(home)
    made = Keeper(home)
    for owner in owners:
        made.approve(owner.request, replace=False)
    return made
