"""Later additions to a model card: scores, number, date, and the recipe of a merge."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from moerge.versions.evaluations import figure, on_tasks
from moerge_proto.evaluations import Evaluation

_MOST_TASKS = 100


class ScoreRow(NamedTuple):
    """A domain's scores in a card: perplexities of its dense expert and of the version, over the same tokens."""

    domain: str
    tokens: int
    expert: float
    version: float
    normalised: float


def published_card(card: str, name: str, created: datetime, note: str, scores: str) -> str:
    """A version's card with its coordinator's facts: its name, date, a notice, and scores."""
    fact = f"Version {name}, published on {created:%Y-%m-%d}. Fetch it with `moerge pull {name} my-model`.\n\n"
    return re.sub(r"^# .*\n\n", lambda title: title[0] + note + fact, scored_card(card, scores), count=1, flags=re.M)


def scored_card(card: str, scores: str) -> str:
    """A card with `scores` in its section of scores; unchanged if they are empty."""
    if not scores:
        return card
    section = f"\n## Scores\n\n{scores}"
    return re.sub(r"\n## Scores\n.*?(?=\n## )", lambda old: section, card, count=1, flags=re.S)


def recipe_card(card: str, name: str, sha256: str) -> str:
    """A card that names the recipe's file and its digest behind the lineage."""
    text = rf"\1 The options of the merge are in `{name}`, SHA-256 `{sha256}`."
    return re.sub(r"^(The complete lineage is in `moerge\.json`\.).*$", text, card, count=1, flags=re.M)


def scores_text(text: str, rows: Sequence[ScoreRow], average: float | None, missing: Sequence[str] = ()) -> str:
    """A card's scores: a table below `text`, which names the scored documents; empty without a row."""
    if not rows:
        return ""
    cells = [(r.domain, f"{r.tokens:,}", f"{r.expert:.2f}", f"{r.version:.2f}", f"{r.normalised:.1f}") for r in rows]
    if average is not None:
        cells.append(("average", "", "", "", f"{average:.1f}"))
    table = f"| domain | tokens | expert | this model | normalised |\n|---|---|---|---|---|\n{markdown_rows(cells)}\n"
    absent = f"\nNo scores of: {', '.join(missing)}.\n" if missing else ""
    return f"Perplexities {text}. Normalised: 100 x the expert's / this model's.\n\n{table}{absent}"


def tasks_text(rows: Iterable[Evaluation]) -> str:
    """A card's results on tasks: a table with reporters; empty without one."""
    cells = [
        (score.task, score.metric, figure(score.value, score.standard_error), f"{score.questions:,}",
         score.task_version or "", score.harness, row.reporter)
        for row, score, _ in on_tasks([], rows)
    ]  # fmt: skip
    if not cells:
        return ""
    left = len(cells) - _MOST_TASKS
    more = f"\n{left:,} more are in `moerge version table`.\n" if left > 0 else ""
    head = (
        "| task | metric | result | questions | task's version | harness | reported by |\n|---|---|---|---|---|---|---|"
    )
    text = "Results on tasks, with standard errors, as their reporters measured them"
    return f"{text}:\n\n{head}\n{markdown_rows(cells[:_MOST_TASKS])}\n{more}"


def markdown_rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cell.replace('|', '-') for cell in row)} |" for row in rows)
