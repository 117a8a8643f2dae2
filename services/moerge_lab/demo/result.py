"""The demo's result: owners and versions, the table in five rows, and a text in the colours of its experts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.table import Table as RichTable

from moerge.chat.replies import Piece, Speaker
from moerge.chat.screen import Lines
from moerge.files import atomic_file
from moerge.progress import Progress
from moerge.scoring.draw import Cut
from moerge.terminal import echo
from moerge_lab.recipes.dense import expert_row
from moerge_lab.recipes.published import VERSION, version_recipe
from moerge_lab.table.inputs import slots_of
from moerge_lab.table.measure import Settings, measure
from moerge_lab.table.runs import with_experts
from moerge_lab.table.table import Run, Table
from moerge_lab.table.texts import Sources, read_texts
from moerge_proto.evaluations import VersionTable

SCORED_TOKENS, STATISTICS_TOKENS = 5_000, 10_000
"""Tokens per domain: of the scores, and of the statistics of averaging and DUME."""
_PROMPT_CHARACTERS, _NEW_TOKENS, _SEED = 120, 80, 1


def measured(version: Path, sources: Mapping[str, Sources], context: int, file: Path, progress: Progress) -> Table:
    """Scores the experts, averaging, DUME and the version on held-out text; `file` gets all figures as JSON."""
    slots, cut = slots_of(version), Cut(context, context // 2, SCORED_TOKENS)
    texts = {name: read_texts(name, sources[name], cut) for name in slots}
    runs = [*with_experts(["averaging", "dume"], sources, None), Run(version_recipe(version, slots), {}, VERSION)]
    result = measure(runs, texts, Settings(statistics_tokens=STATISTICS_TOKENS), progress)
    with atomic_file(file) as out:
        out.write((json.dumps(result.to_json(), indent=2) + "\n").encode())
    return result


def owners(experts: Mapping[str, str], versions: Sequence[VersionTable]) -> RichTable:
    """For each domain, its owner and the owner's evaluation of each version.

    Args:
        experts: domain -> owner.
    """
    table = RichTable("owner", "domain", title="Who owned what; scores by the owners themselves, each on its own text")
    for version in versions:
        table.add_column(f"version {version.version}", justify="right")
    for domain, owner in experts.items():
        cells = [
            next((f"{score.normalised:.1f}" for score in version.scores if score.domain == domain), "not in it")
            for version in versions
        ]
        table.add_row(owner, domain, *cells)
    return table


def five_rows(table: Table) -> RichTable:
    """The best expert, all parameters averaged, DUME, the version, and the right expert for each text."""
    best = max((table.row(expert_row(domain)) for domain in table.domains), key=lambda row: table.average(row).mean)
    rows = {
        f"best: {best.name}": best,
        "averaging": table.row("averaging"),
        "DUME as published": table.row("dume"),
        "version": table.row(VERSION),
        "right expert per text": table.row("oracle"),
    }
    title = "Held-out text: 100 = the perplexity of the domain's own expert; higher is better"
    shown = RichTable("", *table.domains, "average", title=title, caption=table.scored())
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, row in rows.items():
        cells = [f"{table.normalised(row, domain).mean:.1f}" for domain in table.domains]
        shown.add_row(name, *cells, str(table.average(row)))
    return shown


def meaning(table: Table) -> str:
    """A sentence that says what the five rows mean."""
    version, oracle, dume = (table.average(table.row(name)).mean for name in (VERSION, "oracle", "dume"))
    return (
        f"The version doesn't know a text's domain, and keeps {version:.1f} % of the quality of each domain's own"
        f" expert (DUME as published: {dume:.1f} %); routers without errors would keep {oracle:.1f} %."
    )


def continue_text(version: Path, held_out: Path) -> None:
    """Prints the start of the first held-out text, and its continuation as `moerge chat` shows it."""
    with held_out.open(encoding="utf-8") as lines:
        prompt = str(json.loads(next(lines))["text"])[:_PROMPT_CHARACTERS]
    torch.manual_seed(_SEED)
    speaker, counts = Speaker(version, tokens=_NEW_TOKENS, temperature=0.7), Counter[str]()
    screen = Lines(speaker.experts)

    def show(piece: Piece) -> None:
        screen.show(piece)
        counts[piece.expert] += 1

    echo(prompt, nl=False)
    speaker.reply(prompt, show)
    screen.end("", counts)
    screen.shares(counts)
