"""Rows as messages."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.storage.tables import (
    AliasRow,
    Base,
    ExpertRow,
    VersionKeyRow,
    VersionRow,
)
from moerge_proto.messages import Message
from moerge_proto.versions import Version

M = TypeVar("M", bound=Message)


def message(kind: type[M], row: Base) -> M:
    """The message made from the row's columns."""
    return kind.model_validate(row, from_attributes=True)


def versions(session: Session) -> Callable[[VersionRow], Version]:
    """A view of versions with their present aliases, withdrawals and revocations."""
    aliases = session.scalars(select(AliasRow).order_by(AliasRow.number)).all()
    withdrawn = set(session.scalars(select(ExpertRow.digest).where(ExpertRow.withdrawn.is_not(None))))
    revoked = {row.fingerprint: row.revoked for row in session.scalars(select(VersionKeyRow))}

    def view(row: VersionRow) -> Version:
        derived = {
            "aliases": [alias.name for alias in aliases if alias.version == row.number],
            "contains_withdrawn": [expert for expert in row.lineage.experts if expert in withdrawn],
            "key_revoked": revoked.get(row.key or ""),
            "number": row.whole,
        }
        columns = {name: getattr(row, name) for name in Version.model_fields.keys() - derived.keys()}
        return Version.model_validate({**columns, **derived})

    return view
