"""Tokens over REST and the command line: made for a time, listed without secrets, rotated, revoked."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

import httpx
import pytest

from support.processes import Coordinator, coordinator, moerge, run_command


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator(tmp_path_factory.mktemp("tokens") / "home") as running:
        yield running


def role_of(server: Coordinator, secret: str) -> httpx.Response:
    return httpx.get(f"{server.url}/v1/identity", headers={"Authorization": f"Bearer {secret}"})


def test_tokens_live_and_end_by_the_command_line(server: Coordinator) -> None:
    environment = server.environment()
    secret = moerge("token", "add", "reader", "--note", "scraper", "--days", "2", **environment)
    assert role_of(server, secret).json()["role"] == "reader"
    with server.client() as operator:
        [listed] = [each for each in operator.tokens() if each.note == "scraper"]
    assert listed.expires is not None
    assert 1.9 < (listed.expires - datetime.now(UTC)).total_seconds() / 86400 < 2
    for command, follows in (
        ("rotate", "ends immediately: its users are refused until they have the new one"),
        ("revoke", "is revoked immediately, and its users are refused."),
    ):
        run = partial(run_command, "token", command, listed.id, **environment)
        for done, told in ((run(), "add --yes"), (run(typed="n\n"), "Continue? [y/N]")):
            assert done.returncode == 1
            assert f"Token {listed.id} {follows}" in " ".join(done.stderr.split())
            assert told in done.stderr
    assert role_of(server, secret).status_code == 200
    kept = moerge("token", "rotate", listed.id, "--overlap-seconds", 60, **environment)  # nobody is asked
    assert role_of(server, kept).status_code == role_of(server, secret).status_code == 200
    done = run_command("token", "revoke", listed.id + 1, typed="y\n", **environment)
    assert (done.returncode, role_of(server, kept).status_code) == (0, 401)
    successor = moerge("token", "rotate", listed.id, "--yes", **environment)
    assert role_of(server, secret).status_code == 401
    assert role_of(server, successor).json()["role"] == "reader"
    moerge("token", "revoke", listed.id + 2, "--yes", **environment)
    assert "was revoked on" in role_of(server, successor).json()["detail"]
    shown = moerge("token", "list", COLUMNS="200", **environment)
    assert "scraper" in shown
    assert not any(each in shown for each in (secret, successor, server.operator_token))


def test_the_list_of_tokens_never_has_secrets_or_hashes(server: Coordinator) -> None:
    headers = {"Authorization": f"Bearer {server.operator_token}"}
    for row in httpx.get(f"{server.url}/v1/tokens", headers=headers).json()["items"]:
        assert row.keys() == {"id", "role", "owner", "note", "created", "expires", "revoked"}


@pytest.mark.parametrize("expires", ["2999-01-01T00:00:00", "0001-01-01T00:00:00+23:00", "soon"])
def test_an_end_without_a_zone_or_out_of_range_is_refused(server: Coordinator, expires: str) -> None:
    headers = {"Authorization": f"Bearer {server.operator_token}"}
    body = {"role": "reader", "expires": expires}
    response = httpx.post(f"{server.url}/v1/tokens", headers=headers, json=body)
    assert (response.status_code, response.json()["field"]) == (422, "expires")
