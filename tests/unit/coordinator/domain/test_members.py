"""Law 5 under the seed's body: experts join and leave in any order, and the next version is a fresh coordinator's."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.blobs.local import LocalBlobs, LocalChunks
from moerge.statistics.accumulate import ShardSums
from moerge_coordinator.domain import contributions, experts, owners, versions, withdrawal
from moerge_coordinator.domain.contribution_kinds import RULES
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.folders import Folders
from moerge_proto.contributions import NewContribution
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import Parts
from moerge_proto.statistics_file import MAX_EXPERT_TOKENS, HeadManifest, Manifest, StatisticsSettings, exponent
from moerge_proto.versions import Lineage, NewVersion
from support.models import expert
from support.rows import Clock, rows_in_memory
from support.statistics import LAYERS, honest_sums, manifest_of, written
from unit.coordinator.domain.test_experts import Joining

DOMAINS = ("law", "art", "tax")
HIDDEN, TOKENS = 16, 1024


@cache
def model(seed: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="members-")) / "model"
    return expert(folder, seed, num_hidden_layers=LAYERS, hidden_size=HIDDEN, intermediate_size=HIDDEN)


class Members(Joining):
    """A coordinator with a seed's body. A domain's parts and contributions are the same whenever it joins."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports, model)
        with ports.database.transaction("test") as session:
            for domain in DOMAINS:
                owners.add(session, "two" if domain == "tax" else f"{domain}-owner", [domain])
        self.body = self.seed().digest

    def join_and_contribute(self, domain: str) -> None:
        seed = 1 + DOMAINS.index(domain)
        joined = self.join(domain, seed, parts=Parts(expert=sha256_hex(domain.encode()), body=self.body, fitted=True))
        sums = honest_sums(HIDDEN, TOKENS, 1, HIDDEN, seed)
        fields = {"owner": joined.owner, "expert": joined.digest, "body": self.body}
        self._accept(manifest_of(sums, 1, domain=domain).model_copy(update=fields), sums)
        head = HeadManifest(
            owner=joined.owner,
            expert=joined.digest,
            domain=domain,
            settings=StatisticsSettings(),
            hidden_size=HIDDEN,
            layers=LAYERS,
            exponents=[exponent(HIDDEN, HIDDEN, MAX_EXPERT_TOKENS)],
            tokens=TOKENS,
            documents=1,
            shards=[sha256_hex(b"head")],
        )
        arrays = {name: np.full(length, seed, np.int64) for name, length in head.layout()}
        self._accept(head, ShardSums(arrays, TOKENS, 1))

    def _accept(self, manifest: Manifest, sums: ShardSums) -> None:
        content = written(self.ports.settings.home / "file", manifest, sums).read_bytes()
        self.ports.blobs.put("file", lambda out: (out.write(content), sha256_hex(content))[1])
        contributions.accept(self.ports, NewContribution(sha256=sha256_hex(content)), contributions.Checked())

    def leave(self, domain: str) -> None:
        [digest] = [row.digest for row in self.rows().values() if row.domain == domain and row.withdrawn is None]
        with self.ports.database.transaction("test") as session:
            assert withdrawal.withdraw_expert(session, experts.find(session, digest), serve=True) == []

    def version(self) -> Lineage:
        """All inputs of the version that a solve would make."""
        with self.ports.database.reading() as session:
            return versions.lineage_of(session, NewVersion())


@contextmanager
def members(folder: Path) -> Iterator[Members]:
    with closing(rows_in_memory(Clock())) as database:
        config, blobs = Settings(home=folder), LocalBlobs(folder / "blobs")
        uploads = Uploads(database, blobs, LocalChunks(folder / "uploads"), config)
        yield Members(Ports(config, database, blobs, Folders(database, blobs, folder), uploads, RULES))


@cache
def fresh(*domains: str) -> Lineage:
    """The version of a coordinator that these domains joined, and no other."""
    with tempfile.TemporaryDirectory() as folder, members(Path(folder)) as made:
        for domain in domains:
            made.join_and_contribute(domain)
        return made.version()


@settings(max_examples=8, deadline=None)
@given(turns=st.lists(st.sampled_from(DOMAINS), min_size=3, max_size=9), last=st.sampled_from(DOMAINS))
def test_law_5_any_order_of_joining_and_leaving_gives_the_version_of_a_fresh_coordinator(
    turns: Sequence[str], last: str
) -> None:
    """In each turn a domain joins or leaves; `last` stays. By law 3 a lineage determines a version's bytes."""
    present = set[str]()
    with tempfile.TemporaryDirectory() as folder, members(Path(folder)) as lived:
        for domain in (*turns, *([] if turns.count(last) % 2 else [last])):
            (lived.leave if domain in present else lived.join_and_contribute)(domain)
            present ^= {domain}
        result = lived.version()
    assert (set(result.domains), result.head.method) == (present, "regmean")
    assert result == fresh(*(domain for domain in dict.fromkeys((*turns, last)) if domain in present))
