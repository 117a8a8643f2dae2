"""People whom a proxy signs in, through a stub of one: the dashboard believes it, REST doesn't."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from moerge_coordinator.settings import Settings
from moerge_proto.owners import Role
from moerge_proto.signatures import JoinRequest, fingerprint
from support.http_server import serving
from support.processes import Coordinator, coordinator

PROXY, HEADER = "127.0.0.3", "X-Forwarded-Email"
SETTINGS = f"""
trusted_proxies = ["{PROXY}/32"]
[sign_in]
header = "{HEADER}"
operators = {{ anna = "anna@hospital.example" }}
readers = {{ ben = "ben@hospital.example" }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator(tmp_path_factory.mktemp("people") / "home", settings=SETTINGS) as result:
        yield result


@dataclass
class Proxy:
    """A stub of oauth2-proxy: it forwards calls from its own address, with the header of who is signed in."""

    url: str = ""
    person: str = ""

    def client(self, person: str) -> httpx.Client:
        """A browser of someone who has signed in at the proxy."""
        self.person = person
        return httpx.Client(base_url=self.url, headers={"Origin": self.url})


@pytest.fixture(scope="module")
def proxy(server: Coordinator) -> Iterator[Proxy]:
    result = Proxy()
    upstream = httpx.Client(base_url=server.url, transport=httpx.HTTPTransport(local_address=PROXY))

    class Handler(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            kept = {"cookie", "content-type", "authorization", "host", "origin", "sec-fetch-site"}
            headers = {name: value for name, value in self.headers.items() if name.lower() in kept}
            headers |= {HEADER: result.person} if result.person else {}
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = upstream.request(self.command, self.path, content=body, headers=headers)
            self.send_response(answer.status_code)
            for name, value in answer.headers.multi_items():
                if name in ("location", "set-cookie", "content-type"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def do_GET(self) -> None:
            self._forward()

        def do_POST(self) -> None:
            self._forward()

        def log_message(self, *_: object) -> None:
            pass

    with upstream, serving(Handler) as url:
        result.url = url
        yield result


def is_sign_in(answer: httpx.Response) -> bool:
    return answer.status_code == 303 and answer.headers["Location"].startswith("/dashboard/sign-in")


def approval(owner: str) -> dict[str, str]:
    """The fields of the form that approves an owner."""
    join = JoinRequest.make(Ed25519PrivateKey.generate(), owner, [owner], datetime.now(UTC))
    return {"request": join.line(), "fingerprint": fingerprint(join.public_key), "replace": "no"}


def test_an_operator_acts_under_their_name(server: Coordinator, proxy: Proxy) -> None:
    with proxy.client("anna@hospital.example") as browser:
        page = browser.get("/dashboard/versions")
        assert page.status_code == 200
        assert "<span>anna, operator</span>" in page.text
        assert "Sign out" not in page.text
        done = browser.post("/dashboard/owners/approve", data=approval("law"))
        assert done.status_code == 200
    with server.client() as operator:
        *_, entry = operator.audit()
        assert [owner.name for owner in operator.owners()] == ["law"]
    assert (entry.path, entry.name, entry.role, entry.token) == ("/v1/owners/law/approve", "anna", Role.OPERATOR, None)


def test_a_reader_reads(proxy: Proxy) -> None:
    with proxy.client("ben@hospital.example") as browser:
        page = browser.get("/dashboard/versions")
        assert "<span>ben, reader</span>" in page.text
        assert browser.get("/dashboard/owners").status_code == 403


@pytest.mark.parametrize("person", ["", "eve@hospital.example", "anna", "Anna@hospital.example"])
def test_others_need_a_token(proxy: Proxy, person: str) -> None:
    with proxy.client(person) as browser:
        assert is_sign_in(browser.get("/dashboard/versions"))


def test_only_the_proxy_s_address_is_believed(server: Coordinator) -> None:
    claimed = {HEADER: "anna@hospital.example", "X-Forwarded-For": PROXY}
    assert is_sign_in(httpx.get(f"{server.url}/dashboard/versions", headers=claimed))


def test_a_header_beside_the_caller_s_own_is_not_believed(server: Coordinator) -> None:
    twice = [(HEADER, "anna@hospital.example"), (HEADER, "eve@hospital.example")]
    with httpx.Client(base_url=server.url, transport=httpx.HTTPTransport(local_address=PROXY)) as added:
        assert is_sign_in(added.get("/dashboard/versions", headers=twice))


def test_rest_needs_a_token_behind_the_proxy_too(server: Coordinator, proxy: Proxy) -> None:
    with proxy.client("anna@hospital.example") as browser:
        for path in ("/v1/identity", "/v1/owners", "/metrics", "/dashboard/../v1/identity"):
            assert browser.get(path).status_code in (401, 404), path
        token = {"Authorization": f"Bearer {server.operator_token}"}
        assert browser.get("/v1/identity", headers=token).json()["name"] is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trusted_proxies": None}, "set trusted_proxies too"),
        ({"sign_in": {"header": HEADER, "operators": {"a": "A@b"}, "readers": {"b": "a@B"}}}, "each person once"),
        ({"sign_in": {"header": HEADER, "operators": {"a": " "}}}, "each person once"),
        ({"sign_in": {"header": "a b"}}, "header"),
    ],
)
def test_settings_that_would_confuse_people_are_refused(tmp_path: Path, given: dict[str, object], said: str) -> None:
    values = {"home": tmp_path, "trusted_proxies": [PROXY], "sign_in": {"header": HEADER}, **given}
    with pytest.raises(ValueError, match=said):
        Settings.model_validate({name: value for name, value in values.items() if value is not None})
