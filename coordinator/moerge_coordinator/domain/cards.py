"""Model cards of versions, with facts added after publication."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.versions.card_scores import ScoreRow, published_card, scores_text
from moerge_coordinator.domain.evaluations import visible_table
from moerge_coordinator.storage.messages import versions
from moerge_coordinator.storage.tables import ExpertRow, VersionRow
from moerge_proto.evaluations import VersionTable


def version_card(session: Session, row: VersionRow, card: str, owner: str | None) -> str:
    """The published card, with number, date, later withdrawn experts, and scores.

    Args:
        card: the text of the published file.
        owner: None for callers with access to all scores.
    """
    return published_card(
        card, row.number, row.created, withdrawal_note(session, row), _scores(visible_table(session, row, owner))
    )


def _scores(table: VersionTable) -> str:
    rows = [
        ScoreRow(score.domain, score.tokens, score.dense, score.version, score.normalised) for score in table.scores
    ]
    text = "on held-out documents, which each owner measured on its own data"
    return scores_text(text, rows, table.average, table.missing)


def withdrawal_note(session: Session, row: VersionRow) -> str:
    """The notice of its later withdrawn experts; empty if there are none."""
    gone = versions(session)(row).contains_withdrawn
    if not gone:
        return ""
    domains = {scalar.digest: scalar.domain for scalar in session.scalars(select(ExpertRow))}
    names = ", ".join(f"{domains[digest]} (`{digest}`)" for digest in gone)
    return f"> This version still contains parameters of experts that were withdrawn: {names}.\n\n"
