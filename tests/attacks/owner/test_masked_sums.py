"""One owner of a masked cohort sends integers that nobody can check alone: the sum is bounded before it counts."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from moerge.errors import ContributionError
from moerge.masks.files import write_sum
from moerge.statistics.validate import validate
from moerge_coordinator.storage.tables import CohortRow
from moerge_proto.statistics_file import Privacy, RouterManifest, StatisticsFile, Sums
from moerge_workers.settings import Settings
from support.cohorts import DOMAINS, HIDDEN, Rounds, rounds_in
from support.statistics import LAYERS, honest_sums, manifest_of, written

KEEPER = "0" * 64


@pytest.fixture
def rounds(tmp_path: Path) -> Iterator[Rounds]:
    with rounds_in(tmp_path) as made:
        yield made


def refusal(rounds: Rounds, **poison: Any) -> ContributionError:
    for domain in DOMAINS:
        rounds.send(domain, **(poison if domain == "law" else {}))
    with pytest.raises(ContributionError, match="the sum of the cohort of art, code, law: ") as caught:
        rounds.unmask()
    with rounds.ports.database.reading() as session:
        assert [row.sum for row in session.scalars(select(CohortRow))] == [None], "it has no sum"
    return caught.value


@pytest.mark.parametrize("add", [2**40, 2**60, 2**62])
def test_a_gram_that_is_none_makes_no_cohort_and_names_all_that_may_be_wrong(rounds: Rounds, add: int) -> None:
    error = refusal(rounds, add=add)
    assert "the part of art-owner or code-owner or law-owner is wrong, or a keeper's answer" in error.what
    assert "nobody can tell whose" in error.todo


@pytest.mark.parametrize("add", [2**40, 2**62])
def test_an_impossible_mean_names_its_owner(rounds: Rounds, add: int) -> None:
    """The sum of a domain's features becomes known alone."""
    error = refusal(rounds, add=add, tensor="layers.1.cross")
    assert error.where == "layers.1.cross of 'law'"
    assert "the part of law-owner is wrong, or a keeper's answer" in error.what


def test_features_of_two_domains_of_one_owner_do_not_cancel(tmp_path: Path) -> None:
    """Their sum is honest, and each is within the longest that so many features can be."""
    with ExitStack() as stack:
        files = []
        for seed, domain in enumerate(("art", "code", "law", "sea")):
            sums = honest_sums(HIDDEN, 512, 1, HIDDEN, seed)
            for layer in range(LAYERS):
                sums.arrays[f"layers.{layer}.cross"][0] += {"law": 1, "sea": -1}.get(domain, 0) * 1200 * 2**16
            path = written(tmp_path / domain, manifest_of(sums, 1, domain=domain), sums)
            files.append(stack.enter_context(StatisticsFile(path)))
        with (tmp_path / "sum").open("wb") as out:
            write_sum(out, {str(number) * 64: file for number, file in enumerate(files)})
        summed = stack.enter_context(Sums(tmp_path / "sum"))
        with pytest.raises(ContributionError, match="can't be the sum of this gram's features") as caught:
            validate(summed, summed.manifest.exponents, [float(HIDDEN)] * LAYERS)
        assert caught.value.where == "layers.0.cross of 'law'"


def test_masks_and_noise_exclude_each_other(tmp_path: Path) -> None:
    """A sum of masked sums with noise has entries of any size: one owner's integers of 2^60 took the whole gram."""
    fields = {"coordinator": "", "token": "", "domain": "law", "expert": "e", "data": ["d"], "home": str(tmp_path)}
    given: dict[str, object] = {**fields, "masks": {"keepers": [KEEPER]}, "privacy": {"epsilon": 1.0}}
    given |= {"fit": False, "policy": {"head_contributions": False}}
    with pytest.raises(ValidationError, match="masks and privacy exclude each other: nobody can check a sum"):
        Settings.model_validate(given)
    manifest = manifest_of(honest_sums(HIDDEN, 512, 1, HIDDEN, 0), 1)
    noisy = manifest.settings.private(Privacy(epsilon=1.0)).model_dump()
    with pytest.raises(ValidationError, match="expected none with keepers"):
        RouterManifest.model_validate({**manifest.model_dump(), "settings": noisy, "keepers": [KEEPER]})
