"""Authentication: a bearer token turned into an identity, and the roles of each route.

Both are checked before a byte of the body is read.
"""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Protocol, cast

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from moerge_coordinator.domain import owners
from moerge_coordinator.domain.tokens import ended
from moerge_coordinator.person import person_of
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.limits import limited
from moerge_coordinator.rest.state import state_of
from moerge_coordinator.storage.tables import TokenRow
from moerge_proto.digests import sha256_hex
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType

_bearer = HTTPBearer(auto_error=False, description="A token from `moerge coordinator init` or an operator.")


class _Roles(Protocol):
    """A dependency that allows some roles."""

    roles: tuple[Role, ...]

    def __call__(self, request: Request, credentials: HTTPAuthorizationCredentials | None) -> Identity: ...


def _authenticate(request: Request, secret: str) -> Identity:
    """The identity of a valid token, also recorded in the request's log line and audit row."""
    state = state_of(request.app)
    with state.database.reading() as session:
        row = session.scalar(select(TokenRow).where(TokenRow.hash == sha256_hex(secret.encode())))
        if row is None:
            raise _unauthenticated("no valid token")
        identity = owners.identity(session, row.role, row.owner, row.name, row.groups)
    request.state.token, request.state.identity = row.id, identity
    if (how := ended(row, state.database.clock())) is not None:
        raise _unauthenticated(how, "ask an operator for a new one")
    state.last_uses.note(row.id)
    return identity


def _unauthenticated(
    what: str, todo: str = "give a token of this coordinator, such as in MOERGE_TOKEN"
) -> RefusedError:
    return RefusedError(ProblemType.UNAUTHENTICATED, what, where="token", todo=todo)


class Route(APIRoute):
    """A route that checks the caller before it reads the body, and limits the body's bytes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        result = (getattr(dependency.call, "roles", None) for dependency in self.dependant.dependencies)
        roles: tuple[Role, ...] | None = next(filter(None, result), None)

        async def admitted(request: Request) -> Response:
            if roles is not None:
                credentials = await _bearer(request)
                request.state.admitted = await run_in_threadpool(_admit, request, credentials, roles)
            return await handle(limited(request, self))

        return admitted


def _admit(request: Request, credentials: HTTPAuthorizationCredentials | None, roles: tuple[Role, ...]) -> Identity:
    if credentials is not None:
        identity = _authenticate(request, credentials.credentials)
    elif (person := person_of(request)) is not None:  # a call of the dashboard, in process
        identity = request.state.identity = person
    else:
        raise _unauthenticated("no valid token")
    if identity.role not in roles:
        wanted = " or ".join(role.value for role in roles)
        problem = f"this needs the role {wanted}, but the token has {identity.role.value}"
        raise RefusedError(ProblemType.FORBIDDEN, problem, todo="use a token with that role")
    _require_known_parameters(request)
    return identity


def allow(*roles: Role) -> _Roles:
    """A dependency that gives the caller's identity; its `Route` allows only these roles.

    The OpenAPI document lists them. A route of another class refuses all calls.
    """

    def admitted(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Identity:
        identity: Identity = request.state.admitted
        return identity

    dependency = cast(_Roles, admitted)
    dependency.roles = roles
    return dependency


def _require_known_parameters(request: Request) -> None:
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    if unknown := sorted(request.query_params.keys() - known):
        todo = f"use one of: {', '.join(sorted(known))}" if known else "omit it"
        raise RefusedError(ProblemType.INVALID_REQUEST, "unknown query parameter", where=unknown[0], todo=todo)
    for name in request.query_params:
        if len(request.query_params.getlist(name)) > 1:
            raise RefusedError(ProblemType.INVALID_REQUEST, "given more than once", where=name, todo="give it once")


Anyone = Annotated[Identity, Depends(allow(Role.OPERATOR, Role.OWNER, Role.READER))]
Operator = Annotated[Identity, Depends(allow(Role.OPERATOR))]
Reader = Annotated[Identity, Depends(allow(Role.READER))]
DomainOwner = Annotated[Identity, Depends(allow(Role.OWNER))]
OperatorOrOwner = Annotated[Identity, Depends(allow(Role.OPERATOR, Role.OWNER))]
OperatorOrReader = Annotated[Identity, Depends(allow(Role.OPERATOR, Role.READER))]
Scraper = Annotated[Identity, Depends(allow(Role.OPERATOR, Role.READER, Role.METRICS))]


def who(request: Request, caller: Identity) -> str:
    """The caller, and its token or sign-in, for a history."""
    token = getattr(request.state, "token", None)
    return f"{caller.who}, {'signed in by the proxy' if token is None else f'token {token}'}"
