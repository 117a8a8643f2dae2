"""Cohorts: masked contributions count as a whole, once their keepers have answered; a part of one never does."""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from sqlalchemy import select

from moerge.errors import ContributionError, MoergeError
from moerge.keeper.journal import Keeper, KeeperError, make_key
from moerge_coordinator.domain import cohorts, contributions, owner_keys, owners, versions, withdrawal
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.references import needed
from moerge_coordinator.storage.tables import BodyRow, CohortRow, ContributionRow, ExpertRow
from moerge_proto.contributions import Contribution, NewContribution, signed_contribution
from moerge_proto.digests import sha256_hex
from moerge_proto.masks import MasksRequest, summed
from moerge_proto.options import SolveOptions
from moerge_proto.owners import Role
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import Privacy, StatisticsFile, exponent
from moerge_proto.versions import Lineage, NewVersion
from support.masked import MaskedOwner
from support.rows import add_body, add_expert
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
    asked: list[str] = field(default_factory=list)

    def new(
        self, domain: str, number: int = 0, add: int = 0, masked: bool = True, privacy: Privacy | None = None
    ) -> NewContribution:
        """A kept contribution; `add`: to an entry of its gram."""
        sums = honest_sums(HIDDEN, TOKENS, 1, HIDDEN, seed=DOMAINS.index(domain) + 10 * number)
        sums.arrays["layers.0.gram"][1] += add
        manifest = manifest_of(sums, 1, domain=domain, first_shard=number).model_copy(
            update={"expert": self.experts[domain].digest, "body": self.body.digest, "owner": f"{domain}-owner"}
        )
        if privacy is not None:
            manifest = manifest.model_copy(update={"settings": manifest.settings.private(privacy)})
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

    def fetch(self, url: str, request: MasksRequest, out: BinaryIO) -> str:
        """The keeper's answer, without HTTP."""
        self.asked.append(url)
        answer = b"".join(summed(request, self.keeper.seeds(request)))
        out.write(answer)
        return sha256_hex(answer)

    def unmask(self, lineage: Lineage) -> None:
        cohorts.unmask(self.ports, lineage, self.fetch)

    def withdraw(self, digest: str) -> None:
        with self.ports.database.transaction("test") as session:
            row = session.scalars(select(ContributionRow).where(ContributionRow.digest == digest)).one()
            withdrawal.withdraw_contribution(session, row)


@pytest.fixture
def rounds(ports: Ports, tmp_path: Path) -> Rounds:
    make_key(tmp_path / "keeper")
    keeper, known = Keeper(tmp_path / "keeper"), {domain: MaskedOwner(domain) for domain in DOMAINS}
    with ports.database.transaction("test") as session:
        experts = {domain: add_expert(session, domain) for domain in DOMAINS}
        sizes: dict[str, Any] = {"hidden_size": HIDDEN, "layers": LAYERS}
        bounds = {"exponents": [exponent(HIDDEN)] * LAYERS, "bounds": [float(HIDDEN)] * LAYERS}
        body = add_body(session, list(experts.values()), **sizes, **bounds)
        for owner in known.values():
            owner_keys.add_key(session, owner.name, owner.request.public_key, "key")
            keeper.approve(owner.request, replace=False)
    settings = Settings(home=tmp_path, keepers={keeper.public_key: "http://127.0.0.1:1"})
    return Rounds(replace(ports, settings=settings), keeper, body, experts, known, tmp_path)


def test_a_cohort_is_made_once_and_its_sum_is_that_of_all(rounds: Rounds) -> None:
    sent = [rounds.send(domain) for domain in DOMAINS]
    assert {row.effective_rank for row in sent} == {None}
    assert all("can't be checked" in row.warnings[0] for row in sent)
    lineage = rounds.lineage()
    for _ in range(2):
        rounds.unmask(lineage)
    assert rounds.asked == ["http://127.0.0.1:1"]
    assert rounds.lineage() == lineage
    [found] = cohorts.sources(rounds.ports.database, rounds.ports.blobs, lineage)
    assert sorted(found.members) == lineage.contributions == sorted(row.digest for row in sent)
    assert found.released is None
    plain = [honest_sums(HIDDEN, TOKENS, 1, HIDDEN, seed=seed).arrays["layers.1.gram"] for seed in range(3)]
    with ExitStack() as stack:
        files = [stack.enter_context(StatisticsFile(rounds.ports.blobs.source(digest))) for digest in found.members]
        assert np.array_equal(found.opened(stack, files).gram(1), sum(plain))
    with rounds.ports.database.reading() as session:
        [cohort] = session.scalars(select(CohortRow))
        assert set(cohort.answers.values()) <= needed(session)


def test_a_cohort_counts_whole_or_not_at_all(rounds: Rounds) -> None:
    new = {domain: rounds.new(domain) for domain in DOMAINS}
    sent = {domain: rounds.accept(domain, new[domain]) for domain in DOMAINS}
    whole = rounds.lineage()
    rounds.unmask(whole)
    for change in ({"number": 1}, {"number": 1, "masked": False}):
        with pytest.raises(RefusedError, match="'law' is in the sum of cohort 1 under this body"):
            rounds.send("law", **change)
    left = [rounds.experts[domain].digest for domain in ("art", "code")]
    with pytest.raises(RefusedError, match=r"cohort 1 lacks contribution .* of law"):
        rounds.lineage(experts=left)
    rounds.withdraw(sent["law"].digest)
    with pytest.raises(RefusedError, match=r"cohort 1 lacks contribution .* of law"):
        rounds.lineage()
    rounds.accept("law", new["law"])
    assert rounds.lineage() == whole
    assert rounds.asked == ["http://127.0.0.1:1"]


def test_fewer_owners_than_one_asks_for_wait(rounds: Rounds) -> None:
    for domain in DOMAINS[:2]:
        rounds.send(domain)
    with pytest.raises(RefusedError, match="masked contributions of 2 owners, art-owner, code-owner") as caught:
        rounds.lineage()
    assert caught.value.kind == ProblemType.NOT_READY
    assert rounds.asked == []


@pytest.mark.parametrize(
    "options",
    [{"domain_weights": "balanced"}, {"domain_weights": {"law": 2.0}}, {"lambda_scale": "auto"}],
)
def test_options_that_need_each_owners_sums_are_refused(rounds: Rounds, options: dict[str, Any]) -> None:
    for domain in DOMAINS:
        rounds.send(domain)
    with pytest.raises(RefusedError, match="are masked"):
        rounds.lineage(options=SolveOptions.model_validate(options))
    assert rounds.lineage(options=SolveOptions(domain_weights=dict.fromkeys(DOMAINS, 2.0)))


def test_a_sum_that_is_not_of_features_makes_no_cohort(rounds: Rounds) -> None:
    for domain in DOMAINS:
        rounds.send(domain, add=2**40 if domain == "law" else 0)
    with pytest.raises(ContributionError, match="the sum of the cohort of art, code, law: ") as caught:
        rounds.unmask(rounds.lineage())
    assert "nobody can tell whose" in caught.value.todo
    with rounds.ports.database.reading() as session:
        assert session.scalars(select(CohortRow)).all() == []


def test_seals_must_be_the_owners_and_for_the_files_keepers(rounds: Rounds) -> None:
    new, plain = rounds.new("law"), rounds.new("law", number=1, masked=False)
    art = rounds.new("art")
    assert new.masks is not None
    for wrong in (
        new.model_copy(update={"masks": None}),
        new.model_copy(update={"masks": new.masks.model_copy(update={"sealed": {"1" * 64: "0" * 160}})}),
        new.model_copy(update={"masks": new.masks.model_copy(update={"owners": 9})}),
        new.model_copy(update={"masks": art.masks}),
        plain.model_copy(update={"masks": new.masks}),
    ):
        with pytest.raises(RefusedError) as caught:
            rounds.accept("law", wrong)
        assert caught.value.where.startswith("masks")
    assert rounds.accept("law", new).active


@pytest.mark.parametrize(
    ("change", "problem", "where"),
    [
        ({"masked": False}, "expected more than 1 with keepers, and 1 without", "manifest"),
        ({}, "the current body is merged", "manifest.body"),
    ],
)
def test_divided_noise_is_for_masked_sums_under_the_seed_s_body(
    rounds: Rounds, change: dict[str, Any], problem: str, where: str
) -> None:
    with pytest.raises(ContributionError, match=problem) as caught:
        rounds.send("law", privacy=Privacy(epsilon=1.0, owners=3), **change)
    assert caught.value.where == where


def test_a_keeper_without_an_address_and_a_refusal_stop_the_solve(rounds: Rounds) -> None:
    for domain in DOMAINS:
        rounds.send(domain)
    lineage, known = rounds.lineage(), rounds.ports
    rounds.ports = replace(known, settings=Settings(home=rounds.folder))
    with pytest.raises(MoergeError, match="no address of the keeper with the key"):
        rounds.unmask(lineage)
    rounds.ports = known
    other = MaskedOwner("law")
    rounds.keeper.approve(other.request, replace=True)
    with pytest.raises(KeeperError, match="not signed by an approved key of 'law-owner'"):
        rounds.unmask(lineage)
