"""Proxies and certificates of the environment: which are used, which are refused, and that loopback needs none."""

import os
import socket
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import certifi
import httpx
import pytest

from moerge import network
from moerge.errors import MoergeError
from support.http_server import serving

ELSEWHERE = httpx.URL("https://moerge.example.org")
HERE = [
    httpx.URL(f"{scheme}://{host}:9") for scheme in ("http", "https") for host in ("127.0.0.1", "localhost", "[::1]")
]
VARIABLES = {
    "ALL_PROXY": ["socks5://127.0.0.1:1080", "socks5h://127.0.0.1", "socks4://127.0.0.1:1080"],
    "HTTPS_PROXY": [
        "ftp://Kx9",
        "http://",
        ":3128",
        "http://Kx9:port",
        "http://me:Zq/Kx9@host:1",
        "a\x01b",
        "://",
        " ",
    ],
    "https_proxy": ["http://me:Kx9@[::1", "http://\udcff"],
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy and no certificates."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(("variable", "value"), [(name, value) for name in VARIABLES for value in VARIABLES[name]])
def test_an_unusable_proxy_is_named_without_its_address(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    for use, remedy in (
        (lambda: network.client(ELSEWHERE), "NO_PROXY=moerge.example.org"),
        (
            network.require_environment,
            "or unset it",
        ),
    ):
        with pytest.raises(MoergeError) as caught:
            use()
        assert (caught.value.where, remedy in caught.value.todo) == (variable, True)
        assert ("httpx[socks]" in caught.value.todo) == value.startswith("socks5")
        assert "Kx9" not in str(caught.value)


def test_a_proxy_that_is_not_for_the_address_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    for address in HERE:
        network.client(address).close()
    for excluded in ("moerge.example.org", "example.org", ".example.org", "10.0.0.1, example.org", "*"):
        monkeypatch.setenv("NO_PROXY", excluded)
        network.client(ELSEWHERE).close()
    network.require_environment()  # NO_PROXY is *
    monkeypatch.setenv("NO_PROXY", "elsewhere.org")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")  # it is preferred
    network.client(ELSEWHERE).close()


class Proxy(BaseHTTPRequestHandler):
    """A proxy that answers each request itself, with the user whom it saw."""

    def do_GET(self) -> None:
        body = f"{self.path} {self.headers['Proxy-Authorization']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def proxy() -> Iterator[str]:
    with serving(Proxy) as url:
        yield url


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, proxy: str, variable: str) -> None:
    monkeypatch.setenv(variable, f" {proxy.replace('//', '//me:p%40ss@')}\n")
    with network.client(httpx.URL("http://keeper.example.org")) as client:
        answer = client.get("http://keeper.example.org/v1")
    assert answer.text == "http://keeper.example.org/v1 Basic bWU6cEBzcw=="


def test_loopback_uses_no_proxy(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with network.client(httpx.URL(proxy)) as client:
        assert client.get(proxy).is_success


def certificates(folder: Path) -> dict[str, str]:
    """Variable -> a value that can't be used."""
    (folder / "key.txt").write_text("no certificate")
    (folder / "empty").mkdir()
    return {
        "SSL_CERT_FILE": f"{folder / 'missing.pem'} {folder / 'key.txt'} {folder} /dev/null",
        "SSL_CERT_DIR": f"{folder / 'missing'} {folder / 'empty'} {folder / 'key.txt'} {folder}:{folder / 'empty'}",
        "SSLKEYLOGFILE": f"{folder / 'missing' / 'keys'} {folder}",
    }


def test_unusable_certificates_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, values in certificates(tmp_path).items():
        for value in values.split():
            with monkeypatch.context() as patched:
                patched.setenv(variable, value)
                network.client(httpx.URL("http://127.0.0.1:9")).close()
                for use in (lambda: network.client(ELSEWHERE), network.require_environment):
                    with pytest.raises(MoergeError, match=value) as caught:
                        use()
                    assert (caught.value.where, bool(caught.value.todo)) == (variable, True)


def test_certificates_of_the_environment_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trusted() -> int:
        with network.client(ELSEWHERE) as client:
            pool = client._transport._pool  # type: ignore[attr-defined]  # httpx doesn't show its context
            return len(pool._ssl_context.get_ca_certs())

    everybody = trusted()
    one = tmp_path / "one.pem"
    head, mark, _ = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----")
    one.write_text(head + mark, encoding="utf-8")
    monkeypatch.setenv("SSL_CERT_FILE", str(one))
    assert (trusted(), everybody > 100) == (1, True)


def test_a_client_of_plain_http_trusts_no_certificate() -> None:
    with network.client(httpx.URL("http://127.0.0.1:9")) as client:
        context: ssl.SSLContext = client._transport._pool._ssl_context  # type: ignore[attr-defined]
    assert (context.verify_mode, context.get_ca_certs()) == (ssl.CERT_REQUIRED, [])


def test_a_taken_port_is_told_with_its_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MoergeError, match=f"can't listen on 127.0.0.1:{port}: Address already in use") as caught:
            network.require_free("127.0.0.1", port)
    assert "choose another" in caught.value.todo
    network.require_free("127.0.0.1", port)
