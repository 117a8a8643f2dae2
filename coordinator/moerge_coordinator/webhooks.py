"""Notices of events to the webhook of the settings, by the Standard Webhooks specification.

A notice is a row of its event's transaction, so neither exists without the other. It is sent with the same id until
the receiver answers with a status of 2xx: at least once. https://www.standardwebhooks.com has the signed bytes.
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from moerge import network
from moerge.errors import MoergeError
from moerge_coordinator.rest.state import State
from moerge_coordinator.settings import Event, Settings, Webhook
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import NoticeRow, now

PAUSES = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
"""Seconds after each failed attempt, three days in all; a notice that fails once more is dropped."""
_PREFIX = "whsec_"
_LEAST_BYTES, _MOST_BYTES = 24, 64
_AT_ONCE = 100
_SECONDS, _AFTER_ERROR = 1.0, 60.0
_TIMEOUT = 15.0
_log = logging.getLogger("moerge.webhooks")


def secrets_in(path: Path) -> list[bytes]:
    """The secrets in a file, one a line."""
    todo = 'write a line of "whsec_" and the base64 of 24 to 64 random bytes, readable by the coordinator'
    try:
        lines = path.read_text(encoding="utf-8-sig").split()
        result = [base64.b64decode(line.removeprefix(_PREFIX), validate=True) for line in lines]
    except OSError as error:
        raise MoergeError(f"can't be read: {error.strerror}", where=str(path), todo=todo) from error
    except (binascii.Error, UnicodeError) as error:
        raise MoergeError("a line is no base64", where=str(path), todo=todo) from error
    if not result or not all(_LEAST_BYTES <= len(secret) <= _MOST_BYTES for secret in result):
        raise MoergeError("expected secrets of 24 to 64 bytes", where=str(path), todo=todo)
    return result


def signatures(secrets: Sequence[bytes], name: str, seconds: int, body: bytes) -> str:
    """The header `webhook-signature`: HMAC-SHA256 by each secret."""
    signed = b"%s.%d.%s" % (name.encode(), seconds, body)
    made = (hmac.new(secret, signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(item).decode()}" for item in made)


def _client(webhook: Webhook) -> httpx.Client:
    return network.client(httpx.URL(webhook.url), timeout=_TIMEOUT)


def events(settings: Settings) -> Sequence[Event]:
    return () if settings.webhook is None else settings.webhook.events


def problems(settings: Settings) -> Iterator[MoergeError]:
    """Problems of the webhook's secrets, and of the environment's proxy and certificates for it."""
    if settings.webhook is not None:
        try:
            secrets_in(settings.webhook.secret_file)
            _client(settings.webhook).close()
        except MoergeError as error:
            yield error


@contextmanager
def sending(state: State) -> Iterator[None]:
    """A context in which a thread sends notices while this process leads, and a gauge counts them."""
    webhook, database = state.settings.webhook, state.database
    what = "Events that the webhook's receiver has not confirmed."
    state.metrics.add("moerge_waiting_notices", what, (), lambda: {(): _waiting(database)})
    if webhook is None:
        yield
        return
    stopped, http = threading.Event(), _client(webhook)

    def run() -> None:
        pause = _SECONDS
        with http:
            while not stopped.wait(pause):
                pause = _SECONDS
                try:
                    if state.traffic.leading:
                        send_due(webhook, database, http)
                except (MoergeError, SQLAlchemyError) as error:
                    pause = _AFTER_ERROR
                    _log.error("no notices are sent: %s; next attempt in %d s", error, pause)

    threading.Thread(target=run, name="webhooks", daemon=True).start()
    try:
        yield
    finally:
        stopped.set()


def _waiting(database: Database) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(NoticeRow)) or 0


def send_due(webhook: Webhook, database: Database, http: httpx.Client) -> None:
    """Sends the notices that are due, oldest first, until one fails."""
    with database.reading() as session:
        due = select(NoticeRow).where(NoticeRow.due <= now(session)).order_by(NoticeRow.number).limit(_AT_ONCE)
        rows = list(session.scalars(due))
    secrets = secrets_in(webhook.secret_file) if rows else []
    for row in rows:
        failure = _failure(webhook, row, secrets, int(database.clock().timestamp()), http)
        with database.transaction("send notice") as session:
            _settle(session, session.get_one(NoticeRow, row.number), failure)
        if failure is not None:
            _log.warning("%s: notice %s of %s: %s", webhook.place, row.name, row.event, failure)
            return


def _failure(
    webhook: Webhook, row: NoticeRow, secrets: Sequence[bytes], seconds: int, http: httpx.Client
) -> str | None:
    """Sends a notice; the reason why it failed, or None."""
    body = json.dumps({"type": row.event, "timestamp": row.created.isoformat(), "data": row.data}).encode()
    headers = {
        "Content-Type": "application/json",
        "webhook-id": row.name,
        "webhook-timestamp": str(seconds),
        "webhook-signature": signatures(secrets, row.name, seconds, body),
    }
    try:
        sent = http.stream("POST", webhook.url, content=body, headers=headers, follow_redirects=False)
        with sent as response:
            return None if response.is_success else f"status {response.status_code}"
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"


def _settle(session: Session, row: NoticeRow, failure: str | None) -> None:
    """Removes a sent notice; after a failure it is due later, or dropped."""
    row.attempts += 1
    if failure is None:
        session.delete(row)
    elif row.attempts > len(PAUSES):
        _log.error("notice %s of %s is dropped after %d attempts", row.name, row.event, row.attempts)
        session.delete(row)
    else:
        row.due = now(session) + timedelta(seconds=PAUSES[row.attempts - 1])
