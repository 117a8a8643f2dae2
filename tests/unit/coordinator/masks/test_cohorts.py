"""Cohorts: masked contributions count as a whole, once their keepers have answered; a part of one never does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moerge.errors import MoergeError
from moerge.masks.keeper import KeeperError
from moerge_coordinator.domain import withdrawal
from moerge_coordinator.domain.sums import contributions_in
from moerge_coordinator.masks import cohorts
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.references import needed
from moerge_coordinator.storage.tables import ExpertRow
from moerge_proto.problems import ProblemType
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import SumManifest, Sums
from support.cohorts import DOMAINS, HIDDEN, TOKENS, Rounds, rounds_in
from support.masked import MaskedOwner
from support.statistics import honest_sums


@pytest.fixture
def rounds(tmp_path: Path) -> Iterator[Rounds]:
    with rounds_in(tmp_path) as made:
        yield made


def test_a_cohort_is_made_once_and_its_sum_is_that_of_all(rounds: Rounds) -> None:
    sent = [rounds.send(domain) for domain in DOMAINS]
    assert {row.effective_rank for row in sent} == {None}
    assert all("can't be checked" in row.warnings[0] for row in sent)
    with pytest.raises(RefusedError, match="contributions of art, code, law count only in a sum"):
        rounds.lineage()
    request = rounds.ask()
    assert rounds.ask() == request
    with pytest.raises(RefusedError, match="the sum of cohort 1 is not known yet"):
        rounds.lineage()
    assert rounds.unmask() == 1
    lineage = rounds.lineage()
    [found] = lineage.contributions
    plain = [honest_sums(HIDDEN, TOKENS, 1, HIDDEN, seed=seed).arrays for seed in range(3)]
    with Sums(rounds.ports.blobs.source(found)) as file:
        assert isinstance(file.manifest, SumManifest)
        assert file.manifest.contributions == sorted(row.digest for row in sent)
        assert np.array_equal(file.gram(1), sum(item["layers.1.gram"] for item in plain))
        for domain, item in zip(DOMAINS, plain, strict=True):
            assert np.array_equal(file.cross(1, domain), item["layers.1.cross"])
    with rounds.ports.database.reading() as session:
        assert found in needed(session)
        assert sorted(contributions_in(session, [found])) == sorted(row.digest for row in sent)
    with pytest.raises(RefusedError, match="no masked contribution is without a cohort"):
        rounds.ask()
    with pytest.raises(RefusedError, match="cohort that waits"):
        cohorts.unmask(rounds.ports.database, rounds.ports.blobs, [])


def test_a_cohort_counts_whole_or_not_at_all(rounds: Rounds) -> None:
    new = {domain: rounds.new(domain) for domain in DOMAINS}
    sent = {domain: rounds.accept(domain, new[domain]) for domain in DOMAINS}
    rounds.ask()
    for change in ({"number": 1}, {"number": 1, "masked": False}):
        with pytest.raises(RefusedError, match="'law' is in the sum of cohort 1 under this body"):
            rounds.send("law", **change)
    rounds.unmask()
    whole = rounds.lineage()
    left = [rounds.experts[domain].digest for domain in ("art", "code")]
    with pytest.raises(RefusedError, match=r"cohort 1 lacks contribution .* of law"):
        rounds.lineage(experts=left)
    rounds.withdraw(sent["law"].digest)
    with pytest.raises(RefusedError, match=r"cohort 1 lacks contribution .* of law"):
        rounds.lineage()
    rounds.accept("law", new["law"])
    assert rounds.lineage() == whole


def test_a_cohort_that_waits_can_be_dissolved(rounds: Rounds) -> None:
    """Contributions that were withdrawn in the meantime are in no sum."""
    sent = {domain: rounds.send(domain) for domain in DOMAINS}
    first = rounds.ask()
    rounds.withdraw(sent["law"].digest)
    with pytest.raises(RefusedError, match=r"contribution .* of law was withdrawn from cohort 1"):
        cohorts.unmask(rounds.ports.database, rounds.ports.blobs, [])
    cohorts.dissolve(rounds.ports.database)
    with pytest.raises(RefusedError, match="masked contributions of 2 owners"):
        rounds.ask()
    rounds.send("law", number=1)
    second = rounds.ask()
    assert second.digest != first.digest
    assert rounds.unmask() == 1
    with rounds.ports.database.reading() as session:
        counted = list(contributions_in(session, rounds.lineage().contributions))
    assert counted == sorted(part.contribution for part in second.parts)


def test_answers_of_all_keepers_to_this_request_are_needed(rounds: Rounds, tmp_path: Path) -> None:
    for domain in DOMAINS:
        rounds.send(domain)
    good = rounds.answer(rounds.ask())
    content, bad = good.read_bytes(), tmp_path / "bad"

    def refusal(*answers: Path) -> str:
        with pytest.raises(MoergeError) as caught:
            cohorts.unmask(rounds.ports.database, rounds.ports.blobs, answers)
        return caught.value.what

    assert f"no answer of 1 of 1 keepers: {rounds.keeper.public_key}" in refusal()
    for changed, problem in (
        (content[:-1], "not an answer to this request: expected"),
        (bytes(32) + content[32:], "an answer of keeper"),
        (content[:32] + bytes(32) + content[64:], "an answer of keeper 000000000000"),
        (content[:64] + bytes(len(content) - 64), "the sum of the cohort of art, code, law"),
    ):
        bad.write_bytes(changed)
        assert problem in refusal(bad)
    assert cohorts.unmask(rounds.ports.database, rounds.ports.blobs, [good]) == 1


def test_fewer_owners_than_one_asks_for_wait(rounds: Rounds) -> None:
    for domain in DOMAINS[:2]:
        rounds.send(domain)
    with pytest.raises(RefusedError, match="contributions of art, code count only in a sum") as early:
        rounds.lineage()
    with pytest.raises(RefusedError, match="masked contributions of 2 owners, art-owner, code-owner") as caught:
        rounds.ask()
    assert early.value.kind == caught.value.kind == ProblemType.NOT_READY
    rounds.send("law")
    with pytest.raises(RefusedError, match="masked contributions of 2 owners, art-owner, law-owner"):
        rounds.ask("art", "law")


@pytest.mark.parametrize(
    "options",
    [{"domain_weights": "balanced"}, {"domain_weights": {"law": 2.0}}, {"lambda_scale": "auto"}],
)
def test_options_that_need_each_owners_sums_are_refused(rounds: Rounds, options: dict[str, Any]) -> None:
    for domain in DOMAINS:
        rounds.send(domain)
    rounds.unmask()
    with pytest.raises(RefusedError, match="contributions of art, code, law count as a sum"):
        rounds.lineage(options=SolveOptions.model_validate(options))
    assert rounds.lineage(options=SolveOptions(domain_weights=dict.fromkeys(DOMAINS, 2.0)))


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


def test_a_refusal_of_the_keeper_makes_no_sum(rounds: Rounds) -> None:
    for domain in DOMAINS:
        rounds.send(domain)
    rounds.keeper.approve(MaskedOwner("law").request, replace=True)
    with pytest.raises(KeeperError, match="not signed by an approved key of 'law-owner'"):
        rounds.unmask()


def test_a_purged_member_takes_the_sum_along(rounds: Rounds) -> None:
    for domain in DOMAINS:
        rounds.send(domain)
    rounds.unmask()
    [found] = rounds.lineage().contributions
    with rounds.ports.database.transaction("test") as session:
        law = session.get_one(ExpertRow, rounds.experts["law"].number)
        withdrawal.withdraw_expert(session, law, serve=False)
        assert found in needed(session)
        withdrawal.purge_expert(session, law)
        assert found not in needed(session)
