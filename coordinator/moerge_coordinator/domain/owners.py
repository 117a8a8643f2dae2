"""Owners: their domains and keys, and the identities of tokens."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import owner_keys, tokens
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import DomainRow, OwnerRow, TokenRow, now, tell
from moerge_proto.owners import Approval, Approved, Identity, Owner, OwnerKey, Role
from moerge_proto.problems import ProblemType
from moerge_proto.signatures import Rotation


def own_name(identity: Identity) -> str:
    """The owner's name of an identity with the role owner."""
    if identity.owner is None:
        raise RefusedError(ProblemType.FORBIDDEN, "the token has no owner")
    return identity.owner


def require_own_domain(identity: Identity, domain: str) -> None:
    if domain not in identity.domains:
        problem = f"domain {domain!r} does not belong to owner {identity.owner!r}"
        todo = f"use one of: {', '.join(identity.domains)}"
        raise RefusedError(ProblemType.FORBIDDEN, problem, where="domain", todo=todo)


def identity(
    session: Session, role: Role, owner: str | None, name: str | None = None, groups: Sequence[str] = ()
) -> Identity:
    """The identity of a token of this role, owner, person and groups."""
    return Identity(role=role, owner=owner, domains=_domains(session, owner), name=name, groups=list(groups))


def _domains(session: Session, owner: str | None) -> list[str]:
    return list(session.scalars(select(DomainRow.name).where(DomainRow.owner == owner).order_by(DomainRow.name)))


def view(session: Session, row: OwnerRow) -> Owner:
    """An owner with its domains, keys and last call."""
    name, tokens = row.name, select(TokenRow).where(TokenRow.owner == row.name)
    seen = session.scalar(tokens.with_only_columns(func.max(TokenRow.used)))
    keys = [message(OwnerKey, key) for key in owner_keys.keys_of(session, name)]
    ended = [item.revoked for item in (*session.scalars(tokens), *keys)]
    times = [time for time in ended if time is not None]
    revoked = max(times) if times and len(times) == len(ended) else None  # None while a key or token is valid
    domains = _domains(session, name)
    return Owner(name=name, domains=domains, keys=keys, created=row.created, seen=seen, revoked=revoked)


def _named(session: Session, name: str) -> OwnerRow | None:
    return session.scalar(select(OwnerRow).where(OwnerRow.name == name))


def _there(session: Session, name: str, domains: Sequence[str]) -> OwnerRow | None:
    """The owner of this name, if any; it must have these domains."""
    row = _named(session, name)
    if row is not None and _domains(session, name) != sorted(set(domains)):
        raise RefusedError(ProblemType.CONFLICT, f"owner {name!r} already has other domains", where="name")
    return row


def _add(session: Session, name: str, domains: Sequence[str]) -> OwnerRow:
    row = OwnerRow(name=name)
    session.add(row)
    session.flush()
    for domain in sorted(set(domains)):
        if (taken := session.get(DomainRow, domain)) is not None:
            problem, todo = f"domain {domain!r} belongs to {taken.owner!r}", "choose another name"
            raise RefusedError(ProblemType.CONFLICT, problem, where="domains", todo=todo)
        session.add(DomainRow(name=domain, owner=name))
    session.flush()
    return row


def _find(session: Session, name: str) -> OwnerRow:
    return existing(_named(session, name), f"owner {name!r}", "name", "run: moerge owner list")


def add(session: Session, name: str, domains: Sequence[str]) -> Owner:
    """Adds an owner of these domains, without a key. Idempotent."""
    row = _there(session, name, domains)
    if row is None:
        row = _add(session, name, domains)
        tell(session, f"owner {name} is added without a key: {', '.join(domains)}")
    return view(session, row)


def approve(session: Session, name: str, asked: Approval) -> Approved:
    """Approves a join request, with the owner's key, and makes a token for its worker."""
    new = asked.request
    if new.owner != name:
        problem = f"the request is of owner {new.owner!r}, not {name!r}"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="request.owner")
    if not new.is_genuine():
        problem, todo = "it is not by the request's key", "ask the owner for the complete request from its worker"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="request.signature", todo=todo)
    row = _there(session, name, new.domains)
    active = [key.public_key for key in owner_keys.keys_of(session, name) if key.revoked is None]
    if active != [new.public_key]:
        if row is not None and not asked.replace:
            problem = f"owner {name!r} already exists, {'with another key' if active else 'without this key'}"
            todo = "to replace the key: moerge owner approve --replace"
            raise RefusedError(ProblemType.CONFLICT, problem, where="replace", todo=todo)
        row = row or _add(session, name, new.domains)
        owner_keys.add_key(session, name, new.public_key, "request.public_key")
        tell(session, f"owner {name} is approved: {', '.join(new.domains)}")
    token = tokens.added(session, TokenRow(role=Role.OWNER, owner=name, note="", created=now(session)))
    return Approved(owner=view(session, _find(session, name)), token=token)


def rotate(session: Session, owner: str, asked: Rotation) -> Owner:
    """Replaces an owner's key with a new one. Idempotent."""
    if asked.owner != owner:
        problem = f"the rotation is of owner {asked.owner!r}, but the token of {owner!r}"
        raise RefusedError(ProblemType.FORBIDDEN, problem, where="owner")
    owner_keys.rotate(session, asked)
    tell(session, f"owner {owner} has a new key")
    return view(session, _find(session, owner))


def revoke(session: Session, name: str) -> Owner:
    """Revokes an owner's key and tokens immediately. Idempotent."""
    row = _find(session, name)
    owner_keys.revoke_keys(session, name)
    for token in session.scalars(select(TokenRow).where(TokenRow.owner == name, TokenRow.revoked.is_(None))):
        token.revoked = now(session)
    session.flush()
    tell(session, f"owner {name} is revoked")
    return view(session, row)
