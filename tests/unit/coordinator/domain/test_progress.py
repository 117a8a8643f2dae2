"""Progress: one row for a domain, as its worker last told it."""

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import owners, progress
from moerge_coordinator.storage.tables import ProgressRow
from moerge_proto.progress import Obstacle, Progress, Stage
from support.rows import START, Clock


def message(domain: str, done: int, obstacle: Obstacle | None = None) -> Progress:
    figures = {"shards_done": done, "shards_total": 10, "tokens_per_second": 9, "seconds_left": None}
    return Progress.model_validate({"domain": domain, "stage": Stage.COMPUTING, "obstacle": obstacle, **figures})


def test_the_last_word_of_each_domain_is_kept_with_its_time(session: Session, clock: Clock) -> None:
    owners.add(session, "firm", ["law", "tax"])
    first = progress.tell(session, "firm", message("law", 1))
    assert (first.owner, first.shards_done, first.heard) == ("firm", 1, START)
    later = clock.later(seconds=30)
    progress.tell(session, "firm", message("tax", 5))
    refused = progress.tell(session, "firm", message("law", 1, Obstacle.BODY_REFUSED))
    assert refused.obstacle is Obstacle.BODY_REFUSED
    last = progress.tell(session, "firm", message("law", 2))
    assert last.obstacle is None
    assert (last.number, last.shards_done, last.heard) == (first.number, 2, later)
    assert session.scalar(select(func.count()).select_from(ProgressRow)) == 2


def test_more_shards_than_all_are_no_progress() -> None:
    with pytest.raises(ValueError, match="at most shards_total"):
        message("law", 11)
