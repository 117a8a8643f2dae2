"""Authentication: a bearer token turned into an identity, and the roles that each route lets pass."""

from typing import Annotated, Protocol, cast

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import select

from moerge_coordinator.domain import owners
from moerge_coordinator.domain.tokens import ended
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.state import state_of
from moerge_coordinator.storage.tables import TokenRow
from moerge_proto.digests import sha256_hex
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType

_bearer = HTTPBearer(auto_error=False, description="The token that `moerge coordinator init` or an operator gave out.")


class _Roles(Protocol):
    """A dependency that lets some roles pass."""

    roles: tuple[Role, ...]

    def __call__(self, request: Request, credentials: HTTPAuthorizationCredentials | None) -> Identity: ...


def _authenticate(request: Request, secret: str) -> Identity:
    """The identity of a token; the request's log line and audit row name it.

    Raises:
        RefusedError: it is unknown, expired or revoked.
    """
    state = state_of(request.app)
    with state.database.reading() as session:
        row = session.scalar(select(TokenRow).where(TokenRow.hash == sha256_hex(secret.encode())))
        if row is None:
            raise _unauthenticated("no valid token")
        identity = owners.identity(session, row.role, row.owner)
    request.state.token, request.state.identity = row.id, identity
    if (how := ended(row, state.database.clock())) is not None:
        raise _unauthenticated(how, "ask an operator for a new one")
    state.last_uses.note(row.id)
    return identity


def _unauthenticated(
    what: str, todo: str = "send the header 'Authorization: Bearer TOKEN' with a token of this coordinator"
) -> RefusedError:
    return RefusedError(ProblemType.UNAUTHENTICATED, what, where="Authorization", todo=todo)


def allow(*roles: Role) -> _Roles:
    """A dependency that gives the caller's identity, if its role is one of `roles`. The OpenAPI document tells them.

    Raises:
        RefusedError: there is no valid token, or its role is another, or a query parameter is unknown.
    """

    def check(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Identity:
        if credentials is None:
            raise _unauthenticated("no valid token")
        identity = _authenticate(request, credentials.credentials)
        if identity.role not in roles:
            wanted = " or ".join(role.value for role in roles)
            raise RefusedError(
                ProblemType.FORBIDDEN, f"this needs the role {wanted}, the token has {identity.role.value}"
            )
        _require_known_parameters(request)
        return identity

    dependency = cast(_Roles, check)
    dependency.roles = roles
    return dependency


def _require_known_parameters(request: Request) -> None:
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    if unknown := sorted(request.query_params.keys() - known):
        todo = f"use one of: {', '.join(sorted(known))}" if known else "leave it out"
        raise RefusedError(ProblemType.INVALID_REQUEST, "unknown query parameter", where=unknown[0], todo=todo)
    for name in request.query_params:
        if len(request.query_params.getlist(name)) > 1:
            raise RefusedError(ProblemType.INVALID_REQUEST, "given more than once", where=name, todo="give it once")


Anyone = Annotated[Identity, Depends(allow(*Role))]
Operator = Annotated[Identity, Depends(allow(Role.OPERATOR))]
DomainOwner = Annotated[Identity, Depends(allow(Role.OWNER))]
OperatorOrOwner = Annotated[Identity, Depends(allow(Role.OPERATOR, Role.OWNER))]
OperatorOrReader = Annotated[Identity, Depends(allow(Role.OPERATOR, Role.READER))]


def who(request: Request, caller: Identity) -> str:
    """The caller and its token, for a history."""
    return f"{caller.who}, token {request.state.token}"
