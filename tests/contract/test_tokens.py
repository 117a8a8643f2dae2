"""Tokens: made for a time, listed without secrets, rotated, revoked; one operator can always call."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from moerge_coordinator.domain.tokens import ended, make_token, revoke_token, rotate_token
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage import tables
from moerge_coordinator.storage.database import open_database, transaction
from moerge_coordinator.storage.tables import TokenRow
from moerge_proto.owners import NewToken, Role, RotateToken
from support.processes import Coordinator, coordinator, moerge

START = datetime(2030, 1, 1, tzinfo=UTC)
READER = NewToken(role=Role.READER, note="monitoring")


class Clock:
    """What the coordinator takes for the time."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> datetime:
        return self.time

    def later(self, **by: float) -> datetime:
        self.time += timedelta(**by)
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tables, "now", clock)
    return clock


@pytest.fixture
def engine(tmp_path: Path, clock: Clock) -> Iterator[Engine]:
    made = open_database(tmp_path / "database")
    yield made
    made.dispose()


def how_ended(engine: Engine, id_: int) -> str | None:
    with transaction(engine) as session:
        return ended(session.get_one(TokenRow, id_), tables.now())


def test_a_token_is_valid_until_it_expires(engine: Engine, clock: Clock) -> None:
    token = make_token(engine, READER.model_copy(update={"expires": START + timedelta(hours=1)}))
    clock.later(minutes=59)
    assert how_ended(engine, token.id) is None
    clock.later(minutes=1)
    assert how_ended(engine, token.id) == "the token expired on 2030-01-01 01:00 UTC"


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_token_that_would_have_ended_already_is_refused(engine: Engine, seconds: int) -> None:
    with pytest.raises(RefusedError, match="not in the future") as caught:
        make_token(engine, READER.model_copy(update={"expires": START + timedelta(seconds=seconds)}))
    assert caught.value.where == "expires"


def test_a_revoked_token_ends_at_once_and_revoking_again_changes_nothing(engine: Engine, clock: Clock) -> None:
    token = make_token(engine, READER)
    first = revoke_token(engine, token.id)
    assert how_ended(engine, token.id) == "the token was revoked on 2030-01-01 00:00 UTC"
    clock.later(days=1)
    assert revoke_token(engine, token.id) == first


def test_a_rotated_token_ends_at_once_and_its_successor_is_valid_as_long_as_it_was_at_first(
    engine: Engine, clock: Clock
) -> None:
    old = make_token(engine, READER.model_copy(update={"expires": START + timedelta(days=30)}))
    clock.later(days=20)
    new = rotate_token(engine, old.id, RotateToken())
    assert how_ended(engine, old.id) == "the token was revoked on 2030-01-21 00:00 UTC"
    assert (new.role, new.note, new.expires) == (Role.READER, "monitoring", START + timedelta(days=50))
    assert new.secret != old.secret


def test_an_overlap_leaves_the_old_token_valid_for_a_while_but_never_longer_than_it_was(
    engine: Engine, clock: Clock
) -> None:
    old = make_token(engine, READER)
    short = make_token(engine, READER.model_copy(update={"expires": START + timedelta(seconds=10)}))
    for token in (old, short):
        rotate_token(engine, token.id, RotateToken(overlap_seconds=60))
    clock.later(seconds=10)
    assert how_ended(engine, old.id) is None
    assert how_ended(engine, short.id) is not None
    clock.later(seconds=50)
    assert how_ended(engine, old.id) == "the token expired on 2030-01-01 00:01 UTC"


def test_a_token_that_has_ended_is_not_rotated(engine: Engine) -> None:
    token = make_token(engine, READER)
    revoke_token(engine, token.id)
    with pytest.raises(RefusedError, match="revoked"):
        rotate_token(engine, token.id, RotateToken())


def test_the_last_valid_operator_token_is_not_revoked(engine: Engine, clock: Clock) -> None:
    operator = NewToken(role=Role.OPERATOR)
    first = make_token(engine, operator)
    second = make_token(engine, operator.model_copy(update={"expires": START + timedelta(hours=1)}))
    third = make_token(engine, operator)
    make_token(engine, READER)
    revoke_token(engine, third.id)
    clock.later(hours=2)
    with pytest.raises(RefusedError, match="last valid operator token") as caught:
        revoke_token(engine, first.id)
    assert "make or rotate" in caught.value.todo
    revoke_token(engine, second.id)  # it has expired, so nothing is lost
    successor = rotate_token(engine, first.id, RotateToken())
    with pytest.raises(RefusedError, match="last valid operator token"):
        revoke_token(engine, successor.id)


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
    successor = moerge("token", "rotate", listed.id, **environment)
    assert role_of(server, secret).status_code == 401
    assert role_of(server, successor).json()["role"] == "reader"
    moerge("token", "revoke", listed.id + 1, **environment)
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
