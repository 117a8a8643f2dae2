"""Notices: signatures, secrets, attempts, and the transaction that they belong to."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from moerge.errors import MoergeError
from moerge_coordinator.settings import Settings, Webhook
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import NoticeRow, notify
from moerge_coordinator.webhooks import PAUSES, problems, secrets_in, send_due, signatures
from support.receiver import SECRET, Receiver, receiving
from support.rows import START, Clock, rows_in_memory


@pytest.fixture
def database(clock: Clock) -> Database:
    return replace(rows_in_memory(clock), notices=frozenset(("version.solved", "version.failed")))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as result:
        yield result


@pytest.fixture
def webhook(receiver: Receiver, tmp_path: Path) -> Webhook:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    return Webhook(url=receiver.url, secret_file=tmp_path / "secret")


def send(webhook: Webhook, database: Database) -> None:
    with httpx.Client(follow_redirects=True) as http:
        send_due(webhook, database, http)


def waiting(database: Database) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(NoticeRow)) or 0


def test_the_signature_is_that_of_the_specification_s_libraries() -> None:
    """The example of https://github.com/standard-webhooks/standard-webhooks, in all of its libraries' tests."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signatures([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("content", ["", "whsec_AAAA", "whsec_!", f"{SECRET}\nwhsec_AAAA"])
def test_invalid_secrets_are_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    with pytest.raises(MoergeError) as caught:
        secrets_in(path)
    assert (caught.value.where, "whsec_" in caught.value.todo) == (str(path), True)


def solved(database: Database) -> None:
    """Adds the notice of a solved version."""
    with database.transaction("test") as session:
        notify(session, "version.solved", version=7)


def test_each_secret_of_the_file_signs(database: Database, webhook: Webhook, receiver: Receiver) -> None:
    webhook.secret_file.write_text(f"whsec_{'A' * 32}\n{SECRET}\n")
    with database.transaction("test") as session:
        notify(session, "version.solved", version=1)
    send(webhook, database)
    assert receiver.events() == ["version.solved"]


def test_a_notice_is_sent_until_it_is_confirmed(
    database: Database, webhook: Webhook, receiver: Receiver, clock: Clock
) -> None:
    solved(database)
    receiver.answer = lambda: 500
    send(webhook, database)
    send(webhook, database)
    assert len(receiver.notices) == 1, "the second attempt is later"
    clock.later(seconds=PAUSES[0])
    receiver.answer = lambda: 204
    send(webhook, database)
    send(webhook, database)
    (first, content), (second, again) = receiver.notices
    assert (first, content) == (second, again)
    assert content == {"type": "version.solved", "timestamp": START.isoformat(), "data": {"version": 7}}
    assert receiver.stamps[1] - receiver.stamps[0] == PAUSES[0]
    assert waiting(database) == 0


def test_a_receiver_that_is_away_keeps_the_notices(database: Database, webhook: Webhook) -> None:
    solved(database)
    send(webhook.model_copy(update={"url": "http://127.0.0.1:1/"}), database)
    assert waiting(database) == 1


def test_redirects_are_not_followed(database: Database, webhook: Webhook, receiver: Receiver) -> None:
    solved(database)
    receiver.answer = lambda: 307
    send(webhook, database)
    assert (len(receiver.notices), waiting(database)) == (1, 1)


def test_after_three_days_a_notice_is_dropped(
    database: Database, webhook: Webhook, receiver: Receiver, clock: Clock
) -> None:
    solved(database)
    receiver.answer = lambda: 400
    for pause in (*PAUSES, 0):
        assert waiting(database) == 1
        send(webhook, database)
        clock.later(seconds=pause)
    assert (waiting(database), len(receiver.notices)) == (0, 1 + len(PAUSES))


def test_a_failing_notice_does_not_hold_back_the_others(
    database: Database, webhook: Webhook, receiver: Receiver
) -> None:
    with database.transaction("test") as session:
        notify(session, "version.solved", version=1)
        notify(session, "version.solved", version=2)
    statuses = iter((400, 204))
    receiver.answer = lambda: next(statuses)
    send(webhook, database)
    send(webhook, database)
    assert [content["data"]["version"] for _, content in receiver.notices] == [1, 2]
    assert waiting(database) == 1


def test_a_notice_exists_if_and_only_if_its_event_does(database: Database) -> None:
    with database.transaction("test") as session:
        notify(session, "version.solved", version=1)
        session.rollback()
    assert waiting(database) == 0
    with database.transaction("test") as session:
        notify(session, "alias.moved", alias=1, version=1)  # not wanted
        for _ in range(2):  # a repeated step
            notify(session, "version.failed", name="msg_1", workflow="version-1")
    assert waiting(database) == 1


@pytest.mark.parametrize(
    ("url", "plain", "said"),
    [
        ("http://hooks.example.org/", False, "plain HTTP to another machine"),
        ("http://hooks.example.org/", True, ""),
        ("http://127.0.0.1:9000/", False, ""),
        ("https://hooks.example.org/?key=1", False, ""),
        ("https://user:word@hooks.example.org/", False, "without user"),
        ("ftp://hooks.example.org/", False, "expected an https:// address"),
        ("https://", False, "expected an https:// address"),
    ],
)
def test_a_webhook_needs_https(tmp_path: Path, url: str, plain: bool, said: str) -> None:
    given = {"home": tmp_path, "plain_http": plain, "webhook": {"url": url, "secret_file": "secret"}}
    if not said:
        assert Settings.model_validate(given).webhook is not None
        return
    with pytest.raises(ValueError, match=said):
        Settings.model_validate(given)


def test_the_path_of_a_webhook_is_a_secret() -> None:
    webhook = Webhook(url="https://hooks.example.org:8443/T0/secret?key=1", secret_file=Path("x"))
    assert webhook.place == "https://hooks.example.org:8443"
    assert "T0" not in repr(webhook)


@pytest.mark.parametrize(
    ("variable", "value"), [("HTTPS_PROXY", "ftp://proxy.example.org"), ("SSL_CERT_FILE", "/no/such/file")]
)
def test_an_environment_that_it_cannot_use_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    webhook = Webhook(url="https://example.org/hook", secret_file=tmp_path / "secret")
    settings = Settings(home=tmp_path, webhook=webhook)
    assert list(problems(settings)) == []
    monkeypatch.setenv(variable, value)
    [problem] = problems(settings)
    assert (problem.where, bool(problem.todo)) == (variable, True)
