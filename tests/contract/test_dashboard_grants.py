"""Grants on the dashboard: an owner's readers, a reader's experts, an operator's parts of versions."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from moerge_proto.evaluations import NewEvaluation
from moerge_proto.recipes import RECOMMENDED
from support.dashboard import act, signed_in, words
from support.evaluations import result
from support.federation import Federation, champion_of, eventually

TOLD = re.compile(r"\bgrant|\bpart of|For you|Parts", re.IGNORECASE)
"""Words that pages have only with grants."""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """Version 1 of law, art and code is the champion."""
    with champion_of(tmp_path / "federation", "law", "art", "code") as federation:
        yield federation


def test_without_grants_pages_have_no_word_of_them(federation: Federation) -> None:
    tokens = [federation.server.operator_token, federation.members["law"].token, federation.reader("anna")]
    for token in tokens:
        with signed_in(federation.server, token) as browser:
            for path in ("/versions", "/versions/1"):
                assert not (found := TOLD.search(words(browser.get(path)))), found
    with signed_in(federation.server, tokens[1]) as browser:
        page = words(browser.get("/grants"))
    assert "The federation's default: all readers may use it, until you grant it to some." in page
    assert "Granted to Ends Action all readers when it is revoked Revoke Readers who may use it now: anna." in page
    assert "Decisions" not in page


def test_an_owner_decides_who_uses_its_expert(federation: Federation) -> None:
    for name, groups in {"anna": ["clinic"], "ben": []}.items():
        federation.reader(name, *groups)
    with signed_in(federation.server, federation.members["law"].token) as browser:
        question = words(browser.get("/grants/law/grant"))
        assert "Until now all readers could use law. After this, only those to whom you grant it." in question
        assert "What is pulled until its end can't be taken back." in question
        refused = {"": "expected a name of lower-case", "All of us": "expected a name of lower-case"}
        for name, problem in refused.items():
            answer = act(browser, "/grants/law/grant", reader=name)
            assert (answer.status_code, problem in words(answer)) == (422, True)
        assert "expected a date such as" in words(act(browser, "/grants/law/grant", reader="ben", until="soon"))
        past = act(browser, "/grants/law/grant", reader="ben", until="2020-01-01")
        assert "2020-01-01 00:00 UTC is not in the future" in words(past)
        assert 'value="2020-01-01"' in past.text

        done = act(browser, "/grants/law/grant", reader="clinic", until="2099-12-31")
        assert done.headers["Location"] == "/dashboard/grants?said=granted"
        assert "Until now" not in words(browser.get("/grants/law/grant"))
        act(browser, "/grants/law/grant", reader="anna")
        page = words(browser.get("/grants?said=granted"))
        assert "Granted. Who may use my expert law By your decisions, below." in page
        assert "anna when it is revoked Revoke clinic 2099-12-31 00:00 UTC" in page
        assert "Readers who may use it now: anna." in page

        question = words(browser.get("/grants/law/anna/revoke"))
        assert "Next pulls of anna have no MLPs of the expert of law." in question
        assert "What was pulled before can't be taken back." in question
        assert "anna may still use law, because it is granted to clinic." in words(
            act(browser, "/grants/law/anna/revoke")
        )
        assert act(browser, "/grants/law/clinic/revoke").headers["Location"] == "/dashboard/grants?said=ended"
        page = words(browser.get("/grants?said=ended"))
        assert "Grant revoked." in page
        assert "Readers who may use it now: none." in page
        assert re.findall("(granted|revoked) (anna|clinic)", page.partition("Decisions")[2]) == [
            ("revoked", "clinic"), ("revoked", "anna"), ("granted", "anna"), ("granted", "clinic"),
        ]  # fmt: skip
        assert browser.get("/grants/art/grant").status_code == 403
        assert act(browser, "/grants/law/art/revoke").status_code == 303

    with signed_in(federation.server, federation.members["art"].token) as browser:
        assert "Nobody may use art then, until you grant it." in words(browser.get("/grants/art/all/revoke"))
        act(browser, "/grants/art/all/revoke")
        page = words(browser.get("/grants"))
        assert "Readers who may use it now: none." in page
        assert "law" not in page
    with signed_in(federation.server) as browser:
        page = words(browser.get("/grants"))
        assert "Who may use which expert art By the decisions of art-owner, below." in page
        assert "Revoke" not in page


def test_a_reader_sees_what_it_may_use(federation: Federation) -> None:
    federation.members["law"].client.grant("law", "ben", datetime(2099, 12, 31, tzinfo=UTC))
    with signed_in(federation.server, federation.reader("anna")) as browser:
        assert "For you without law" in words(browser.get("/versions"))
        page = words(browser.get("/versions/1"))
        assert "You may use its part with the experts of art, code, without law." in page
        assert "Routers" not in page
        assert "Model card" not in page
        page = words(browser.get("/grants"))
        assert "You may use its part with the experts of art, code. It leaves out law." in page
        assert "moerge pull champion model/" in page
        assert "Domain Ends art when its owner revokes it code when its owner revokes it After" in page
    with signed_in(federation.server, federation.reader("ben")) as browser:
        assert "For you all of it, until 2099-12-31 00:00 UTC" in words(browser.get("/versions"))
        assert "Model card" in words(browser.get("/versions/1"))
        assert "You may use all of it." in words(browser.get("/grants"))
    for domain in ("art", "code"):
        federation.members[domain].client.revoke_grant(domain, "all")
    with signed_in(federation.server, federation.reader("eve")) as browser:
        assert "For you nothing of it" in words(browser.get("/versions"))
        page = words(browser.get("/versions/1"))
        assert "no expert of version 1 is granted to you" in page
        assert "moerge pull" not in page
        assert "No expert is granted to you." in words(browser.get("/grants"))


def test_a_reader_of_a_withheld_version_sees_its_part(federation: Federation) -> None:
    federation.members["law"].client.grant("law", "ben")
    federation.operator.withdraw_expert(federation.expert("law").digest, serve=False)
    pages = {"/versions": "For you without law", "/versions/1": "moerge pull champion", "/grants": "It leaves out law."}
    with signed_in(federation.server, federation.reader("anna")) as browser:
        assert [path for path, text in pages.items() if text not in words(browser.get(path))] == []
    with signed_in(federation.server, federation.reader("ben")) as browser:
        assert [path for path in pages if browser.get(path).status_code != 200] == []
        assert "This version is withheld" in words(browser.get("/versions/1"))
        assert "For you" not in words(browser.get("/versions"))
    with signed_in(federation.server) as browser:
        assert browser.get("/versions/1").status_code == 200


def test_an_operator_makes_the_parts_of_a_version(federation: Federation) -> None:
    operator = federation.operator
    for name in ("anna", "ben", "eve"):
        federation.reader(name)
    federation.members["law"].client.grant("law", "anna")
    with signed_in(federation.server) as browser:
        page = words(browser.get("/versions/1"))
        [part] = [row for row in operator.version_parts(1) if row.left_out]
        assert "the version - anna law, art, code" in page
        assert f"{part.name} law ben, eve art, code not made -" in page
        assert "Not made yet: 1." in words(browser.get("/versions/1/parts"))
        assert act(browser, "/versions/1/parts").headers["Location"].endswith("/workflows?said=started")
        eventually(lambda: all(row.made for row in operator.version_parts(1)))
        made = browser.get("/versions/1")
        assert re.search(rf"{re.escape(part.name)} law ben, eve art, code \S+ (bytes|kB|MB)", words(made))
        assert "Make parts" not in made.text
        assert f'<a href="/dashboard/versions/1">part {part.name}</a>' in browser.get("/workflows").text


def test_a_promotion_names_the_parts_that_lose(federation: Federation) -> None:
    operator = federation.operator
    federation.reader("ben")
    federation.members["law"].client.grant("law", "anna")
    federation.solve(options=RECOMMENDED.solve.model_copy(update={"ridge_lambda": 10.0}))
    for number, value in ((1, 0.9), (2, 0.4)):
        for workflow in operator.make_parts(number):
            operator.wait(workflow)
        [part] = operator.version_parts(number)
        _, _, digest = part.name.partition("+")
        operator.evaluate(NewEvaluation(number=number, part=digest, scores=[result(value=value)]))
    with signed_in(federation.server) as browser:
        page = words(browser.get("/versions/2/promote"))
    assert f"unless you give a reason: part {part.name}, without law: arc_easy (acc)" in page
