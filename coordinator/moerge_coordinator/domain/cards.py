"""Model cards of versions, with facts added after publication."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.versions.card_scores import ScoreRow, benchmarks_text, published_card, scores_text
from moerge_coordinator.domain import benchmarks
from moerge_coordinator.domain.evaluations import visible_table
from moerge_coordinator.storage.messages import versions
from moerge_coordinator.storage.tables import ExpertRow, VersionRow


def version_card(session: Session, row: VersionRow, card: str, owner: str | None) -> str:
    """The published `card`, with number, date, later withdrawn experts, and what the owner may see of the scores."""
    table = visible_table(session, row, owner)
    rows = [ScoreRow(item.domain, item.tokens, item.dense, item.version, item.normalised) for item in table.scores]
    text = "on held-out documents, which each owner measured on its own data"
    reported = benchmarks_text(benchmarks.active(session, row.number, owner))
    scores = "\n".join(filter(None, [scores_text(text, rows, table.average, table.missing), reported]))
    return published_card(card, row.number, row.created, withdrawal_note(session, row), scores)


def withdrawal_note(session: Session, row: VersionRow) -> str:
    """The notice of its later withdrawn experts; empty if there are none."""
    gone = versions(session)(row).contains_withdrawn
    if not gone:
        return ""
    domains = {expert.digest: expert.domain for expert in session.scalars(select(ExpertRow))}
    names = ", ".join(f"{domains[digest]} (`{digest}`)" for digest in gone)
    return f"> This version still contains parameters of experts that were withdrawn: {names}.\n\n"
