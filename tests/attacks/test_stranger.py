"""A stranger: no token, or as many connections as it likes."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from moerge_coordinator.rest.limits import Bodies
from support.federation import eventually
from support.processes import Coordinator, coordinator, peak_bytes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator(tmp_path_factory.mktemp("stranger") / "home") as made:
        yield made


@contextmanager
def half_sent(url: str, method: str, path: str, *, body: bytes = b"[", size: int = 2**23) -> Iterator[socket.socket]:
    """A connection with a request that announces `size` bytes and sends `body`."""
    place = httpx.URL(url)
    with socket.create_connection((place.host, place.port or 80), timeout=30) as connection:
        lines = (f"{method} {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {size}")
        connection.sendall("\r\n".join((*lines, "", "")).encode() + body)
        yield connection


def status(connection: socket.socket) -> int:
    return int(connection.recv(2**16).split(maxsplit=2)[1])


def test_no_body_is_waited_for_without_a_token(server: Coordinator) -> None:
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    routes = [
        (method.upper(), path.replace("{number}", "1").replace("{upload}", "1").replace("{sha256}", "0" * 64))
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    assert len(routes) > 15
    for method, path in routes:
        with half_sent(server.url, method, path) as connection:
            assert status(connection) == 401, path


def test_bodies_of_strangers_take_no_memory(server: Coordinator) -> None:
    body = b"[" + b"[]," * 2**21 + b"[]]"
    before = peak_bytes(server, anew=True)
    headers = {"Content-Type": "application/json"}
    for _ in range(4):
        assert httpx.post(f"{server.url}/v1/uploads", content=body, headers=headers).status_code == 401
    assert peak_bytes(server) - before < 2**25


def test_oversized_body_is_refused_before_parsing(server: Coordinator) -> None:
    body = b"[" + b"[]," * 2**21 + b"[]]"
    headers = {"Authorization": f"Bearer {server.operator_token}", "Content-Type": "application/json"}
    before = peak_bytes(server, anew=True)
    for path in ("owners", "tokens", "versions"):
        refused = httpx.post(f"{server.url}/v1/{path}", content=body, headers=headers)
        assert (refused.status_code, refused.json()["type"]) == (413, "urn:moerge:problem:too-large")
    same = {"Sec-Fetch-Site": "same-origin"}
    form = httpx.post(f"{server.url}/dashboard/sign-in", content=b"a=&" * 2**20, headers=same)
    assert form.status_code == 413
    assert peak_bytes(server) - before < 2**25


def test_unauthenticated_calls_are_counted_but_not_audited(server: Coordinator) -> None:
    operator = {"Authorization": f"Bearer {server.operator_token}"}
    begin = len((server.home / "log").read_bytes())
    with httpx.Client(base_url=server.url) as stranger:
        for _ in range(200):
            assert stranger.post("/v1/owners", headers={"Authorization": "Bearer guess"}).status_code == 401
    rows = httpx.get(f"{server.url}/v1/audit", headers=operator).json()["items"]
    assert [row for row in rows if row["status"] == 401] == []
    figures = httpx.get(f"{server.url}/metrics", headers=operator).text
    name = 'moerge_requests_total{method="POST",route="/v1/owners",status="401"}'
    assert [float(line.split()[-1]) >= 200 for line in figures.splitlines() if line.startswith(name)] == [True]
    lines = (server.home / "log").read_bytes()[begin:].decode().splitlines()
    assert sum(json.loads(line).get("status") == 401 for line in lines) <= 120, "60 a minute"


@pytest.fixture(scope="module")
def impatient() -> Iterator[str]:
    """An app that echoes the size of bodies, and waits two seconds for them."""

    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    app = Bodies(Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])]), seconds=2)
    made = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    eventually(lambda: made.started)
    yield f"http://127.0.0.1:{made.servers[0].sockets[0].getsockname()[1]}"
    made.should_exit = True
    thread.join()


def test_a_half_sent_body_ends_in_time(impatient: str) -> None:
    with half_sent(impatient, "POST", "/v1/x") as connection:
        assert status(connection) == 408
        eventually(lambda: connection.recv(2**16) == b"")


def test_a_body_that_trickles_ends_in_time(impatient: str) -> None:
    with half_sent(impatient, "POST", "/v1/x") as connection:
        trickle = threading.Event()

        def send() -> None:
            while not trickle.wait(0.05):
                try:
                    connection.sendall(b"[")
                except OSError:
                    return

        sender = threading.Thread(target=send)
        sender.start()
        try:
            assert status(connection) == 408
        finally:
            trickle.set()
            sender.join()


def test_a_slow_and_honest_body_comes_whole(impatient: str) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(8):
            time.sleep(0.3)  # in all, longer than a body without a byte may take
            yield b"x" * 2**13

    assert httpx.post(f"{impatient}/v1/x", content=pieces()).text == str(8 * 2**13)
    with httpx.Client() as client:
        for body in (b"", b"x", b"x" * 2**22):
            assert client.post(f"{impatient}/v1/x", content=body).text == str(len(body))
            assert client.get(f"{impatient}/v1/x").text == "0"


@pytest.mark.parametrize(
    "path", ["/", "/dashboard", "/dashboard/versions/", "/dashboard/", "/v1/versions/", "/metrics/"]
)
def test_no_redirect_names_the_host_of_the_call(server: Coordinator, path: str) -> None:
    answer = httpx.get(f"{server.url}{path}", headers={"Host": "evil.example"})
    assert "evil.example" not in answer.headers.get("Location", "")
    assert answer.status_code != 500


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_no_page_loads_scripts_of_other_hosts(server: Coordinator, path: str) -> None:
    answer = httpx.get(f"{server.url}{path}")
    assert answer.status_code == 404
    assert "http" not in answer.text
