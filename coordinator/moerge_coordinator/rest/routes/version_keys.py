"""The keys that sign versions."""

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import select

from moerge_coordinator.domain import version_keys
from moerge_coordinator.rest.auth import Anyone, Operator, Route
from moerge_coordinator.rest.lists import After, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import VersionKeyRow
from moerge_proto.digests import Digest
from moerge_proto.messages import Page
from moerge_proto.version_keys import KeyRotation, VersionKey

router = APIRouter(prefix="/version-keys", tags=["version keys"], route_class=Route)


@router.get("")
def list_keys(state: Coordinator, caller: Anyone, after: After = 0) -> Page[VersionKey]:
    """Lists the keys that sign or signed versions, with rotations and revocations."""
    with state.database.reading() as session:
        query = select(VersionKeyRow)
        return page(session, query, VersionKeyRow.number, after, lambda row: message(VersionKey, row))


@router.post("/rotate")
def rotate(state: Coordinator, caller: Operator, asked: KeyRotation) -> VersionKey:
    """Replaces the active key with a new one; both keys sign the rotation. Idempotent.

    Versions keep their signatures, which stay valid.
    """
    with state.database.transaction("rotate version key") as session:
        return message(VersionKey, version_keys.rotate(session, asked))


@router.post("/{fingerprint}/revoke")
def revoke(state: Coordinator, caller: Operator, fingerprint: Annotated[Digest, Path()]) -> VersionKey:
    """Revokes a key immediately: no version counts as signed by it. Idempotent.

    Without an active key, versions are published unsigned until the coordinator starts with another one.
    """
    with state.database.transaction("revoke version key") as session:
        return message(VersionKey, version_keys.revoke(session, fingerprint))
