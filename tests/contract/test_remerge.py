"""Remerges by API, command and dashboard: expected and real gain. Tests continue one another."""

from collections.abc import Iterator

import pytest

from moerge_proto.evaluations import NewEvaluation
from moerge_proto.owners import NewToken, Role
from support.dashboard import act, signed_in
from support.federation import Federation, eventually, federation_of, parted
from support.merging import SMALL


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art are in the body; code joined it."""
    with federation_of(tmp_path_factory.mktemp("remerge"), "law", "art", **SMALL) as federation:
        body = federation.merge()
        federation.contribute(body)
        federation.solve()
        federation.add("code", **SMALL)
        federation.contribute(body, "code")
        federation.solve()
        yield federation


def evaluate(federation: Federation, number: int, **nll: tuple[float, float]) -> None:
    """Domain -> nats of version and oracle above the dense expert's 20, over ten tokens."""
    lineage = federation.operator.version(number).lineage
    for domain, (version, oracle) in nll.items():
        experts = len(lineage.experts)
        sums = {
            "number": number,
            "domain": domain,
            "expert": federation.members[domain].dense,
            "documents": 2,
            "context": 8,
            "stride": 4,
            "dense": {"nll": 20, "tokens": 10},
            "version": {"nll": 20 + version, "tokens": 10},
            "oracle": {"nll": 20 + oracle, "tokens": 10},
            "routed": [[10, *[0] * (experts - 1)]] * 2,
        }
        federation.members[domain].client.evaluate(number, NewEvaluation.model_validate(sums))


def test_a_remerge_without_evaluations_has_no_expected_gain(federation: Federation) -> None:
    remerge = federation.operator.body_history("current").remerge
    assert remerge is not None
    assert (remerge.expected, remerge.missing, remerge.recommended) == (None, ["law", "art", "code"], False)
    with signed_in(federation.server) as browser:
        assert "a remerge is expected to gain" not in browser.get("/versions").text
        assert "not evaluated: law, art, code" in browser.get("/bodies").text


def test_an_evaluated_remerge_is_recommended(federation: Federation) -> None:
    """e^-0.1 is 0.9048, e^-0.2 0.8187, e^-0.3 0.7408 and e^-0.8 0.4493.

    With M = 90.48 and N = 44.93, a third of 45.55 less a third of 9.52 is 12.01.
    """
    server, operator = federation.server, federation.operator
    evaluate(federation, 1, law=(1, 1), art=(3, 1))
    evaluate(federation, 2, law=(2, 1), art=(2, 1), code=(8, 8))
    history = operator.body_history("current")
    assert history.remerge is not None
    assert history.remerge.expected == pytest.approx(12.0115292)
    with server.client(operator.add_token(NewToken(role=Role.READER)).secret) as reader:
        assert reader.body_history("current") == history
    view = federation.members["code"].client.body_history("current")
    assert [[score.domain for score in version.scores] for version in view.versions] == [[], ["code"]]
    assert [version.average for version in view.versions] == [version.average for version in history.versions]
    assert (view.versions[1].behind, view.remerge, view.before) == (None, None, None)
    shown = federation.moerge("body", "history", COLUMNS="160")
    for text in ("81.9 (-8.6)", "44.9, newcomer", "that includes code: expected average gain +12.0", "lose 3.2"):
        assert text in shown
    assert shown.splitlines()[-1] == "Recommended: moerge body remerge"
    with signed_in(server) as browser:
        page = browser.get("/versions").text
        assert "The body was merged without code; a remerge is expected to gain 12.0 points" in page


def test_a_remerge_is_started_in_the_browser(federation: Federation) -> None:
    server, operator, body = federation.server, federation.operator, federation.body()
    path = f"/bodies/{body.digest}/remerge"
    with signed_in(server) as browser:
        assert "Expected gain: +12.0 points" in browser.get(path).text
        assert act(browser, path).headers["Location"].endswith("said=started")
        eventually(lambda: operator.body("current").digest != body.digest)
        assert "a remerge is expected to gain" not in browser.get("/versions").text
        assert browser.get("/bodies/current/remerge").status_code == 404
    with pytest.raises(AssertionError, match="no newcomers"):
        federation.moerge("body", "remerge")


def test_the_gain_of_a_remerge_is_shown_beside_the_expected_one(federation: Federation) -> None:
    federation.contribute(federation.body())
    number = federation.solve().number
    evaluate(federation, number, law=(2, 2), art=(2, 2), code=(2, 2))
    before = federation.operator.body_history("current").before
    assert before is not None
    assert before.real == pytest.approx(12.3133930)
    assert "expected average gain +12.0" in federation.moerge("body", "history", COLUMNS="160")
    with signed_in(federation.server) as browser:
        assert f"version 2 to {number}" in browser.get("/bodies").text


def test_a_remerge_for_a_fitted_newcomer_is_not_recommended(federation: Federation) -> None:
    """Although its oracle is far behind: one fitted newcomer behind three experts gains nothing."""
    whole, body = federation.add("film", 4, **SMALL), federation.body()
    federation.contribute_heads()
    federation.members["film"] = parted(federation.server, whole, body)
    federation.members["film"].register()
    federation.contribute(body, "film")
    version = federation.solve()
    assert version.lineage.head.method == "regmean"
    evaluate(federation, version.number, law=(2, 2), art=(2, 2), code=(2, 2), film=(9, 9))
    remerge = federation.operator.body_history("current").remerge
    assert remerge is not None
    assert (remerge.fitted, remerge.missing, remerge.expected, remerge.recommended) == (["film"], [], 0, False)
    shown = federation.moerge("body", "history", COLUMNS="160")
    assert "A remerge that includes film: expected average gain 0, because their MLPs are fitted" in shown
    assert "Recommended" not in shown
    with signed_in(federation.server) as browser:
        assert "a remerge is expected to gain" not in browser.get("/versions").text
        assert "a remerge that includes film: 0, because" in browser.get("/bodies").text
        assert "Expected gain: 0, because" in browser.get(f"/bodies/{body.digest}/remerge").text


def test_the_command_remerges_without_an_expected_gain(federation: Federation) -> None:
    body = federation.operator.body("current")
    digest = federation.moerge("body", "remerge")
    assert digest == federation.operator.body("current").digest
    assert len(federation.operator.body(digest).experts) == len(body.experts) + 1
