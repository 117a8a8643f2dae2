"""Attacks by a page that an operator opens beside the dashboard, where a proxy signs them in."""

from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from moerge_proto.signatures import JoinRequest, fingerprint
from support.processes import Coordinator, coordinator

HEADER, VALUE = "X-Forwarded-Email", "0" * 32
SETTINGS = f"""
trusted_proxies = ["127.0.0.1"]
[sign_in]
header = "{HEADER}"
operators = {{ anna = "anna@hospital.example" }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator(tmp_path_factory.mktemp("forms") / "home", settings=SETTINGS) as result:
        yield result


def approve(server: Coordinator, owner: str, **headers: str) -> int:
    """The status of a form that approves an owner, sent by anna's browser through the proxy."""
    join = JoinRequest.make(Ed25519PrivateKey.generate(), owner, [owner], datetime.now(UTC))
    fields = {"request": join.line(), "fingerprint": fingerprint(join.public_key), "replace": "no", "csrf": VALUE}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    cookie = {"Cookie": f"moerge_visitor={VALUE}"}  # which a page of the same site can set
    url = f"{server.url}/dashboard/owners/approve"
    return httpx.post(url, data=fields, headers={HEADER: "anna@hospital.example", **cookie, **names}).status_code


@pytest.mark.parametrize("site", ["same-site", "cross-site", None])
def test_a_form_of_a_neighbour_s_page_is_refused(server: Coordinator, site: str | None) -> None:
    told = {} if site is None else {"sec_fetch_site": site}
    assert approve(server, "evil", origin="https://wiki.hospital.example", **told) == 403
    assert approve(server, "evil", **told) == 403
    with server.client() as operator:
        assert "evil" not in [owner.name for owner in operator.owners()]


def test_a_form_of_the_dashboard_is_accepted(server: Coordinator) -> None:
    assert approve(server, "law", origin=server.url) == 200
    assert approve(server, "art", sec_fetch_site="same-origin") == 200
