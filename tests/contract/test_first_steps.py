"""The dashboard of a fresh coordinator: its first steps, and owners approved in the browser."""

import html
import re
from datetime import UTC, datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from moerge_proto.signatures import JoinRequest, fingerprint, in_groups, public_key_of
from support.dashboard import act, signed_in
from support.federation import federation_of


def words(page: httpx.Response) -> str:
    """The text of a page, as a reader sees it."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page.text)).split())


def test_a_fresh_coordinator_lists_the_first_steps_and_approves_owners(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    request = JoinRequest.make(key, "hospital", ["medicine"], datetime.now(UTC)).line()
    told = in_groups(fingerprint(public_key_of(key)))
    with federation_of(tmp_path) as made, signed_in(made.server, made.server.operator_token) as browser:
        home = words(browser.get("/versions"))
        assert "First steps Approve the owners 0 approved Wait for their experts 0 of 0 domains ready" in home
        assert "Solve a version" not in home
        assert "There are fewer than two versions." in words(browser.get("/compare"))
        assert 'title="1,000,000,000,000 bytes">1.0 TB' in browser.get("/settings").text

        answer = act(browser, "/owners/approve", request=request, fingerprint="0" * 64)
        assert answer.status_code == 422
        assert f"another fingerprint: {told}" in words(answer)
        assert act(browser, "/owners/approve", request=request[:40], fingerprint=told).status_code == 422
        approved = act(browser, "/owners/approve", request=request, fingerprint=told)
        [token] = re.findall(r"<code>(moerge_[^<]+)</code>", approved.text)
        with made.server.client(token) as owner:
            assert owner.identity().domains == ["medicine"]
        assert "Approve the owners done 1 approved" in words(browser.get("/versions"))
