"""Paged lists."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Query
from sqlalchemy import Select
from sqlalchemy.orm import Mapped, Session

from moerge_proto.messages import Message, Page

PAGE = 100
After = Annotated[int, Query(ge=0, description="The `next` of the page before; 0 for the first page.")]

M = TypeVar("M", bound=Message)


def page(session: Session, query: Select[Any], number: Mapped[int], after: int, view: Callable[[Any], M]) -> Page[M]:
    """The rows of `query` whose `number` comes after `after`, at most PAGE of them."""
    rows = list(session.scalars(query.where(number > after).order_by(number).limit(PAGE + 1)))
    following = rows[PAGE - 1].number if len(rows) > PAGE else None
    return Page(items=[view(row) for row in rows[:PAGE]], next=following)
