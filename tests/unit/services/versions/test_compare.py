"""Differences between two versions: experts by domain, averages over the same domains."""

from datetime import UTC, datetime

import pytest

from moerge.versions.compare import Averages, DomainChanges, averages, domain_changes, score_changes
from moerge_proto.evaluations import DomainScore, VersionTable
from moerge_proto.recipes import SolveOptions
from moerge_proto.versions import HeadLineage, Lineage


def lineage(**experts: str) -> Lineage:
    digests = [digit * 64 for digit in experts.values()]
    return Lineage(
        body="f" * 64,
        head=HeadLineage(method="average"),
        experts=digests,
        domains=list(experts),
        contributions=[],
        options=SolveOptions(),
        solver="s",
    )


def table(*missing: str, **scores: float) -> VersionTable:
    rows = [
        DomainScore(
            domain=domain, owner=domain, documents=1, tokens=1, dense=1, version=1, oracle=1, normalised=score,
            normalised_oracle=score, shares=[], created=datetime.now(UTC),
        )
        for domain, score in scores.items()
    ]  # fmt: skip
    average = None if missing else sum(scores.values()) / len(scores)
    domains = [*scores, *missing]
    return VersionTable(version=1, domains=domains, scores=rows, average=average, missing=list(missing))


def test_a_fitted_expert_is_its_domain_s() -> None:
    changes = domain_changes(lineage(cooking="1", sailing="2", law="3"), lineage(art="4", cooking="5", law="3"))
    assert changes == DomainChanges(added=["art"], removed=["sailing"], replaced=["cooking"])


def test_averages_over_the_same_domains_differ_in_points() -> None:
    [law, art, average] = score_changes(table(law=90, art=80), table(art=82, law=90))
    assert (law.points, art.points, art.is_average) == (0, 2, False)
    assert (average.name, average.points, average.is_average) == ("average of its 2 domains", 1, True)


def test_a_newcomer_s_score_is_no_fall_of_the_others() -> None:
    [*_, newcomer, whole, common] = score_changes(table(law=90, art=80), table(law=89, art=78, code=61))
    assert (newcomer.name, newcomer.before, newcomer.points) == ("code", None, None)
    assert (whole.name, whole.before, whole.after) == ("average of all its domains (2, 3)", 85, 76)
    assert whole.points is None
    assert (common.name, common.before, common.after) == ("average of the 2 that both have", 85, 83.5)
    assert common.points == pytest.approx(-1.5)


def test_domains_that_were_not_evaluated_on_both_are_left_out() -> None:
    [*_, whole, common] = score_changes(table("art", law=90), table(law=89, art=78))
    assert (whole.before, whole.after, whole.points) == (None, 83.5, None)
    assert (common.name, common.points) == ("average of the 1 with a score on both", -1)
    assert [change.name for change in score_changes(table("law"), table("law"))] == ["law", "average of its 1 domain"]


def test_averages_of_many_versions_are_over_common_domains_too() -> None:
    same = [table(law=90, art=80), None, table(law=92, art=80)]
    assert averages(same) == Averages(("average of its 2 domains", ""), [85, None, 86], [])
    result = averages([table(law=90, art=80), table(law=89, art=78, code=61), table("code", law=88, art=76)])
    assert result.names == ("own average", "average of 2")
    assert (result.over_own, result.over_common) == ([85, 76, None], [85, 83.5, 82])
    assert averages([table(law=90), table(art=80)]).over_common == []
