"""Bearer tokens: made here, kept as hashes, turned into an identity for each request."""

import secrets
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import Engine, select

from moerge_coordinator.database import reading, transaction
from moerge_coordinator.refusals import RefusedError
from moerge_coordinator.tables import DomainRow, OwnerRow, TokenRow
from moerge_proto.digests import sha256_hex
from moerge_proto.owners import Identity, NewToken, Role, Token
from moerge_proto.problems import ProblemType

_bearer = HTTPBearer(auto_error=False, description="The token that `moerge coordinator init` or an operator gave out.")


def make_token(engine: Engine, asked: NewToken) -> Token:
    """A fresh token; the database keeps only its SHA-256, which is enough because the secret has 256 random bits.

    Raises:
        RefusedError: the role owner needs a known owner's name, and no other role takes one.
    """
    if (asked.role is Role.OWNER) != (asked.owner is not None):
        raise RefusedError(
            ProblemType.INVALID_REQUEST, "the role owner, and no other, takes an owner's name", where="owner"
        )
    secret = f"moerge_{secrets.token_urlsafe(32)}"
    with transaction(engine) as session:
        if asked.owner is not None and not session.scalar(select(OwnerRow).where(OwnerRow.name == asked.owner)):
            raise RefusedError(
                ProblemType.NOT_FOUND, f"no owner {asked.owner!r}", where="owner", todo="add the owner first"
            )
        row = TokenRow(hash=sha256_hex(secret.encode()), role=asked.role.value, owner=asked.owner)
        session.add(row)
        session.flush()
        return Token(id=row.id, role=asked.role, owner=asked.owner, secret=secret)


def identify(engine: Engine, secret: str) -> Identity | None:
    """Whose token this is."""
    with reading(engine) as session:
        row = session.scalar(select(TokenRow).where(TokenRow.hash == sha256_hex(secret.encode())))
        if row is None:
            return None
        domains = session.scalars(select(DomainRow.name).where(DomainRow.owner == row.owner).order_by(DomainRow.name))
        return Identity(role=Role(row.role), owner=row.owner, domains=list(domains))


def allow(*roles: Role) -> Callable[..., Identity]:
    """A dependency that gives the caller's identity, if its role is one of `roles`.

    Raises:
        RefusedError: there is no valid token, or its role is another.
    """

    def check(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Identity:
        identity = identify(request.app.state.engine, credentials.credentials) if credentials else None
        if identity is None:
            todo = "send the header 'Authorization: Bearer TOKEN' with a token of this coordinator"
            raise RefusedError(ProblemType.UNAUTHENTICATED, "no valid token", where="Authorization", todo=todo)
        if identity.role not in roles:
            wanted = " or ".join(role.value for role in roles)
            raise RefusedError(
                ProblemType.FORBIDDEN, f"this needs the role {wanted}, the token has {identity.role.value}"
            )
        return identity

    return check


Anyone = Annotated[Identity, Depends(allow(*Role))]
Operator = Annotated[Identity, Depends(allow(Role.OPERATOR))]
DomainOwner = Annotated[Identity, Depends(allow(Role.OWNER))]
OperatorOrOwner = Annotated[Identity, Depends(allow(Role.OPERATOR, Role.OWNER))]
OperatorOrReader = Annotated[Identity, Depends(allow(Role.OPERATOR, Role.READER))]


def own_name(identity: Identity) -> str:
    """The owner's name of an identity with the role owner."""
    if identity.owner is None:
        raise RefusedError(ProblemType.FORBIDDEN, "the token belongs to no owner")
    return identity.owner


def require_own_domain(identity: Identity, domain: str) -> None:
    """Requires that the owner speaks for `domain`.

    Raises:
        RefusedError: it doesn't.
    """
    if domain not in identity.domains:
        raise RefusedError(
            ProblemType.FORBIDDEN,
            f"domain {domain!r} is not one of owner {identity.owner!r}'s",
            where="domain",
            todo=f"use one of: {', '.join(identity.domains)}",
        )
