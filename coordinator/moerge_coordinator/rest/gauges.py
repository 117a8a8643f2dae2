"""Figures of the present state, read for each scrape. Their number grows with owners and tokens, not with history."""

import shutil
from collections.abc import Callable

from cryptography import x509
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from moerge_coordinator.domain.tokens import ended
from moerge_coordinator.metrics import Values
from moerge_coordinator.rest.state import State
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import HoldingRow, TokenRow, UploadRow, VersionRow, now


def add_gauges(state: State) -> None:
    """Adds gauges of the state to its figures. Moments are seconds since 1970."""
    settings, traffic = state.settings, state.traffic

    def add(name: str, help: str, read: Callable[[], Values], *labels: str) -> None:
        state.metrics.add(f"moerge_{name}", help, labels, read)

    def of(query: Callable[[Session], Values]) -> Callable[[], Values]:
        def read() -> Values:
            with state.database.reading() as session:
                return query(session)

        return read

    add("workflows", "Recent workflows by kind and state.", state.workflows.count, "kind", "state")
    add("leader", "1: this process runs the workflows.", lambda: {(): float(traffic.leading)})
    add("free_bytes", "Free bytes on the home's disk.", lambda: {(): shutil.disk_usage(settings.home).free})
    add("stored_bytes", "Bytes of complete uploads.", of(_stored), "owner")
    add("open_uploads", "Incomplete uploads.", of(_open), "owner")
    add("owner_seen_seconds", "Moment of an owner's last call.", of(_seen), "owner")
    add("token_expiry_seconds", "Moment at which a valid token ends.", of(_expiries), "id", "role", "owner")
    add("certificate_expiry_seconds", "Moment at which the TLS certificate ends.", lambda: _certificate(settings))
    add("version_seconds", "Moment of the newest version.", of(_version))
    add("backup_seconds", "Moment of the last backup by moerge.", lambda: _backup(settings))


def _stored(session: Session) -> Values:
    rows = session.execute(select(HoldingRow.owner, func.sum(HoldingRow.size)).group_by(HoldingRow.owner))
    return {(owner,): int(size) for owner, size in rows}


def _open(session: Session) -> Values:
    rows = session.execute(select(UploadRow.owner, func.count()).where(UploadRow.size > 0).group_by(UploadRow.owner))
    return {(owner,): count for owner, count in rows}


def _seen(session: Session) -> Values:
    used = func.max(TokenRow.used)
    rows = session.execute(select(TokenRow.owner, used).group_by(TokenRow.owner))
    return {(owner,): when.timestamp() for owner, when in rows if owner is not None and when is not None}


def _expiries(session: Session) -> Values:
    when, rows = now(session), session.scalars(select(TokenRow).where(TokenRow.expires.is_not(None)))
    valid = [row for row in rows if ended(row, when) is None]
    return {(str(row.id), row.role, row.owner or ""): row.expires.timestamp() for row in valid if row.expires}


def _certificate(settings: Settings) -> Values:
    if settings.tls_certificate is None:
        return {}
    try:
        certificate = x509.load_pem_x509_certificate(settings.tls_certificate.read_bytes())
    except (OSError, ValueError):  # a file that is replaced must not end all other figures
        return {}
    return {(): certificate.not_valid_after_utc.timestamp()}


def _version(session: Session) -> Values:
    when = session.scalar(select(func.max(VersionRow.created)).where(VersionRow.part.is_(None)))
    return {} if when is None else {(): when.timestamp()}


def _backup(settings: Settings) -> Values:
    return {(): settings.backed_up.stat().st_mtime} if settings.backed_up.exists() else {}
