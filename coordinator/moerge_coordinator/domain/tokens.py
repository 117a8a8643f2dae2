"""Bearer tokens: creation, rotation and revocation. The database stores only their hashes."""

import secrets
from datetime import datetime, timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import OwnerRow, TokenRow, now, tell
from moerge_proto.digests import sha256_hex
from moerge_proto.owners import NewToken, Role, RotateToken, Token, TokenEntry
from moerge_proto.problems import ProblemType

_COPIED = "role", "owner", "name", "groups", "note"
"""Columns that a rotated token has from the one before."""


def make_token(session: Session, asked: NewToken) -> Token:
    if (asked.role is Role.OWNER) != (asked.owner is not None):
        problem = "only the role owner needs and allows an owner's name"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="owner")
    if asked.role is Role.OWNER and asked.name is not None:
        problem = "an owner's token has the owner's name"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="name", todo="leave it out")
    if asked.groups and asked.role is not Role.READER:
        raise RefusedError(ProblemType.INVALID_REQUEST, "only readers have groups", where="groups", todo="leave it out")
    if asked.expires is not None and asked.expires <= now(session):
        problem = f"{asked.expires:%Y-%m-%d %H:%M} UTC is not in the future"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="expires", todo="give a later time, or none")
    if asked.owner is not None:
        owner = session.scalar(select(OwnerRow).where(OwnerRow.name == asked.owner))
        existing(owner, f"owner {asked.owner!r}", "owner", "first add the owner")
    token = added(session, TokenRow(**dict(asked)))
    tell(session, f"token {token.id} is added: {' of '.join(filter(None, (asked.role, asked.owner)))}")
    return token


def added(session: Session, row: TokenRow) -> Token:
    """A new row's token. The database stores only its SHA-256, which is safe for a secret of 256 random bits."""
    secret = f"moerge_{secrets.token_urlsafe(32)}"
    row.hash = sha256_hex(secret.encode())
    session.add(row)
    session.flush()
    return Token(**message(TokenEntry, row).model_dump(), secret=secret)


def ended(row: TokenRow, when: datetime) -> str | None:
    """A description of a token's end; None while it is valid."""
    if row.revoked is not None and row.revoked <= when:
        return f"the token was revoked on {row.revoked:%Y-%m-%d %H:%M} UTC"
    if row.expires is not None and row.expires <= when:
        return f"the token expired on {row.expires:%Y-%m-%d %H:%M} UTC"
    return None


class LastUses:
    """The last use of each token: recorded in memory, and written by `save`, so that no call waits for the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._uses: dict[int, datetime] = {}

    def note(self, token: int) -> None:
        self._uses[token] = self._database.clock()

    def save(self) -> None:
        """Writes the uses since the last save."""
        uses, self._uses = self._uses, {}
        if not uses:
            return
        with self._database.transaction("note uses of tokens") as session:
            for token, when in list(uses.items()):
                later = or_(TokenRow.used.is_(None), TokenRow.used < when)  # another replica may have a later use
                session.execute(update(TokenRow).where(TokenRow.id == token, later).values(used=when))


def revoke_token(session: Session, id_: int) -> TokenEntry:
    """Revokes a token immediately, except the last operator token. Idempotent."""
    row = _find(session, id_)
    if row.revoked is None:
        _require_another_operator(session, row)
        row.revoked = now(session)
        tell(session, f"token {id_} is revoked")
    return message(TokenEntry, row)


def rotate_token(session: Session, id_: int, asked: RotateToken) -> Token:
    """A token that replaces another, with the same role, owner, note and original duration."""
    when, old = now(session), _find(session, id_)
    if (how := ended(old, when)) is not None:
        raise RefusedError(ProblemType.CONFLICT, how, where="id", todo="make a new one")
    expires = None if old.expires is None else when + (old.expires - old.created)
    row = TokenRow(created=when, expires=expires, **{name: getattr(old, name) for name in _COPIED})
    if asked.overlap_seconds:
        end = when + timedelta(seconds=asked.overlap_seconds)
        old.expires = end if old.expires is None else min(end, old.expires)
    else:
        old.revoked = when
    token = added(session, row)
    tell(session, f"token {token.id} takes the place of token {id_}")
    return token


def _find(session: Session, id_: int) -> TokenRow:
    return existing(session.get(TokenRow, id_), f"token {id_}", "id", "run: moerge token list")


def _require_another_operator(session: Session, row: TokenRow) -> None:
    when = now(session)
    if row.role is not Role.OPERATOR or ended(row, when) is not None:
        return
    others = select(TokenRow).where(TokenRow.role == Role.OPERATOR, TokenRow.id != row.id)
    if all(ended(other, when) for other in session.scalars(others)):
        problem = "it is the last valid operator token"
        raise RefusedError(ProblemType.CONFLICT, problem, where="id", todo="first make or rotate an operator token")
