"""Paged lists, and their rows visible to a caller."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query
from pydantic import BeforeValidator
from sqlalchemy import Select, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from moerge_coordinator.problems import existing
from moerge_coordinator.storage.tables import ContributionRow, ExpertRow, ProgressRow
from moerge_proto.messages import Message, Page
from moerge_proto.owners import Identity, Role
from moerge_proto.version_names import VersionName

PAGE = 100
LARGEST = 2**31 - 1


def plain(value: object) -> object:
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise ValueError("expected digits only")
    return value


def _plain_flag(value: object) -> object:
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("expected true or false")
    return value


_AFTER = Query(ge=0, le=LARGEST, description="The previous page's `next`; 0 for the first page.")
After = Annotated[int, BeforeValidator(plain), _AFTER]
Flag = Annotated[bool, BeforeValidator(_plain_flag)]
Newest = Annotated[Flag, Query(description="Newest first; `after` and `next` then lead to older ones.")]
Number = Annotated[int, Path(ge=1, le=LARGEST)]
VersionPath = Annotated[VersionName, Path(description="A version's number, or a part's name: `3+0123456789abcdef`.")]

M = TypeVar("M", bound=Message)
Owned = TypeVar("Owned", ExpertRow, ContributionRow, ProgressRow)
Named = TypeVar("Named", ExpertRow, ContributionRow)


def page(
    session: Session,
    query: Select[Any],
    number: InstrumentedAttribute[int],
    after: int,
    view: Callable[[Any], M],
    *,
    newest: bool = False,
) -> Page[M]:
    """At most PAGE rows of `query` with a `number` above `after`; with `newest`, below it, in descending order."""
    if not newest:
        query = query.where(number > after).order_by(number)
    else:
        query = (query.where(number < after) if after else query).order_by(number.desc())
    rows = list(session.scalars(query.limit(PAGE + 1)))
    following = getattr(rows[PAGE - 1], number.key) if len(rows) > PAGE else None
    return Page(items=[view(row) for row in rows[:PAGE]], next=following)


def visible(caller: Identity, kind: type[Owned]) -> Select[Owned]:
    """The rows of `kind`; for an owner, only its own."""
    query = select(kind)
    return query.where(kind.owner == caller.owner) if caller.role is Role.OWNER else query


def visible_row(session: Session, caller: Identity, kind: type[Named], digest: str) -> Named:
    """The row of that digest; for an owner, only its own."""
    row, name = session.scalar(visible(caller, kind).where(kind.digest == digest)), kind.__tablename__.removesuffix("s")
    return existing(row, f"{name} {digest}", todo=f"run: moerge {name} list")
