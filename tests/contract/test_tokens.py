"""Tokens over REST and the command line: expiry, lists, rotation, revocation."""

from datetime import UTC, datetime
from functools import partial

import httpx
import pytest

from moerge_proto.owners import NewOwner, Role
from support.processes import Coordinator, moerge, run_command


def role_of(server: Coordinator, secret: str) -> httpx.Response:
    return httpx.get(f"{server.url}/v1/identity", headers={"Authorization": f"Bearer {secret}"})


def added(server: Coordinator, note: str) -> tuple[str, int]:
    """The secret and the id of a reader's token for two days."""
    secret = moerge("token", "add", "reader", "--note", note, "--days", "2", **server.environment())
    with server.client() as operator:
        [listed] = [token for token in operator.tokens() if token.note == note]
    assert listed.expires is not None
    assert 1.9 < (listed.expires - datetime.now(UTC)).total_seconds() / 86400 < 2
    return secret, listed.id


@pytest.mark.parametrize(
    ("command", "warning"),
    [
        ("rotate", "ends immediately: its users are refused until they have the new one"),
        ("revoke", "is revoked immediately, and its users are refused."),
    ],
)
def test_ending_a_token_needs_a_confirmation(server: Coordinator, command: str, warning: str) -> None:
    secret, id_ = added(server, command)
    run = partial(run_command, "token", command, id_, **server.environment())
    for done, question in ((run(), "add --yes"), (run(typed="n\n"), "Continue? [y/N]")):
        assert done.returncode == 1
        assert f"Token {id_} {warning}" in " ".join(done.stderr.split())
        assert question in done.stderr
    assert role_of(server, secret).status_code == 200
    assert run(typed="y\n").returncode == 0
    assert role_of(server, secret).status_code == 401


def test_a_rotated_token_s_successor_has_its_role(server: Coordinator) -> None:
    secret, id_ = added(server, "overlap")
    successor = moerge("token", "rotate", id_, "--overlap-seconds", 60, **server.environment())  # unconfirmed
    assert [role_of(server, item).json()["role"] for item in (secret, successor)] == ["reader", "reader"]
    shown = moerge("token", "list", COLUMNS="200", **server.environment())
    assert "overlap" in shown
    assert not any(item in shown for item in (secret, successor, server.operator_token))


def test_the_audit_log_names_the_person_and_the_address(server: Coordinator) -> None:
    secret = moerge("token", "add", "operator", "--name", "anna", **server.environment())
    with server.client(secret) as anna:
        anna.add_owner(NewOwner(name="annas", domains=["annas"]))
        *_, entry = anna.audit()
    assert (entry.name, entry.role, entry.address) == ("anna", Role.OPERATOR, "127.0.0.1")
    assert role_of(server, secret).json()["name"] == "anna"
    done = run_command("token", "add", "owner", "--owner", "annas", "--name", "x", **server.environment())
    assert "an owner's token has the owner's name" in done.stderr
    proxied = {"Authorization": f"Bearer {secret}", "X-Forwarded-For": "203.0.113.7"}
    httpx.post(f"{server.url}/v1/owners", headers=proxied, json={"name": "bens", "domains": ["bens"]})
    with server.client() as operator:
        *_, entry = operator.audit()
    assert entry.address == "203.0.113.7"


def test_the_list_of_tokens_never_has_secrets_or_hashes(server: Coordinator) -> None:
    headers = {"Authorization": f"Bearer {server.operator_token}"}
    rows = httpx.get(f"{server.url}/v1/tokens", headers=headers).json()["items"]
    assert rows
    for row in rows:
        assert row.keys() == {"id", "role", "owner", "name", "groups", "note", "created", "expires", "revoked"}
