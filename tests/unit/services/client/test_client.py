"""The client's addresses, retries, redirections and answers."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from pydantic import BaseModel

from moerge.client.client import Client
from moerge.client.http import encoded
from moerge.errors import CoordinatorError, MoergeError
from moerge.progress import LogProgress
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.demands import Demands
from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.experts import NewExpert, Parts
from moerge_proto.messages import FileEntry, Page
from moerge_proto.owners import Identity, NewToken, Owner, Role
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.versions import NewVersion
from moerge_proto.workflows import Workflow, WorkflowState
from support.http_server import serving

DIGEST = "1" * 64


@pytest.mark.parametrize("url", ["http://example.org", "http://10.0.0.1:8080"])
def test_plain_http_to_another_machine_is_refused(url: str) -> None:
    with pytest.raises(MoergeError, match="not encrypted"):
        Client(url, "token")


@pytest.mark.parametrize(
    ("url", "what", "todo"),
    [
        ("127.0.0.1:8391", "does not begin with http:// or https://", "such as http://127.0.0.1:8391"),
        ("moerge.example.org", "does not begin with http:// or https://", "such as https://moerge.example.org"),
        ("ftp://localhost", "does not begin with http:// or https://", "give the complete address"),
        ("http://[::1", "is not a valid address", "MOERGE_COORDINATOR"),
    ],
)
def test_an_address_that_is_not_whole_is_called_that(url: str, what: str, todo: str) -> None:
    with pytest.raises(MoergeError, match=what) as caught:
        Client(url, "token")
    assert todo in caught.value.todo


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://example.org"])
def test_loopback_and_https_are_accepted(url: str) -> None:
    with Client(url, "token"):
        pass


def test_unreachable_coordinator_is_reported_once_then_fails() -> None:
    told: list[str] = []
    with (
        Client("http://127.0.0.1:1", "token", patience=1, say=told.append) as client,
        pytest.raises(MoergeError) as caught,
    ):
        client.identity()
    assert "check the coordinator" in caught.value.todo
    assert told == ["http://127.0.0.1:1 doesn't answer ([Errno 111] Connection refused); retrying for 1 s"]


def test_content_digest_is_rfc_9530_s_example() -> None:
    """RFC 9530, section 2: the digest of {"hello": "world"} and a newline."""
    body = b'{"hello": "world"}\n'
    assert content_digest(sha256_hex(body)) == "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"


class Elsewhere(BaseHTTPRequestHandler):
    """`/v1/…` sends the caller to `target`; every other path has the content. Notes each path's Authorization."""

    target = ""
    seen: ClassVar[dict[str, str | None]] = {}

    def do_GET(self) -> None:
        self.seen[self.path] = self.headers["Authorization"]
        if self.path.startswith("/v1/"):
            self.send_response(307)
            self.send_header("Location", self.target)
        else:
            self.send_response(200 if self.path == "/bucket/file?signature=x" else 403)
        self.send_header("Content-Length", "4" if self.path.startswith("/bucket/") else "0")
        self.end_headers()
        if self.path.startswith("/bucket/"):
            self.wfile.write(b"data")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, type[Elsewhere]]]:
    handler = type("Handler", (Elsewhere,), {"seen": {}})
    with serving(handler) as url:
        yield url, handler


def download(client: Client, folder: Path) -> None:
    file = FileEntry(name="file", sha256=sha256_hex(b"data"), size=4)
    client.download("/v1/files", [file], folder, LogProgress(), title="a file")


def test_download_follows_redirect_without_the_token(elsewhere: tuple[str, type[Elsewhere]], tmp_path: Path) -> None:
    url, handler = elsewhere
    handler.target = f"{url}/bucket/file?signature=x"
    with Client(url, "secret") as client:
        download(client, tmp_path)
    assert (tmp_path / "file").read_bytes() == b"data"
    assert handler.seen == {"/v1/files/file": "Bearer secret", "/bucket/file?signature=x": None}


def test_download_refused_by_the_store_leaves_no_file(elsewhere: tuple[str, type[Elsewhere]], tmp_path: Path) -> None:
    url, handler = elsewhere
    handler.target = f"{url}/bucket/file?signature=ended"
    with Client(url, "secret") as client, pytest.raises(MoergeError, match="403"):
        download(client, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../file", "/file", "folder/file", "..", ""])
def test_a_download_stays_in_its_folder(elsewhere: tuple[str, type[Elsewhere]], tmp_path: Path, name: str) -> None:
    url, handler = elsewhere
    handler.target = f"{url}/bucket/file?signature=x"
    file = FileEntry(name=name, sha256=sha256_hex(b"data"), size=4)
    with Client(url, "secret") as client, pytest.raises(MoergeError, match="outside the folder"):
        client.download("/v1/files", [file], tmp_path / "home", LogProgress(), title="a file")
    assert handler.seen == {}


def test_download_redirect_to_remote_plain_http_is_refused(
    elsewhere: tuple[str, type[Elsewhere]], tmp_path: Path
) -> None:
    url, handler = elsewhere
    handler.target = "http://example.org/bucket/file?signature=x"
    with Client(url, "secret") as client, pytest.raises(MoergeError, match="not encrypted") as caught:
        download(client, tmp_path)
    assert "signature" not in str(caught.value)


def test_anything_but_a_download_is_never_sent_elsewhere(elsewhere: tuple[str, type[Elsewhere]]) -> None:
    url, handler = elsewhere
    handler.target = f"{url}/bucket/file?signature=x"
    with Client(url, "secret") as client, pytest.raises(MoergeError):
        client.identity()
    assert list(handler.seen) == ["/v1/identity"]


class Busy(BaseHTTPRequestHandler):
    """Answers with `problems`, one after the other, and then with an identity."""

    problems: ClassVar[list[ProblemType]] = []

    def do_GET(self) -> None:
        answer: Problem | Identity = Identity(role=Role.OWNER, owner="law", domains=["law"])
        if self.problems:
            answer = Problem.of(self.problems.pop(0), "not now")
        body = answer.model_dump_json().encode()
        self.send_response(answer.status if isinstance(answer, Problem) else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_client_with_unlimited_patience_retries_until_refused() -> None:
    with serving(Busy) as url:
        with Client(url, "token", patience=None) as client:
            Busy.problems[:] = [ProblemType.STORAGE_FULL, ProblemType.UNAVAILABLE]
            assert client.identity().owner == "law"
            Busy.problems[:] = [ProblemType.FORBIDDEN]
            with pytest.raises(CoordinatorError, match="not now"):
                client.identity()
        Busy.problems[:] = [ProblemType.STORAGE_FULL]
        with Client(url, "token") as client, pytest.raises(CoordinatorError, match="not now"):
            client.identity()


def replaced(answer: Callable[[httpx.Request], httpx.Response], **options: Any) -> Client:
    """A client whose network is a function."""
    return Client("http://localhost", "token", transport=httpx.MockTransport(answer), **options)


@pytest.mark.parametrize("kind", [ProblemType.UNAVAILABLE, ProblemType.TOO_FAST, ProblemType.STORAGE_FULL])
def test_without_patience_a_temporary_refusal_is_raised_at_once(kind: ProblemType) -> None:
    problem = Problem.of(kind, "not now", todo="try later")
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(problem.status, content=problem.model_dump_json(), headers={"Retry-After": "60"})

    with replaced(answer, patience=0, headers={"X-Request-Id": "1"}) as client:
        with pytest.raises(CoordinatorError) as refused:
            client.identity()
        assert refused.value.problem() == problem
    assert [request.headers["X-Request-Id"] for request in requests] == ["1"]


def test_a_list_is_read_whole_or_by_the_page() -> None:
    names, queries = ["a", "b", "c"], list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        queries.append(request.url.query.decode())
        after = int(request.url.params.get("after") or 0)
        created = datetime(2030, 1, 1, tzinfo=UTC)
        owners = [
            Owner(name=name, domains=[], keys=[], created=created, seen=None, revoked=None)
            for name in names[after : after + 1]
        ]
        following = after + 1 if after + 1 < len(names) else None
        return httpx.Response(200, content=Page[Owner](items=owners, next=following).model_dump_json())

    with replaced(answer) as client:
        assert [owner.name for owner in client.owners()] == names
        assert [owner.name for owner in client.owners().page(2).items] == ["c"]
        client.audit(newest=True, owner="law").page("7")
    assert queries[-2:] == ["after=2", "newest=true&owner=law&after=7"]


def test_an_alias_stays_in_its_path() -> None:
    paths: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return httpx.Response(422, content=Problem.of(ProblemType.INVALID_REQUEST, "no").model_dump_json())

    with replaced(answer) as client, pytest.raises(CoordinatorError):
        client.promote("../tokens?x", 1)
    assert paths == [b"/v1/aliases/..%2Ftokens%3Fx"]


def test_what_is_no_coordinator_does_not_greet_as_one() -> None:
    not_ours = pytest.raises(MoergeError, match="not a moerge coordinator")
    with serving(Busy) as url, Client(url, "token") as client, not_ours:
        client.greeting()


class Newer(BaseHTTPRequestHandler):
    """A coordinator of a later build: each object of its answers has a further field."""

    def do_GET(self) -> None:
        when, rest = "2030-01-01T00:00:00Z", {"revoked": None, "place": {"city": "x"}}
        key = {"public_key": "0" * 64, "fingerprint": DIGEST, "created": when, **rest}
        owner = {"name": "firm", "domains": ["law"], "keys": [key], "created": when, "seen": None, **rest}
        limit = {"engine": "vLLM", "happens": "ignores biases", "remedy": "none", "since": 1}
        answers = {"/v1/owners": {"items": [owner], "next": None, "total": 1}, "/v1/identity": {"role": "owner"}}
        content = json.dumps(answers.get(self.path.partition("?")[0], [limit])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_unknown_fields_of_answers_are_ignored() -> None:
    with serving(Newer) as url, Client(url, "token") as client:
        [owner] = client.owners()
        [limit] = client.engine_limits(1)
    assert (owner.name, owner.keys[0].fingerprint, limit.engine) == ("firm", DIGEST, "vLLM")
    assert "place" not in owner.model_dump()


def test_an_answer_that_this_build_cannot_read_is_named() -> None:
    lacking = pytest.raises(MoergeError, match=r"can't read the coordinator's answer: owner: it is missing")
    with serving(Newer) as url, Client(url, "token") as client, lacking as caught:
        client.identity()
    assert "moerge --version" in caught.value.todo
    assert caught.value.where.endswith("/v1/identity")


PARTS = Parts(expert="1" * 64, body="2" * 64, fitted=True)


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (
            NewExpert(domain="law", files={"config.json": "0" * 64}, parts=PARTS),
            {"domain": "law", "files": {"config.json": "0" * 64}, "parts": PARTS.model_dump(exclude={"own_head"})},
        ),
        (NewVersion.model_validate({"options": {"top_k": 2}}), {"options": {"top_k": 2}}),
        (NewToken(role=Role.READER, note="for anna"), {"role": "reader", "note": "for anna"}),
    ],
)
def test_requests_leave_defaults_to_the_coordinator(message: BaseModel, content: dict[str, Any]) -> None:
    assert {name: value for name, value in json.loads(encoded(message)).items() if value != {}} == content
    assert type(message).model_validate_json(encoded(message)).model_dump() == message.model_dump()


class Answering(BaseHTTPRequestHandler):
    """Answers with a status and a text, and logs nothing."""

    def answer(self, status: int, content: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_: object) -> None:
        pass


class Cut(Answering):
    """A coordinator whose database is gone while it checks a contribution, and back when it is asked again."""

    asked: ClassVar[list[str]] = []

    def do_PUT(self) -> None:
        self.asked.append(self.path)
        gone = Problem.of(ProblemType.UNAVAILABLE, "the database doesn't answer")
        failed = Workflow(id="contribution-1", state=WorkflowState.FAILED, problem=gone)
        done = Workflow(id="contribution-2", state=WorkflowState.DONE, result=DIGEST)
        self.answer(202, (failed if len(self.asked) == 1 else done).model_dump_json())

    def do_GET(self) -> None:
        self.answer(200, SENT.model_dump_json())


SENT = Contribution(
    number=1, digest=DIGEST, kind="router", split="statistics", owner="firm", domain="law", expert=DIGEST, body=DIGEST,
    tokens=1, documents=1, shards=1, effective_rank=1.0, size=1, active=True, warnings=[], software={},
    signature=None, fingerprint=None, created=datetime(2030, 1, 1, tzinfo=UTC), withdrawn=None,
)  # fmt: skip


def test_contribution_is_resent_after_a_transient_failure() -> None:
    with serving(Cut) as url, Client(url, "token", patience=20) as client:
        assert client.contribute(NewContribution(sha256=DIGEST)) == SENT
    assert len(Cut.asked) == 2


class Demanding(Answering):
    """Doesn't know demands for the first `unknown` calls, and then answers the same ones at once. Counts the calls."""

    calls = unknown = 0

    def do_GET(self) -> None:
        type(self).calls += 1
        if self.calls <= self.unknown:
            self.answer(404, Problem.of(ProblemType.NOT_FOUND, "no such path").model_dump_json())
        else:
            self.answer(200, Demands.of(None, None).model_dump_json())


def test_worker_waits_for_the_upgrade_of_an_older_coordinator() -> None:
    class Handler(Demanding):
        unknown = 2

    told: list[str] = []
    with serving(Handler) as url, Client(url, "token", patience=20, say=told.append) as client:
        assert client.demands("1" * 64) == Demands.of(None, None)
    assert Handler.calls == 3
    assert "it is older than this worker" in told[0]


def test_early_equal_demands_are_followed_by_growing_pauses() -> None:
    class Handler(Demanding):
        pass

    with serving(Handler) as url, Client(url, "token") as client:
        seen, begin = client.demands("1" * 64), time.monotonic()
        assert client.demands("1" * 64, seen) == client.demands("1" * 64, seen) == seen
    assert time.monotonic() - begin >= 0.5 + 1
    assert Handler.calls == 3
