"""A coordinator whose answers harm the machine of a client: size, encoding, redirections, terminal controls."""

import gzip
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from moerge.client.client import Client
from moerge.client.http import MESSAGE_BYTES
from moerge.errors import MoergeError
from moerge.progress import NoProgress
from moerge_proto.digests import sha256_hex
from moerge_proto.messages import FileEntry
from support.http_server import serving

Answer = Callable[["Hostile"], None]


class Hostile(BaseHTTPRequestHandler):
    """Each path has its answer; others are endless files. Notes the bytes sent and the accepted encodings."""

    sent: ClassVar[int] = 0
    accepted: ClassVar[set[str | None]] = set()
    answers: ClassVar[dict[str, Answer]] = {}

    def do_GET(self) -> None:
        self.accepted.add(self.headers["Accept-Encoding"])
        self.answers.get(self.path, endless)(self)

    def head(self, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


BOMB = gzip.compress(b'{"role": "operator", "owner": null, "domains": []}' + b" " * 2**25)
"""An identity, and spaces: 1 KiB for each MiB."""


def bomb(call: Hostile) -> None:
    call.head(Content_Encoding="gzip", Content_Length=str(len(BOMB)))
    call.wfile.write(BOMB)


def endless(call: Hostile, status: int = 200) -> None:
    call.head(status)
    try:
        for _ in range(2**12):
            call.wfile.write(b" " * 2**18)
            Hostile.sent += 2**18
    except ConnectionError:
        pass  # the client has closed it


@pytest.fixture
def client() -> Iterator[Client]:
    Hostile.sent = 0
    Hostile.accepted.clear()
    with serving(Hostile) as url, Client(url, "token", patience=0) as made:
        yield made


def fetch(client: Client, folder: Path, size: int = 1000) -> None:
    file = FileEntry(name="file", sha256=sha256_hex(b"file"), size=size)
    client.download("/v1/files", [file], folder, NoProgress(), title="a file")


def test_compressed_answer_is_refused_before_it_is_expanded(client: Client, tmp_path: Path) -> None:
    Hostile.answers = {"/v1/identity": bomb, "/v1/files/file": bomb}
    tracemalloc.start()
    for read in (client.identity, lambda: fetch(client, tmp_path)):
        with pytest.raises(MoergeError, match="'gzip'"):
            read()
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()
    assert Hostile.accepted == {"identity"}
    assert list(tmp_path.iterdir()) == []


def test_endless_message_stops_at_the_limit(client: Client, tmp_path: Path) -> None:
    Hostile.answers = {"/v1/files/file": lambda call: endless(call, 403)}
    for read in (client.identity, lambda: fetch(client, tmp_path)):
        Hostile.sent = 0
        with pytest.raises(MoergeError, match=f"more than {MESSAGE_BYTES} bytes"):
            read()
        assert Hostile.sent < 2 * MESSAGE_BYTES


def test_file_stops_at_its_announced_size(client: Client, tmp_path: Path) -> None:
    Hostile.answers = {}
    for _ in range(2):  # the second continues nothing
        with pytest.raises(MoergeError, match="expected 1000 bytes, received more"):
            fetch(client, tmp_path)
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(MoergeError, match="received more"):
        fetch(client, tmp_path, 2**21 + 1)
    assert list(tmp_path.iterdir()) == []
    assert Hostile.sent < 2**26


def redirected(coordinator: str, target: str, folder: Path) -> list[str]:
    """The requested addresses of a download that the coordinator redirects."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(307, headers={"Location": target}) if len(asked) == 1 else httpx.Response(200)

    client = Client(coordinator, "token", patience=0, transport=httpx.MockTransport(answer))
    with client, pytest.raises(MoergeError, match=r"SHA-256|closer to this machine"):
        fetch(client, folder)
    return asked[1:]


PUBLIC, PRIVATE, OWN = "https://9.9.9.9", "https://10.1.2.3", "http://127.0.0.1:8391"
INSIDE = (
    "http://localhost/x",
    "http://127.0.0.1:80/x",
    "https://[::1]/x",
    "https://0.0.0.0/x",
    "https://[::ffff:127.0.0.1]/x",
)
NEAR = ("https://192.168.0.1/x", "https://169.254.169.254/x", "https://100.64.0.1/x", "https://[fd00::1]/x")


@pytest.mark.parametrize(
    ("coordinator", "targets"), [(PUBLIC, INSIDE + NEAR), (PRIVATE, INSIDE)], ids=["public", "private"]
)
def test_redirect_closer_to_the_client_than_the_coordinator_is_refused(
    coordinator: str, targets: tuple[str, ...], tmp_path: Path
) -> None:
    for target in targets:
        assert redirected(coordinator, target, tmp_path) == [], target


@pytest.mark.parametrize(
    ("coordinator", "target"),
    [
        (PUBLIC, "https://1.1.1.1/x"),
        (PRIVATE, "https://192.168.0.1/x"),
        (PRIVATE, "https://1.1.1.1/x"),
        (OWN, "http://127.0.0.1:9000/x"),
        (OWN, "https://10.1.2.3/x"),
    ],
)
def test_redirect_to_a_place_as_far_away_is_followed(coordinator: str, target: str, tmp_path: Path) -> None:
    assert redirected(coordinator, target, tmp_path) == [target]
