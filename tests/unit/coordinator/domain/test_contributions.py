"""Law 4: a shard counts once, a swap is atomic, and what a contribution rests on is there in the same transaction."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_args

import numpy as np
import pytest
from sqlalchemy import select

from moerge.errors import MoergeError
from moerge.fits.parts import write_parts
from moerge.models.dense_files import DenseFiles
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.kinds import CONTRIBUTIONS
from moerge_coordinator.domain import contribution_kinds, contributions, owner_keys, owners, withdrawal
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import BodyRow, ContributionRow, ExpertRow, ShardRow
from moerge_proto.contributions import Contribution, Kind, NewContribution
from moerge_proto.digests import sha256_hex
from moerge_proto.messages import FileEntry
from moerge_proto.owners import Role
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import (
    MAX_EXPERT_TOKENS,
    MAX_TOKENS,
    POOL,
    BodyManifest,
    HeadManifest,
    Privacy,
    RouterManifest,
    StatisticsSettings,
    TextBefore,
    exponent,
)
from support.models import expert
from support.rows import add_body, add_expert
from support.statistics import LAYERS, honest_sums, manifest_of, written

HIDDEN, TOKENS = 8, 512

CHECKED = contributions.Checked()


@dataclass
class Law:
    """The owner of law, its expert, and the current body."""

    ports: Ports
    expert: ExpertRow
    body: BodyRow
    folder: Path

    def file(self, first: int = 0, shards: int = 1, **change: object) -> str:
        """The digest of a statistics file that is kept, with these shards."""
        sums = honest_sums(HIDDEN, TOKENS, shards, HIDDEN, seed=first)
        manifest = manifest_of(sums, shards, first_shard=first).model_dump()
        fields = {"owner": "law-owner", "expert": self.expert.digest, "body": self.body.digest}
        return self.kept(
            written(self.folder / "file", RouterManifest.model_validate({**manifest, **fields, **change}), sums)
        )

    def head_file(self, tokens: int = 1, hidden: int = HIDDEN, value: int = 0, **change: object) -> str:
        """The digest of a kept head contribution; its sums all have the same value."""
        fields = {
            "owner": "law-owner", "expert": self.expert.digest, "domain": "law", "settings": StatisticsSettings(),
            "hidden_size": hidden, "layers": LAYERS, "tokens": tokens, "documents": 1, "shards": ["1" * 64],
        }  # fmt: skip
        bits = [exponent(hidden, hidden, MAX_EXPERT_TOKENS)]
        manifest = HeadManifest.model_validate({**fields, "exponents": bits, **change})
        sums = {name: np.full(length, value, np.int64) for name, length in manifest.layout()}
        return self.kept(written(self.folder / "file", manifest, ShardSums(sums, tokens, 1)))

    def body_file(self) -> str:
        """The digest of a kept body contribution, as a merge on one machine has it."""
        fields = {
            "owner": "law-owner", "expert": self.expert.digest, "domain": "law", "settings": StatisticsSettings(),
            "hidden_size": HIDDEN, "layers": LAYERS, "tokens": TOKENS, "documents": 1, "shards": ["1" * 64],
            "exponents": [1] * (2 * LAYERS - 1), "attention_sizes": [HIDDEN] * LAYERS, "vocab_size": 9, "rare_below": 0,
        }  # fmt: skip
        manifest = BodyManifest.model_validate(fields)
        sums = {name: np.zeros(length, np.int64) for name, length in manifest.layout()}
        return self.kept(written(self.folder / "file", manifest, ShardSums(sums, TOKENS, 1)))

    def kept(self, path: Path) -> str:
        content = path.read_bytes()

        def write(out: BinaryIO) -> str:
            out.write(content)
            return sha256_hex(content)

        return self.ports.blobs.put("file", write).sha256

    def check(self, sha256: str) -> contributions.Checked:
        with self.ports.database.reading() as session:
            caller = owners.identity(session, Role.OWNER, "law-owner")
        return contributions.check(self.ports, caller, NewContribution(sha256=sha256))

    def send(self, sha256: str, *supersedes: str) -> Contribution:
        self.check(sha256)
        return contributions.accept(
            self.ports, NewContribution(sha256=sha256, supersedes=list(supersedes)), contributions.Checked()
        )

    def claimed(self) -> dict[str, str]:
        """Shard -> the contribution in which it counts."""
        with self.ports.database.reading() as session:
            return {row.shard: row.contribution for row in session.scalars(select(ShardRow))}

    def active(self) -> list[str]:
        with self.ports.database.reading() as session:
            return list(session.scalars(select(ContributionRow.digest).where(ContributionRow.active)))


@pytest.fixture
def law(ports: Ports, tmp_path: Path) -> Law:
    with ports.database.transaction("test") as session:
        bits, bounds = [exponent(HIDDEN)] * LAYERS, [float(HIDDEN)] * LAYERS
        body = add_body(session, hidden_size=HIDDEN, layers=LAYERS, exponents=bits, bounds=bounds)
        expert = add_expert(session, "law")
    return Law(ports, expert, body, tmp_path)


def test_law_4_a_shard_counts_once_under_a_body(law: Law) -> None:
    first = law.send(law.file(0, shards=2))
    assert law.send(first.digest) == first, "the same again changes nothing"
    with pytest.raises(RefusedError, match="is already in contribution") as caught:
        law.send(law.file(1, shards=2))
    assert (caught.value.kind, caught.value.where) == (ProblemType.DUPLICATE_SHARD, "manifest.shards")
    second = law.send(law.file(2))
    assert sorted(law.active()) == sorted([first.digest, second.digest])
    assert len(law.claimed()) == 3


def test_law_4_superseding_is_one_swap(law: Law) -> None:
    first, second = law.send(law.file(0)), law.send(law.file(1))
    third = law.send(law.file(0, shards=3), first.digest, second.digest)
    assert law.active() == [third.digest]
    assert set(law.claimed().values()) == {third.digest}
    before = law.claimed()
    with pytest.raises(RefusedError, match="is already in contribution"):
        law.send(law.file(2, shards=2))
    with pytest.raises(RefusedError, match="no active contribution"):
        law.send(law.file(5), first.digest)
    foreign = NewContribution(sha256=law.file(6, domain="art"), supersedes=[third.digest])
    with pytest.raises(RefusedError, match=r"no active contribution .* of 'art'"):
        contributions.accept(law.ports, foreign, CHECKED)
    assert (law.claimed(), law.active()) == (before, [third.digest]), "what is refused did nothing"


def test_counts_that_no_worker_sends_are_refused(law: Law) -> None:
    """8 documents of 64 tokens make one shard of 64 H."""
    settings = StatisticsSettings(tokens_per_document=64)
    assert law.check(law.file(documents=8, settings=settings)).warnings == []
    for sent, where in (
        (law.file(documents=7, settings=settings), "manifest.tokens"),
        (law.file(shards=2, tokens=2 * TOKENS - 1), "manifest.shards"),
    ):
        with pytest.raises(MoergeError) as caught:
            law.check(sent)
        assert caught.value.where == where
    with pytest.raises(MoergeError, match="511 tokens; expected at least 512"):
        law.check(law.head_file(511))
    with pytest.raises(MoergeError, match="a body contribution; expected one of: router, head"):
        law.check(law.body_file())


def test_public_text_of_another_pool_is_refused(law: Law) -> None:
    """A pool of someone's choice would ask the same text again."""
    own, other = (StatisticsSettings(before=TextBefore(pool=pool)) for pool in (POOL, "0" * 64))
    assert law.send(law.file(settings=own)).active
    with pytest.raises(MoergeError, match="expected the pool of this moerge") as caught:
        law.check(law.file(1, settings=other))
    assert caught.value.where == "settings.before.pool"


def test_another_public_text_of_noise_is_refused(law: Law) -> None:
    def file(first: int, public: str) -> str:
        privacy = Privacy(epsilon=1.0, public=public)
        return law.file(first, documents=TOKENS, settings=StatisticsSettings(tokens_per_document=1, privacy=privacy))

    law.check(file(0, POOL))
    with pytest.raises(MoergeError, match=f"expected the pool of this moerge, {POOL}, found {'1' * 64}") as caught:
        law.check(file(1, "1" * 64))
    assert caught.value.where == "settings.privacy.public"


def test_all_tokens_under_a_body_have_room_in_the_integers(law: Law) -> None:
    first = law.send(law.file(0))
    most = law.file(1, tokens=MAX_TOKENS - TOKENS)
    too_many = law.file(2, tokens=MAX_TOKENS - TOKENS + 1)
    with pytest.raises(RefusedError, match=f"{first.digest} of owner 'law-owner' has the most, 512") as caught:
        law.send(too_many)
    assert caught.value.where == "manifest.tokens"
    law.send(most)
    with pytest.raises(RefusedError, match="expected at most"):
        law.send(law.file(3))
    assert law.send(law.file(3, split="tuning")).active, "splits are not added"


def test_an_expert_has_one_active_head_contribution(law: Law) -> None:
    first, second = law.head_file(1), law.head_file(2)
    contributions.accept(law.ports, NewContribution(sha256=first), CHECKED)
    for supersedes in ([], ["0" * 64], [first, first]):
        with pytest.raises(RefusedError, match=f"active head contribution is {first}"):
            contributions.accept(law.ports, NewContribution(sha256=second, supersedes=supersedes), CHECKED)
    contributions.accept(law.ports, NewContribution(sha256=second, supersedes=[first]), CHECKED)
    assert law.active() == [second]
    assert law.claimed() == {}


def test_head_contribution_must_fit_the_expert(law: Law, tmp_path: Path) -> None:
    whole = expert(tmp_path / "law", 1, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=2)
    folder = write_parts(DenseFiles(whole), tmp_path / "parts")
    files = [
        FileEntry(name=path.name, sha256=law.kept(path), size=path.stat().st_size) for path in sorted(folder.iterdir())
    ]
    with law.ports.database.transaction("test") as session:
        session.merge(law.expert).files = files
    assert law.check(law.head_file(TOKENS, value=2**20)).warnings == []
    for sent, where in (
        (law.head_file(TOKENS, value=-(2**40)), "head_input"),
        (law.head_file(TOKENS, value=2**60), "head_input"),
        (law.head_file(16 * TOKENS, hidden=2 * HIDDEN), "manifest.hidden_size"),
    ):
        with pytest.raises(MoergeError) as caught:
            law.check(sent)
        assert caught.value.where == where


def test_parts_contribute_under_their_own_body_only(law: Law) -> None:
    with law.ports.database.transaction("test") as session:
        session.merge(law.expert).parts_body = "0" * 64
    with pytest.raises(MoergeError, match=f"has parts for a different body, {'0' * 64}") as caught:
        law.check(law.file())
    assert caught.value.where == "manifest.expert"


def test_a_contribution_withdrawn_may_come_again(law: Law) -> None:
    sent = law.send(law.file(0))
    with law.ports.database.transaction("test") as session:
        withdrawal.withdraw_contribution(session, session.scalars(select(ContributionRow)).one())
    assert law.claimed() == {}
    assert law.send(sent.digest).active


@pytest.mark.parametrize(
    ("change", "reason", "where"),
    [
        ({"owner": "art-owner"}, "made for owner 'art-owner'", "manifest.owner"),
        ({"domain": "art"}, "does not belong to owner 'law-owner'", "domain"),
        ({"expert": "0" * 64}, "is not the ready expert", "manifest.expert"),
        ({"body": "0" * 64}, "; the current one is", "manifest.body"),
    ],
)
def test_sums_of_others_and_of_other_bodies_are_refused(
    law: Law, change: dict[str, Any], reason: str, where: str
) -> None:
    with pytest.raises(MoergeError, match=reason) as caught:
        law.check(law.file(0, **change))
    assert caught.value.where == where


@pytest.mark.parametrize(("field", "value"), [("hidden_size", 16), ("layers", 1), ("exponents", [1] * LAYERS)])
def test_sums_of_other_sizes_than_the_body_s_are_refused(law: Law, field: str, value: object) -> None:
    sent = law.file()
    with law.ports.database.transaction("test") as session:
        setattr(session.merge(law.body), field, value)
    with pytest.raises(MoergeError) as caught:
        law.check(sent)
    assert caught.value.where == f"manifest.{field}"


def test_acceptance_rechecks_the_body_and_the_signature(law: Law) -> None:
    """Between the check, which may take minutes, and the acceptance anything may have happened."""
    new = NewContribution(sha256=law.file(0))
    assert law.check(new.sha256).warnings == []
    with law.ports.database.transaction("test") as session:
        other = add_body(session, "other")
    with pytest.raises(RefusedError, match="; the current one is"):
        contributions.accept(law.ports, new, CHECKED)
    with law.ports.database.transaction("test") as session:
        session.merge(other).current = False
        session.merge(law.body).current = True
        owner_keys.add_key(session, "law-owner", "00" * 32, "public_key")
    for call in (lambda: law.check(new.sha256), lambda: contributions.accept(law.ports, new, CHECKED)):
        with pytest.raises(RefusedError) as caught:
            call()
        assert caught.value.where == "signature"
    law.ports.blobs.delete(new.sha256)
    with pytest.raises(RefusedError, match="no complete upload"):
        contributions.accept(law.ports, new, CHECKED)
    assert law.active() == []


def test_sums_of_expert_withdrawn_after_check_are_refused(law: Law) -> None:
    new = NewContribution(sha256=law.file(0))
    law.check(new.sha256)
    with law.ports.database.transaction("test") as session:
        withdrawal.withdraw_expert(session, session.merge(law.expert), serve=True)
    with pytest.raises(RefusedError, match="was withdrawn meanwhile"):
        contributions.accept(law.ports, new, CHECKED)


def test_every_kind_of_contribution_has_its_entries() -> None:
    for registry in (contribution_kinds.RULES, CONTRIBUTIONS):
        assert set(registry) == set(get_args(Kind))
