"""Paged lists."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query
from pydantic import BeforeValidator
from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from moerge_proto.messages import Message, Page

PAGE = 100
LARGEST = 2**31 - 1


def _plain(value: object) -> object:
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise ValueError("expected digits only")
    return value


After = Annotated[
    int,
    BeforeValidator(_plain),
    Query(ge=0, le=LARGEST, description="The `next` of the page before; 0 for the first page."),
]
Number = Annotated[int, Path(ge=1, le=LARGEST)]

M = TypeVar("M", bound=Message)


def page(
    session: Session, query: Select[Any], number: InstrumentedAttribute[int], after: int, view: Callable[[Any], M]
) -> Page[M]:
    """The rows of `query` whose `number` comes after `after`, at most PAGE of them."""
    rows = list(session.scalars(query.where(number > after).order_by(number).limit(PAGE + 1)))
    following = getattr(rows[PAGE - 1], number.key) if len(rows) > PAGE else None
    return Page(items=[view(row) for row in rows[:PAGE]], next=following)
