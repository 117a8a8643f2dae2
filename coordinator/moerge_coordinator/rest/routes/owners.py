"""Owners and their keys, and the identity of a token."""

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import select

from moerge_coordinator.domain import owner_keys, owners
from moerge_coordinator.domain.owners import own_name
from moerge_coordinator.rest.auth import Anyone, DomainOwner, Operator, Route
from moerge_coordinator.rest.lists import After, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import OwnerRow
from moerge_proto.digests import Name
from moerge_proto.messages import Page
from moerge_proto.owners import Approval, Approved, Identity, NewOwner, Owner, OwnerKey
from moerge_proto.signatures import Rotation

router = APIRouter(tags=["owners"], route_class=Route)
OwnerName = Annotated[Name, Path()]


@router.get("/identity")
def identity(state: Coordinator, caller: Anyone) -> Identity:
    """The identity of the token, with the owner's key."""
    with state.database.reading() as session:
        own = [message(OwnerKey, row) for row in owner_keys.keys_of(session, caller.owner)]
    return caller.model_copy(update={"key": own[-1] if own else None})


@router.post("/identity/rotate")
def rotate(state: Coordinator, caller: DomainOwner, asked: Rotation) -> Owner:
    """Replaces an owner's key with a new one; both keys sign the rotation. Idempotent."""
    with state.database.transaction("rotate key") as session:
        return owners.rotate(session, own_name(caller), asked)


@router.post("/owners", status_code=201)
def add_owner(state: Coordinator, caller: Operator, new: NewOwner) -> Owner:
    """Adds an owner of these domains, without a key. Idempotent."""
    with state.database.transaction("add owner") as session:
        return owners.add(session, new.name, new.domains)


@router.get("/owners")
def list_owners(state: Coordinator, caller: Operator, after: After = 0) -> Page[Owner]:
    """Lists owners, their domains and keys."""
    state.last_uses.save()
    with state.database.reading() as session:
        return page(session, select(OwnerRow), OwnerRow.number, after, lambda row: owners.view(session, row))


@router.post("/owners/{name}/approve", status_code=201)
def approve(state: Coordinator, caller: Operator, name: OwnerName, asked: Approval) -> Approved:
    """Approves a join request, with the owner's key, and makes a token for its worker.

    `replace` allows another key for an existing owner, and revokes the old one. A repetition makes another token.
    """
    with state.database.transaction("approve owner") as session:
        return owners.approve(session, name, asked)


@router.post("/owners/{name}/revoke")
def revoke(state: Coordinator, caller: Operator, name: OwnerName) -> Owner:
    """Revokes an owner's key and tokens immediately. Its contributions stay until their withdrawal. Idempotent."""
    with state.database.transaction("revoke owner") as session:
        return owners.revoke(session, name)
