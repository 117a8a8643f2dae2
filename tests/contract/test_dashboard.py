"""The dashboard without JavaScript: signing in, pages, forms, roles."""

import html
import re
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge_coordinator.dashboard.actions import ACTIONS
from moerge_proto.owners import NewOwner, NewToken, Role
from moerge_proto.recipes import RECOMMENDED
from moerge_proto.signatures import JoinRequest, fingerprint, in_groups, public_key_of
from moerge_proto.versions import VersionChange
from support.dashboard import act, signed_in, visitor, words
from support.evaluations import evaluation, result
from support.federation import Federation, eventually, federation_of
from support.processes import Coordinator, coordinator

FIRST_STEPS = (
    "First steps Register the seed moerge coordinator seed Approve the owners 0 approved"
    " Wait for the owners' experts 0 of 0 domains ready"
)
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
PAGES = {
    "/versions": set(Role),
    "/versions/1": set(Role),
    "/compare": set(Role),
    "/compare?before=1&version=2": set(Role),
    "/grants": {Role.OPERATOR, Role.OWNER, Role.READER},
    "/experts": {Role.OPERATOR, Role.OWNER},
    "/contributions": {Role.OPERATOR, Role.OWNER},
    "/bodies": {Role.OPERATOR, Role.OWNER},
    "/owners": {Role.OPERATOR},
    "/workflows": {Role.OPERATOR},
    "/audit": {Role.OPERATOR},
    "/settings": {Role.OPERATOR},
    "/aliases/champion": {Role.OPERATOR},
}


@dataclass
class Visited:
    """A federation, and a token of each role; the owner's is law's."""

    federation: Federation
    tokens: dict[Role, str]

    @property
    def server(self) -> Coordinator:
        return self.federation.server

    @property
    def operator(self) -> Client:
        return self.federation.operator

    def visitor(self) -> httpx.Client:
        return visitor(self.server)

    def visit(self, role: Role = Role.OPERATOR, token: str | None = None) -> AbstractContextManager[httpx.Client]:
        return signed_in(self.server, token or self.tokens[role])


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    """Two owners have contributed; two versions are solved, and the first is the champion."""
    with federation_of(tmp_path_factory.mktemp("dashboard"), "law", "art") as federation:
        federation.contribute(federation.body())
        tokens = {Role.OPERATOR: federation.server.operator_token, Role.OWNER: federation.members["law"].token}
        tokens[Role.READER] = federation.operator.add_token(NewToken(role=Role.READER)).secret
        for experts in federation.digests("law"), federation.digests("law", "art"):
            federation.solve(experts=experts)
        federation.operator.promote("champion", 1)
        yield Visited(federation, tokens)


def place_of(answer: httpx.Response) -> str:
    """Where a redirection leads, below /dashboard."""
    return answer.headers["Location"].removeprefix("/dashboard")


def test_signing_in_leads_to_the_requested_page(visited: Visited) -> None:
    for path in [*PAGES, *(re.sub(r"{.*?}", "1", path) for path in ACTIONS)]:
        with visited.visitor() as browser:
            answer = browser.get(path)
            assert answer.status_code == 303, path
            page = browser.get(place_of(answer))
            fields = {name: html.unescape(to) for name, to in re.findall(r'name="(next)" value="([^"]*)"', page.text)}
            answer = browser.post("/sign-in", data={**fields, "token": visited.tokens[Role.OPERATOR]})
            assert answer.headers["Location"] == f"/dashboard{path}"
            cookie = answer.headers["Set-Cookie"]
            for word in ("HttpOnly", "SameSite=strict", "Path=/dashboard", "Max-Age=43200"):
                assert word in cookie, path


def test_signing_in_leads_to_no_other_site(visited: Visited) -> None:
    for place in ("https://example.org/", "//example.org", "/v1/versions", "/dashboard\\@example.org", ""):
        with visited.visitor() as browser:
            sent = {"token": visited.tokens[Role.OPERATOR], "next": place}
            assert browser.post("/sign-in", data=sent).headers["Location"] == "/dashboard", place


def test_a_wrong_token_or_a_foreign_form_signs_nobody_in(visited: Visited) -> None:
    right = visited.tokens[Role.OPERATOR]
    wrong = [("moerge_wrong", 401), *((bad, 422) for bad in ("a b", f"{right}é", " ")), (right, 403)]
    with visited.visitor() as browser:
        for token, status in wrong:
            headers = {"Origin": "https://evil.example"} if status == 403 else {}
            answer = browser.post("/sign-in", data={"token": token}, headers=headers)
            assert (answer.status_code, "no valid token" in answer.text) == (status, status == 401)
            assert right not in answer.text
            assert "moerge_session" not in browser.cookies


@pytest.mark.parametrize("value", [b"", b"\xe9", b"a b"])
def test_a_cookie_that_is_no_token_is_none(visited: Visited, value: bytes) -> None:
    with visited.visitor() as browser:
        answer = browser.get("/versions", headers={b"Cookie": b"moerge_session=" + value})
    assert (answer.status_code, place_of(answer)) == (303, "/sign-in?next=/dashboard/versions")


def test_the_session_ends_with_its_token(visited: Visited) -> None:
    token = visited.operator.add_token(NewToken(role=Role.READER, expires=datetime.now(UTC) + timedelta(days=1)))
    with visited.visit(token=token.secret) as browser:
        assert browser.get("/versions").status_code == 200
        visited.operator.revoke_token(token.id)
        answer = browser.get("/versions/1")
        assert answer.status_code == 303
        page = browser.get(place_of(answer))
        assert "Your session has ended" in page.text
        assert "moerge_session" not in browser.cookies


def test_signing_out_ends_the_session(visited: Visited) -> None:
    with visited.visit() as browser:
        answer = browser.post("/sign-out")
        assert answer.headers["Location"] == "/dashboard/sign-in"
        assert browser.get("/versions").status_code == 303


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.METRICS])
def test_each_role_sees_its_pages_and_their_links(visited: Visited, role: Role) -> None:
    """Each place that pages link to is visited once."""
    with visited.visit(role) as browser:
        linked: dict[str, str] = {}
        for path, roles in PAGES.items():
            page = browser.get(path)
            assert page.status_code == (200 if role in roles else 403), (path, page.text)
            policy = page.headers["Content-Security-Policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy, path
            assert "unsafe" not in policy, path
            assert page.headers["Cache-Control"] == "no-store", path
            forbidden = re.search(r"<style|\sstyle=|\son\w+=|<script>", page.text)
            assert not forbidden, f"{path}: the policy forbids what stands in the page"
            assert len(page.content) < 200_000, path
            if role in roles:
                linked |= dict.fromkeys(re.findall(r'href="(/dashboard[^"]*)"', page.text), path)
        for place, path in linked.items():
            answer = browser.get(html.unescape(place.removeprefix("/dashboard")))
            assert answer.status_code == 200, (path, place, answer.text)


def test_an_owner_sees_its_own_things_only(visited: Visited) -> None:
    with visited.visit(Role.OWNER) as browser:
        for path in ("/experts", "/contributions"):
            text = browser.get(path).text
            assert "law-owner" in text
            assert "art-owner" not in text
        assert browser.get("/versions/1/promote").status_code == 200  # a form; what it asks for is refused
        assert act(browser, "/versions/1/promote", alias="champion").status_code == 403


def test_promotions_and_rollbacks_are_the_user_s_calls(visited: Visited) -> None:
    operator = visited.operator
    with visited.visit() as browser:
        answer = act(browser, "/versions/2/promote", alias="champion", note="better")
        assert answer.headers["Location"] == "/dashboard/versions/2?said=promoted"
        assert "Alias moved" in browser.get("/versions/2?said=promoted").text
        assert ">Promote<" not in browser.get("/versions/2").text  # it is the champion
        assert ">Promote<" in browser.get("/versions/1").text
        move = list(operator.alias_history("champion"))[-1]
        assert (move.version, move.who, move.note) == (2, "operator, token 1", "better")
        question = browser.get("/versions/1/promote").text
        assert "Version 1 lacks domains that champion has: art. Consumers lose them." in question
        act(browser, "/aliases/champion/rollback")
        assert operator.alias("champion").version == 1
        assert act(browser, "/versions/2/promote", alias="No Name").status_code == 422
        assert act(browser, "/versions/1/retire").status_code == 409, "it is the champion"


def test_results_on_tasks_are_shown_beside_the_champion_s(visited: Visited) -> None:
    law = visited.federation.members["law"].client
    for number, value in ((1, 0.5), (2, 0.4)):
        visited.operator.evaluate(evaluation(number, result(value=value), result("gsm8k", 0.1 * number, seed=number)))
        law.evaluate(evaluation(number, result("lambada", 0.3)))
    with visited.visit() as browser:
        expected = [
            ["arc_easy (acc)", "0.400 ± 0.020", "0.500 ± 0.020", "-0.100 ± 0.028", "400", "lm_eval 0.4.13"],
            ["gsm8k (acc)", "0.200 ± 0.020", "-", "-", "400", "lm_eval 0.4.13"],  # measured with another seed
            ["lambada (acc)", "0.300 ± 0.020", "0.300 ± 0.020", "0.000 ± 0.028", "400", "lm_eval 0.4.13"],
        ]
        for place in ("/versions/2", "/compare?before=1&version=2"):
            page = browser.get(place)
            lines = [line[:-1] for line in rows(page) if line[-1].endswith(("by operator", "by law-owner"))]
            assert lines == expected
            assert 'class="num down">-0.100 ± 0.028' in page.text
        own = ["arc_easy (acc)", "0.500 ± 0.020", "400", "lm_eval 0.4.13"]
        assert own in [line[:-1] for line in rows(browser.get("/versions/1"))], "it is the champion"
        form = browser.get("/versions/2/promote").text
        fall = "give a reason: arc_easy (acc), reported by operator, from 0.500 ± 0.020 to 0.400 ± 0.020."
        assert f"refuse it as champion, unless you {fall}" in form
        assert "noticed: version 2 has no score to compare on law, art, gsm8k (acc)." in form
        assert 'name="override"' in form
        assert "allow it as champion" in browser.get("/versions/1/promote").text
    with visited.visit(token=visited.federation.members["art"].token) as browser:
        assert "arc_easy" in browser.get("/versions/2").text
        assert "lambada" not in browser.get("/versions/2").text


def test_a_form_of_another_page_does_nothing(visited: Visited) -> None:
    operator = visited.operator
    with visited.visit() as browser:
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
            sent = browser.post("/versions/2/promote", data={"alias": "champion"}, headers=headers)
            assert sent.status_code == 403
        assert browser.post("/versions/2/promote", content=b"x" * (2**20 + 1)).status_code == 413
        assert operator.alias("champion").version == 1


def test_text_of_others_is_escaped(visited: Visited) -> None:
    with visited.visit() as browser:
        act(browser, "/versions/2/describe", note=HOSTILE, tags="a b")
        act(browser, "/versions/2/promote", alias="hostile", note=HOSTILE)
        act(browser, "/aliases/hostile/remove")
        for path in ("/versions", "/versions/2", "/versions/2/describe", "/aliases/hostile", f"/audit?path={HOSTILE}"):
            text = browser.get(path).text
            assert html.escape("<script>") in text
            assert "<script>" not in text
            assert "<img src=x" not in text
        visited.operator.change_version(2, VersionChange(note="", tags=[]))


def test_solving_starts_a_workflow(visited: Visited) -> None:
    operator = visited.operator
    with visited.visit() as browser:
        assert "Contributed: law, art. Missing: none." in browser.get("/solve").text
        assert act(browser, "/solve", ridge_lambda="0.5", top_k="1").headers["Location"].endswith("said=started")
        eventually(lambda: len(list(operator.versions())) == 3)
        assert f"lambda {RECOMMENDED.solve.ridge_lambda} → 0.5" in browser.get("/versions").text
        assert act(browser, "/solve", ridge_lambda="none", top_k="1").status_code == 422
        assert act(browser, "/versions/3/retire").headers["Location"].endswith("said=retired")
        text = browser.get("/versions/3").text
        assert "This version is retired" in text
        assert "moerge pull" not in text
        assert "version 3" in browser.get("/workflows").text
        assert act(browser, "/workflows/version-none-1/retry").status_code == 404


def test_a_solve_without_contributions_asks_for_a_confirmation(tmp_path: Path) -> None:
    with federation_of(tmp_path, "law", "art") as federation, signed_in(federation.server) as browser:
        assert "Contributed: none. Missing: law, art." in browser.get("/solve").text
        refused = act(browser, "/solve", ridge_lambda="0.5", top_k="1")
        assert (refused.status_code, "have not contributed: law, art" in refused.text) == (409, True)
        assert "Solve without law, art" in refused.text
        partial = act(browser, "/solve", ridge_lambda="0.5", top_k="1", partial="yes")
        assert "a version needs at least one" in partial.text
        assert 'value="yes" checked' in partial.text


def test_the_audit_log_can_be_filtered(visited: Visited) -> None:
    with visited.visit() as browser:
        assert "/v1/aliases/champion" in browser.get("/audit?path=/v1/aliases").text
        assert "/v1/uploads" not in browser.get("/audit?path=/v1/aliases").text
        assert "art-owner" not in browser.get("/audit?owner=law-owner").text
        assert not re.search(r">20[01]<", browser.get("/audit?failed=true").text)


def test_pages_are_answered_to_more_visitors_than_threads(visited: Visited) -> None:
    with visited.visit() as browser, ThreadPoolExecutor(60) as visitors:
        answers = list(visitors.map(lambda _: browser.get("/aliases/champion"), range(60)))
        assert {answer.status_code for answer in answers} == {200}


def test_missing_things_are_not_found(visited: Visited) -> None:
    with visited.visit() as browser:
        assert browser.get("/versions/99").status_code == 404
        assert browser.get("/compare?before=1&version=99").status_code == 404
        assert browser.get("/nothing").status_code == 404
        assert browser.get("/static/nothing.css").status_code == 404
        assert browser.get("/static/../../settings.py").status_code == 404
    assert httpx.get(f"{visited.server.url}/").headers["Location"] == "/dashboard/"


def test_static_files_are_kept_by_browsers(visited: Visited) -> None:
    with visited.visitor() as browser:
        page = browser.get("/sign-in")
        [sheet] = re.findall(r'href="/dashboard(/static/style.css\?[0-9a-f]+)"', page.text)
        answer = browser.get(sheet)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["Cache-Control"]


@pytest.mark.slow
def test_pages_of_many_versions_and_owners_are_small(tmp_path: Path) -> None:
    """A coordinator of 1,000 versions and 200 owners; the versions are rows that differ by lambda."""
    with federation_of(tmp_path, "law") as federation:
        for number in range(200):
            federation.operator.add_owner(NewOwner(name=f"owner-{number:03}", domains=[f"domain-{number:03}"]))
        federation.contribute(federation.body())
        federation.solve()
        federation.server.stop()
        with closing(sqlite3.connect(federation.server.home / "coordinator.sqlite")) as database, database:
            columns = [row[1] for row in database.execute("PRAGMA table_info(versions)")]
            [first] = database.execute("SELECT * FROM versions").fetchall()
            rows = [dict(zip(columns, first, strict=True), number=number) for number in range(2, 1001)]
            for row in rows:
                row["lineage"] = row["lineage"].replace(str(RECOMMENDED.solve.ridge_lambda), str(row["number"]))
                row["lineage_digest"] = f"{row['number']:064}"
            names = ", ".join(f":{name}" for name in columns)
            database.executemany(f"INSERT INTO versions VALUES ({names})", rows)  # noqa: S608
        federation.server.start()
        with signed_in(federation.server) as browser:
            numbers, path = list[str](), "/versions"
            for _ in range(3):
                page = browser.get(path)
                assert len(page.content) < 200_000
                numbers += re.findall(r'class="strong" href="/dashboard/versions/(\d+)"', page.text)
                [following] = re.findall(r'href="(\?after=\d+)">Older', page.text)
                path = f"/versions{following}"
            assert numbers == [str(number) for number in range(1000, 1000 - len(numbers), -1)]
            page = browser.get("/owners")
            assert len(page.content) < 200_000
            assert page.text.count("owner-") >= 100
            assert "?after=" in page.text


def test_a_withdrawn_expert_s_versions_are_not_offered(visited: Visited) -> None:
    """The following tests remove data of the others."""
    [expert] = visited.federation.members["law"].client.experts()
    with visited.visit() as browser:
        question = browser.get(f"/experts/{expert.digest}/withdraw").text
        assert "Later versions have no MLPs, head or router column of it." in question
        act(browser, f"/experts/{expert.digest}/withdraw", serve="no")
        assert "This version contains withdrawn experts: law" in browser.get("/versions/2").text
        assert "moerge pull" not in browser.get("/versions/2").text
        text = browser.get("/versions").text
        assert "withheld" in text
        assert "The champion contains withdrawn experts: law" in text
        assert ">promote version" not in text  # every version contains law
        act(browser, f"/experts/{expert.digest}/purge", retire="no")
    assert visited.federation.members["law"].client.expert(expert.digest).purged is not None


def test_a_contribution_is_withdrawn_in_the_browser(visited: Visited) -> None:
    operator = visited.operator
    [sent] = [contribution for contribution in operator.contributions() if contribution.domain == "art"]
    with visited.visit() as browser:
        act(browser, f"/contributions/{sent.digest}/withdraw")
    assert not any(contribution.active for contribution in operator.contributions() if contribution.domain == "art")


def test_a_revoked_owner_is_not_offered_again(visited: Visited) -> None:
    with visited.visit() as browser:
        act(browser, "/owners/art-owner/revoke")
        with pytest.raises(MoergeError, match="revoked"):
            visited.federation.members["art"].client.identity()
        text = browser.get("/owners").text
        assert "/owners/art-owner/revoke" not in text
        assert "/owners/law-owner/revoke" in text


@pytest.mark.slow
def test_a_failed_workflow_is_retried_in_the_browser(tmp_path: Path) -> None:
    """Solving fails while a file of the expert is missing."""
    with federation_of(tmp_path, "law") as federation:
        server, operator = federation.server, federation.operator
        federation.contribute(federation.body())
        [file] = [file for file in federation.expert("law").files if file.name == "model.safetensors"]
        blob = server.home / "blobs" / file.sha256[:2] / file.sha256
        blob.rename(tmp_path / "lost")
        shutil.rmtree(server.home / "experts")
        with pytest.raises(MoergeError):
            federation.solve()
        with signed_in(server) as browser:
            assert "Solving a version failed" in browser.get("/versions").text
            [path] = re.findall(r'href="/dashboard(/workflows/[^"]+/retry)"', browser.get("/workflows").text)
            (tmp_path / "lost").rename(blob)
            assert act(browser, path).headers["Location"].endswith("said=started")
            eventually(lambda: list(operator.versions()) != [])
            eventually(lambda: "Solving a version failed" not in browser.get("/versions").text)
            assert act(browser, path).status_code == 303  # the one that failed is there still; what it made is found


def rows(page: httpx.Response) -> list[list[str]]:
    """The cells of each row of the tables of a page."""
    lines = re.findall(r"<tr.*?</tr>", page.text, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in lines]
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in line] for line in cells]


def test_a_fresh_coordinator_lists_its_first_steps(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    request = JoinRequest.make(key, "hospital", ["medicine"], datetime.now(UTC)).line()
    shown = in_groups(fingerprint(public_key_of(key)))
    with coordinator(tmp_path / "home") as server, signed_in(server) as browser:
        home = words(browser.get("/versions"))
        assert FIRST_STEPS in home
        assert "Solve a version" not in home
        assert "There are fewer than two versions." in words(browser.get("/compare"))
        assert 'title="1,000,000,000,000 bytes">1.0 TB' in browser.get("/settings").text

        answer = act(browser, "/owners/approve", request=request, fingerprint="0" * 64)
        assert answer.status_code == 422
        assert f"another fingerprint: {shown}" in words(answer)
        assert act(browser, "/owners/approve", request=request[:40], fingerprint=shown).status_code == 422
        approved = act(browser, "/owners/approve", request=request, fingerprint=shown)
        [token] = re.findall(r"<code>(moerge_[^<]+)</code>", approved.text)
        with server.client(token) as owner:
            assert owner.identity().domains == ["medicine"]
        assert "Approve the owners done 1 approved" in words(browser.get("/versions"))
