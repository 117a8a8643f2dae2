"""How domains move on one body, and what a remerge is expected to gain, by figures computed by hand."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from moerge_coordinator.domain.body_history import Evaluated, history_of
from moerge_proto.bodies import Body, BodyOptions
from moerge_proto.digests import sha256_hex
from moerge_proto.history import BodyHistory, Remerge
from moerge_proto.versions import HeadLineage

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
AVERAGED = HeadLineage(method="average")
LATER: dict[str, tuple[float, float]] = {"law": (86, 90), "art": (84, 86), "code": (88, 89)}
"""On a body that code is in: the average is 86."""


def digest(name: str) -> str:
    return sha256_hex(name.encode())


def body(*domains: str, **change: Any) -> Body:
    """The body of the domains' experts, the current one."""
    fields = {
        "digest": digest(" ".join(domains)), "method": "average", "options": BodyOptions(),
        "experts": [digest(domain) for domain in domains], "contributions": [], "revision": 1, "family": "llama",
        "hidden_size": 8, "layers": 1, "config": {}, "exponents": [1], "tensors": 1, "files": [], "source": None,
        "license": "unknown", "current": True, "created": NOW, "retired": None,
    }  # fmt: skip
    return Body.model_validate(fields | change)


def version(number: int, of: Body, *missing: str, **scores: tuple[float, float]) -> Evaluated:
    """A version with (normalised, oracle) of its domains, and domains that didn't evaluate it."""
    experts = {domain: digest(domain) for domain in (*scores, *missing)}
    return Evaluated(number, of.digest, experts, scores, AVERAGED, experts)


def shown(of: Body, *versions: Evaluated, kin: list[Body] | None = None, gone: str = "") -> BodyHistory:
    ready = {expert for item in versions for expert in item.experts.values()} - {digest(gone)}
    return history_of(of, kin or [of], versions, ready)


def advice(of: Body, *versions: Evaluated, **more: Any) -> Remerge:
    result = shown(of, *versions, **more).remerge
    assert result is not None
    return result


TWO = body("law", "art")
THREE = body("law", "art", "code")
FIRST = version(1, TWO, law=(90, 92), art=(80, 88))
SECOND = version(2, TWO, law=(89, 92), art=(81.5, 88), code=(60, 63))


def test_each_domain_moves_from_where_the_version_before_had_it() -> None:
    first, second, third = shown(TWO, FIRST, SECOND, version(3, TWO, "art", law=(91, 92), code=(61, 63))).versions
    assert [(score.domain, score.moved) for score in first.scores] == [("law", None), ("art", None)]
    assert [(score.domain, score.newcomer, score.moved) for score in second.scores] == [
        ("law", False, -1), ("art", False, 1.5), ("code", True, None),
    ]  # fmt: skip
    assert [(score.domain, score.moved) for score in third.scores] == [("law", 2), ("code", 1)]
    assert (first.average, first.behind, first.newcomers) == (85, None, [])
    assert second.average == pytest.approx(230.5 / 3)
    assert (second.behind, second.newcomers) == (25.25, ["code"])  # 85.25 - 60
    assert (third.average, third.behind, third.missing) == (None, None, ["art"])


def test_another_expert_of_the_domain_starts_anew() -> None:
    experts = {"law": digest("law"), "art": digest("other art")}
    other = Evaluated(2, TWO.digest, experts, {"art": (70, 70)}, AVERAGED, experts)
    [score] = shown(TWO, FIRST, other).versions[1].scores
    assert (score.moved, score.newcomer) == (None, True)


def test_newcomers_are_expected_to_reach_the_members_who_fall() -> None:
    """M = 90, N = 63: a third of 27 points, less 10 x 1 / (1 x 3) for every domain."""
    result = advice(TWO, FIRST, SECOND)
    assert (result.version, result.newcomers, result.missing) == (2, ["code"], [])
    assert (result.members_oracle, result.newcomers_oracle) == (90, 63)
    assert result.fall == pytest.approx(10 / 3)
    assert result.expected == pytest.approx(17 / 3)
    assert result.recommended
    assert result.merge.experts == [digest("law"), digest("art"), digest("code")]


def test_estimate_for_two_new_experts_and_a_larger_body() -> None:
    """M = 85, N = 55, half of 30 points; four experts in the body, so 15 x 2 / (3 x 6)."""
    four = body("law", "art", "music", "film")
    given = version(1, four, law=(80, 80), art=(90, 90), code=(50, 50), med=(60, 60))
    assert advice(four, given).expected == pytest.approx(15 - 30 / 18)


def test_from_a_body_of_one_half_of_it_is_expected() -> None:
    one = body("law")
    result = advice(one, version(1, one, law=(100, 100), art=(58, 60)))
    assert (result.fall, result.expected) == (10, 10)  # half of 40 points, halved


def test_estimated_fall_is_zero_for_members_above_dense_score() -> None:
    result = advice(TWO, version(1, TWO, law=(104, 104), art=(100, 102), code=(97, 100)))
    assert (result.fall, result.expected) == (0, 1)


@pytest.mark.parametrize(
    ("code", "change", "recommended"),
    [
        (77.1, {}, False),  # 12.9 / 3 - 10 / 3 = 0.97
        (76.9, {}, True),  # 1.03
        (60.0, {"current": False}, False),
        (60.0, {"retired": NOW}, False),
    ],
)
def test_current_body_remerge_is_recommended_from_one_point(
    code: float, change: dict[str, Any], recommended: bool
) -> None:
    two = TWO.model_copy(update=change)
    result = advice(two, version(1, two, law=(92, 92), art=(88, 88), code=(code, code)))
    assert result.recommended == recommended


def test_missing_oracle_gives_no_estimate_and_names_the_domain() -> None:
    result = advice(TWO, version(1, TWO, "art", "code", law=(90, 92)))
    assert (result.expected, result.recommended, result.missing) == (None, False, ["art", "code"])
    without = body("music")
    alone = advice(without, version(1, without, law=(90, 92)))
    assert (alone.expected, alone.missing, alone.newcomers) == (None, [], ["law"])  # no member to compare with


def test_an_oracle_counts_from_any_version_of_the_body() -> None:
    result = advice(TWO, FIRST, SECOND, version(3, TWO, "law", "art", code=(62, 66)))
    assert (result.version, result.newcomers_oracle) == (2, 66)  # 2 is the one whose average is known
    elsewhere = version(3, THREE, "law", code=(88, 89), art=(84, 86))
    assert advice(TWO, version(4, TWO, "law", art=(80, 88), code=(60, 63)), elsewhere).missing == ["law"]


def test_an_oracle_of_another_head_or_of_other_mlps_does_not_count() -> None:
    """Version 3 is the newest, and nobody has evaluated it; the oracle of version 2 is that of other weights."""
    newest = version(3, TWO, "law", "art", "code")
    assert advice(TWO, SECOND, newest).missing == []
    for change in (
        {"head": HeadLineage(method="average", revision=2)},
        {"registered": {**newest.registered, "code": digest("parts")}},
    ):
        result = advice(TWO, SECOND, replace(newest, **change))
        assert (result.missing, result.expected, result.recommended) == (["law", "art", "code"], None, False)


SOLVED = HeadLineage(method="regmean", contributions=[digest("law's"), digest("art's"), digest("code's")])


def test_fitted_newcomers_under_a_solved_head_gain_nothing_by_a_remerge() -> None:
    """Measured: 0.3 points of the average on the demo, 0.5 on `standard` (docs/quality.md, experts that join)."""
    result = advice(TWO, FIRST, replace(SECOND, head=SOLVED, fitted=["code"]))
    assert (result.newcomers, result.fitted) == (["code"], ["code"])
    assert (result.members_oracle, result.newcomers_oracle) == (90, None)
    assert (result.fall, result.expected, result.recommended) == (0, 0, False)
    assert result.merge.experts == [digest("law"), digest("art"), digest("code")]  # it remains possible


def test_a_remerge_is_recommended_where_fitted_newcomers_are_as_many_as_the_body_s_experts() -> None:
    """Measured: 0.2 points on the demo, 1.3 on `standard`, 3.1 with three newcomers; no oracle shows how much."""
    four = replace(version(2, TWO, "film", law=(89, 92), art=(81, 88), code=(85, 86)), head=SOLVED)
    for fitted in (["code", "film"], ["code"]):
        result = advice(TWO, FIRST, replace(four, fitted=fitted))
        assert (result.outnumbered, result.fall, result.expected, result.recommended) == (True, None, None, True)
    alone = advice(THREE, replace(four, body=THREE.digest, fitted=["film"]))
    assert (alone.newcomers, alone.outnumbered, alone.recommended) == (["film"], False, False)
    merged = body("law", "art", "code", "film")
    assert not advice(TWO, FIRST, replace(four, fitted=["code", "film"]), kin=[TWO, merged]).recommended


@pytest.mark.parametrize("change", [{"head": SOLVED}, {"fitted": ["code"]}])
def test_own_mlps_and_another_head_leave_the_gain_as_it_was(change: dict[str, Any]) -> None:
    result = advice(TWO, FIRST, replace(SECOND, **change))
    assert (result.fitted, result.recommended) == ([], True)
    assert result.expected == pytest.approx(17 / 3)


def test_only_newcomers_with_their_own_mlps_count_in_the_estimate() -> None:
    """M = 90 and N = 60 of film: a fifth of 30 points, less 10 x 1 / (2 x 4)."""
    five = version(2, THREE, law=(89, 92), art=(81, 88), code=(88, 90), music=(85, 86), film=(58, 60))
    result = advice(THREE, replace(five, head=SOLVED, fitted=["music"]))
    assert (result.newcomers, result.fitted, result.newcomers_oracle) == (["music", "film"], ["music"], 60)
    assert result.expected == pytest.approx(6 - 10 / 8)


def test_no_remerge_is_shown_without_newcomers_or_for_a_seed() -> None:
    assert shown(TWO, SECOND, version(3, TWO, law=(90, 92))).remerge is None
    assert shown(TWO, FIRST, SECOND, gone="code").remerge is None
    seed = body(method="seed", source="seed")
    result = shown(TWO, FIRST, version(2, seed, law=(100, 100), art=(50, 50)), kin=[TWO])
    assert result.before is None
    result = shown(seed, version(1, seed, law=(100, 100)), version(2, seed, law=(99, 100), art=(50, 50)))
    assert (result.remerge, result.before) == (None, None)
    assert [(item.newcomers, item.behind) for item in result.versions] == [([], None)] * 2
    assert [score.moved for score in result.versions[1].scores] == [-1, None]


def test_what_came_of_a_remerge_stands_beside_what_was_expected() -> None:
    """From 230.5 / 3 to 86."""
    old = TWO.model_copy(update={"current": False})
    after = version(3, THREE, **LATER)
    result = shown(THREE, FIRST, SECOND, after, kin=[old, THREE])
    assert result.remerge is None
    assert result.before is not None
    assert (result.before.body, result.before.version, result.before.after) == (TWO.digest, 2, 3)
    assert result.before.expected == advice(TWO, FIRST, SECOND).expected  # not wise after the event
    assert result.before.real == pytest.approx(86 - 230.5 / 3)
    assert shown(old, FIRST, SECOND, after, kin=[old, THREE]).remerge == result.before


def test_remerge_gain_is_unknown_before_evaluation() -> None:
    old = TWO.model_copy(update={"current": False})
    for last, number in ((version(3, THREE, "code", law=(86, 90), art=(84, 86)), 3), (FIRST, None)):
        result = shown(THREE, FIRST, SECOND, last, kin=[old, THREE]).before
        assert result is not None
        assert (result.after, result.real) == (number, None)


def test_remerge_is_not_recommended_again_after_rollback() -> None:
    new = THREE.model_copy(update={"current": False})
    result = advice(TWO, FIRST, SECOND, version(3, new, **LATER), kin=[TWO, new])
    assert result.real == pytest.approx(86 - 230.5 / 3)
    assert not result.recommended


def test_unrelated_body_replaces_no_previous_body() -> None:
    other = body("law", "music")
    assert shown(other, FIRST, SECOND, kin=[TWO, other]).before is None
    assert shown(THREE, FIRST, version(2, THREE, **LATER), kin=[TWO, THREE]).before is None
