"""Requests that can't be sent, answers that aren't the coordinator's, and tokens, which no message has."""

import logging
import os
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.progress import LogProgress
from moerge_proto.contributions import NewContribution
from moerge_proto.messages import FileEntry
from moerge_proto.problems import Problem, ProblemType
from support.http_server import serving

DIGEST = "1" * 64
PAGE = b"<html><title>Sign in</title></html>"


class Stranger(BaseHTTPRequestHandler):
    """Another server in the coordinator's place."""

    status = 200
    headers_: ClassVar[dict[str, str]] = {}
    body = b""
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append(self.path)
        self.send_response(self.status)
        for name, value in {"Content-Length": str(len(self.body)), **self.headers_}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.body)

    def do_PUT(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(Stranger) as url:
        yield url


def answer(status: int, body: bytes = b"", **headers: str) -> None:
    Stranger.status, Stranger.body = status, body
    Stranger.headers_ = {name.replace("_", "-"): value for name, value in headers.items()}
    Stranger.asked.clear()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("target", ["https://me:Kx9@login.example.org/oauth?next=Kx9#Kx9", "/oauth?next=Kx9"])
def test_a_redirection_is_told_with_its_target(address: str, status: int, target: str) -> None:
    answer(status, Location=target)
    with Client(address, "token") as client, pytest.raises(MoergeError) as caught:
        client.identity()
    place = "https://login.example.org/oauth" if "login" in target else f"{address}/oauth"
    assert caught.value.what.endswith(f"redirects to {place}")
    assert (caught.value.where, "login page" in caught.value.todo) == (f"{address}/v1/identity", True)
    assert len(Stranger.asked) == 1


@pytest.mark.parametrize("target", ["http://a\x01b", "http://host:port"])
def test_a_redirection_to_no_address_is_no_network_fault(address: str, target: str, tmp_path: Path) -> None:
    answer(302, Location=target)
    file = FileEntry(name="file", sha256=DIGEST, size=4)
    with Client(address, "token") as client:
        for call in client.identity, lambda: client.download("/v1/f", [file], tmp_path, LogProgress(), title="a file"):
            with pytest.raises(MoergeError, match="redirects to an invalid address"):
                call()
    assert len(Stranger.asked) == 2


REMEDIES = {
    200: "check the address",
    401: "exempt moerge's REST paths",
    403: "exempt moerge's REST paths",
    404: "check the address",
    407: "HTTPS_PROXY",
    411: "Content-Length",
    413: "chunks of 8 MiB",
    500: "passes all paths",
    530: "passes all paths",
}
ABOUT_BLANK = b'{"type": "about:blank", "title": "no", "status": 403, "detail": "no"}'


@pytest.mark.parametrize("status", REMEDIES)
@pytest.mark.parametrize(
    ("body", "kind"),
    [(PAGE, "text/html; charset=utf-8"), (b"", ""), (b"denied", "text/plain"), (ABOUT_BLANK, "application/json")],
)
def test_an_answer_of_another_server_is_told_with_its_remedy(address: str, status: int, body: bytes, kind: str) -> None:
    if body == ABOUT_BLANK:
        status = max(status, 401)  # with a status of 200, it may be a newer coordinator's
    answer(status, body, **{"Content-Type": kind} if kind else {})
    with Client(address, "token") as client, pytest.raises(MoergeError, match=f"status {status} and") as caught:
        client.identity()
    assert (caught.value.where, REMEDIES[status] in caught.value.todo) == (f"{address}/v1/identity", True)
    assert (kind.partition(";")[0] or "no content type") in caught.value.what
    assert len(Stranger.asked) == 1


def test_a_page_is_neither_an_upload_s_answer_nor_a_file(address: str, tmp_path: Path) -> None:
    answer(200, PAGE, Content_Type="text/html")
    file = FileEntry(name="file", sha256=DIGEST, size=4)
    with Client(address, "token") as client:
        for call in (
            lambda: client.send("PUT", "/v1/uploads/1/chunks/1", content=b"chunk"),
            lambda: client.download("/v1/files", [file], tmp_path, LogProgress(), title="a file"),
            client.greeting,
        ):
            with pytest.raises(MoergeError, match="status 200 and text/html, not as a coordinator"):
                call()
    assert list(tmp_path.iterdir()) == []


def test_another_server_s_temporary_refusal_is_repeated(address: str) -> None:
    answer(502, PAGE, Content_Type="text/html")
    with (
        Client(address, "token", patience=0.5, say=lambda text: None) as client,
        pytest.raises(MoergeError, match=r"no answer for \d s: .* status 502 and text/html"),
    ):
        client.identity()
    assert len(Stranger.asked) > 1


def test_a_coordinator_s_own_problem_is_told_as_it_is(address: str) -> None:
    problem = Problem.of(ProblemType.TOO_LARGE, "at most 3 bytes", field="body", todo="send less")
    answer(413, problem.model_dump_json().encode(), Content_Type="application/problem+json")
    with Client(address, "token") as client, pytest.raises(MoergeError) as caught:
        client.contribute(NewContribution(sha256=DIGEST))
    assert caught.value.problem() == problem


@pytest.mark.parametrize("name", ["a\nb", "a\udcff"])
def test_a_request_that_cannot_be_sent_is_no_network_fault(address: str, name: str) -> None:
    answer(200)
    with Client(address, "token") as client, pytest.raises(MoergeError, match="can't be sent"):
        client.revoke_owner(name)
    with (
        Client(address, "token", headers={"X-Request-Id": "Kx9\n"}) as client,
        pytest.raises(MoergeError, match="can't be sent") as caught,
    ):
        client.identity()
    assert ("Kx9" in str(caught.value), Stranger.asked) == (False, [])


class Refusing(Stranger):
    """A proxy that refuses connections."""

    def do_CONNECT(self) -> None:
        self.do_GET()


@pytest.mark.parametrize("status", [403, 407])
def test_a_proxy_s_refusal_names_its_variable(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    answer(status)
    with serving(Refusing) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.replace("//", "//me:Kx9@"))
        with Client("https://moerge.example.org", "token") as client, pytest.raises(MoergeError) as caught:
            client.identity()
    assert f"the proxy of HTTPS_PROXY answers: {status}" in caught.value.what
    assert "NO_PROXY=moerge.example.org" in caught.value.todo
    assert ("Kx9" in str(caught.value), Stranger.asked) == (False, ["moerge.example.org:443"])


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("https://me:Kx9@moerge.example.org", "has a user or a password"),
        ("https://me:Zq/Kx9@moerge.example.org", "the address is not a valid address"),
        (f"moerge_{'Kx9' * 15}", "the address does not begin with http"),
    ],
)
def test_an_address_with_a_secret_is_refused_without_it(url: str, what: str) -> None:
    with pytest.raises(MoergeError, match=what) as caught:
        Client(url, "token")
    assert "Kx9" not in str(caught.value)


def test_white_space_around_address_and_token_is_dropped() -> None:
    seen: list[str] = []

    def answered(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.url} {request.headers.get('Authorization')}")
        return httpx.Response(204)

    for token in " secret\r\n", None:
        with Client("http://localhost:9\n", token, transport=httpx.MockTransport(answered)) as client:
            client.send("GET", "/healthz")
    assert seen == ["http://localhost:9/healthz Bearer secret", "http://localhost:9/healthz None"]


CHARACTERS = st.characters(min_codepoint=0, max_codepoint=0x2FF) | st.sampled_from("\u200b\u2028\udcff😀")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(middle=st.text(CHARACTERS, max_size=6), after=st.text(CHARACTERS, max_size=3), listening=st.booleans())
@example(middle="", after="\n", listening=True)
@example(middle="", after="\n", listening=False)
@example(middle="\r\nX-Other: ", after="", listening=True)
def test_no_error_and_no_log_has_a_token(
    address: str, caplog: pytest.LogCaptureFixture, middle: str, after: str, listening: bool
) -> None:
    answer(401)
    told: list[str] = []
    caplog.clear()
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned:
        try:
            token = f"Zq7vKx9w{middle}Tn4uRb2y{after}"
            url = address if listening else "http://127.0.0.1:1"
            with Client(url, token, patience=0.01, say=told.append) as client:
                client.identity()
        except MoergeError as error:
            told += [str(error), repr(error), repr(error.__cause__), error.problem().model_dump_json()]
    shown = "\n".join([*told, caplog.text, *(str(item.message) for item in warned)])
    assert told
    assert not any(part in shown for part in ("Zq7vKx9w", "Tn4uRb2y"))
