"""Cohorts: masked contributions count as a whole, once their keepers have answered; a part of one never does."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from moerge.errors import MoergeError
from moerge.keeper.journal import KeeperError
from moerge_coordinator.domain import cohorts
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.references import needed
from moerge_coordinator.storage.tables import CohortRow
from moerge_proto.options import SolveOptions
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import StatisticsFile
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
    lineage = rounds.lineage()
    for _ in range(2):
        rounds.unmask(lineage)
    assert rounds.asked == ["http://127.0.0.1:1"]
    assert rounds.lineage() == lineage
    [found] = cohorts.sources(rounds.ports.database, rounds.ports.blobs, lineage)
    assert sorted(found.members) == lineage.contributions == sorted(row.digest for row in sent)
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
