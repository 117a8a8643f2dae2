"""Owners and their keys, and who a token is."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import owner_keys as keys
from moerge_coordinator.domain import tokens
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import Anyone, DomainOwner, Operator, own_name
from moerge_coordinator.rest.lists import After, page
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage import tables
from moerge_coordinator.storage.database import reading, transaction
from moerge_coordinator.storage.tables import DomainRow, OwnerRow, TokenRow
from moerge_proto.digests import Name
from moerge_proto.messages import Page
from moerge_proto.owners import Approval, Approved, Identity, NewOwner, Owner, Role
from moerge_proto.problems import ProblemType
from moerge_proto.signatures import Rotation

router = APIRouter(tags=["owners"])
OwnerName = Annotated[Name, Path()]


@router.get("/identity")
def identity(request: Request, caller: Anyone) -> Identity:
    """Whose token this is, and the owner's key. Role: any."""
    with reading(request.app.state.engine) as session:
        own = [keys.entry(row) for row in keys.keys_of(session, caller.owner)]
    return caller.model_copy(update={"key": own[-1] if own else None})


@router.post("/identity/rotate")
def rotate(request: Request, caller: DomainOwner, asked: Rotation) -> Owner:
    """Puts an owner's new key in the old one's place; both sign that. The same again changes nothing. Role: owner."""
    owner = own_name(caller)
    if asked.owner != owner:
        found = f"the rotation is of owner {asked.owner!r}, the token of {owner!r}"
        raise RefusedError(ProblemType.FORBIDDEN, found, where="owner")
    with transaction(request.app.state.engine) as session:
        keys.rotate(session, asked)
        return views.owner(session, _find(session, owner))


def _there(session: Session, name: str, domains: Sequence[str]) -> OwnerRow | None:
    """The owner of this name, if there is one; it must speak for these domains."""
    row = session.scalar(select(OwnerRow).where(OwnerRow.name == name))
    if row is not None and views.owner(session, row).domains != sorted(set(domains)):
        raise RefusedError(ProblemType.CONFLICT, f"owner {name!r} is there with other domains", where="name")
    return row


def _added(session: Session, name: str, domains: Sequence[str]) -> OwnerRow:
    row = OwnerRow(name=name)
    session.add(row)
    session.flush()
    for domain in sorted(set(domains)):
        if (taken := session.get(DomainRow, domain)) is not None:
            found, todo = f"domain {domain!r} belongs to {taken.owner!r}", "choose another name"
            raise RefusedError(ProblemType.CONFLICT, found, where="domains", todo=todo)
        session.add(DomainRow(name=domain, owner=name))
    session.flush()
    return row


def _find(session: Session, name: str) -> OwnerRow:
    row = session.scalar(select(OwnerRow).where(OwnerRow.name == name))
    if row is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"no owner {name!r}", where="name", todo="see GET /v1/owners")
    return row


@router.post("/owners", status_code=201)
def add_owner(request: Request, caller: Operator, new: NewOwner) -> Owner:
    """Adds an owner without a key, who speaks for the given domains. The same again changes nothing. Role: operator."""
    with transaction(request.app.state.engine) as session:
        row = _there(session, new.name, new.domains) or _added(session, new.name, new.domains)
        return views.owner(session, row)


@router.get("/owners")
def list_owners(request: Request, caller: Operator, after: After = 0) -> Page[Owner]:
    """Lists owners, their domains and keys. Role: operator."""
    request.app.state.last_uses.save()
    with reading(request.app.state.engine) as session:
        return page(session, select(OwnerRow), OwnerRow.number, after, lambda row: views.owner(session, row))


@router.post("/owners/{name}/approve", status_code=201)
def approve(request: Request, caller: Operator, name: OwnerName, asked: Approval) -> Approved:
    """Takes in the owner who made a join request, with its key, and makes a token for its worker.

    An owner who is there already gets another key only with `replace`, which revokes the one that it had. The same
    again makes another token. Role: operator.
    """
    new = asked.request
    if new.owner != name:
        found = f"the request is of owner {new.owner!r}, not {name!r}"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="request.owner")
    if not new.is_genuine():
        found, todo = "it is not by the request's key", "ask the owner for the request as its worker printed it"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="request.signature", todo=todo)
    with transaction(request.app.state.engine) as session:
        row = _there(session, name, new.domains)
        active = [key.public_key for key in keys.keys_of(session, name) if key.revoked is None]
        if active != [new.public_key]:
            if row is not None and not asked.replace:
                found = f"owner {name!r} is there already, {'with another key' if active else 'without this key'}"
                todo = "if the key is to be this one from now on: moerge owner approve --replace"
                raise RefusedError(ProblemType.CONFLICT, found, where="replace", todo=todo)
            row = row or _added(session, name, new.domains)
            keys.add_key(session, name, new.public_key, "request.public_key")
        token = tokens.added(session, TokenRow(role=Role.OWNER.value, owner=name, note="", created=tables.now()))
        return Approved(owner=views.owner(session, _find(session, name)), token=token)


@router.post("/owners/{name}/revoke")
def revoke(request: Request, caller: Operator, name: OwnerName) -> Owner:
    """Revokes an owner's key and tokens at once. What it contributed stays until it is withdrawn.

    The same again changes nothing. Role: operator.
    """
    with transaction(request.app.state.engine) as session:
        row = _find(session, name)
        keys.revoke_keys(session, name)
        for token in session.scalars(select(TokenRow).where(TokenRow.owner == name, TokenRow.revoked.is_(None))):
            token.revoked = tables.now()
        session.flush()
        return views.owner(session, row)
