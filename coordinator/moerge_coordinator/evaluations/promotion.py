"""The promotion's use of scores: losses against the champion."""

from sqlalchemy.orm import Session

from moerge.versions.evaluations import changes_between
from moerge_coordinator.evaluations.scores import active, table_of
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import VersionRow

_NAMED = 5
"""Domains and tasks named in a warning."""


def compared(
    session: Session, version: VersionRow, champion: VersionRow | None, settings: Settings
) -> tuple[list[str], list[str]]:
    """Losses of more than the settings allow against the champion, and warnings of scores that can't be compared."""
    most = settings.promotion_max_fall, settings.promotion_max_errors
    after = active(session, version)
    before = [] if champion is None else active(session, champion)
    changes = [(change, change.allowed(*most)) for change in changes_between(before, after)]
    falls = [str(change) for change, allowed in changes if allowed is not None and change.gain < -allowed]
    compared = {change.before.number for change, allowed in changes if allowed is not None}
    missing = {
        row.name: table_of(session, row, scores).missing
        for row, scores in ((champion, before), (version, after))
        if row is not None
    }
    tasks = (row for row in before if row.score.kind == "task" and row.number not in compared)
    missing[version.name] += [row.score.name for row in tasks]
    return falls, [
        f"version {name} has no score to compare on {', '.join(names[:_NAMED])}"
        + (f" and {len(names) - _NAMED} others" if len(names) > _NAMED else "")
        for name, names in missing.items()
        if names
    ]
