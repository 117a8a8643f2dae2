"""The demo's result: owners and versions, the table in five rows, and a text in the colours of its experts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.table import Table as RichTable
from rich.text import Text

from moerge.files import atomic_file
from moerge.models.dense_files import DenseFiles
from moerge.progress import Progress
from moerge.scoring.draw import Cut
from moerge.scoring.perplexity import load
from moerge_lab.recipes.dense import expert_row
from moerge_lab.recipes.published import VERSION, version_recipe
from moerge_lab.routing.drawing import shares
from moerge_lab.routing.weights import Along, along
from moerge_lab.table.inputs import slots_of
from moerge_lab.table.measure import Settings, measure
from moerge_lab.table.runs import with_experts
from moerge_lab.table.table import Run, Table
from moerge_lab.table.texts import Sources, read_texts
from moerge_proto.evaluations import VersionTable

SCORED_TOKENS, STATISTICS_TOKENS = 5_000, 10_000
"""Tokens per domain: of the scores, and of the statistics of averaging and DUME."""
COLOURS = "cyan", "yellow", "magenta", "green"
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
    """The best expert alone, averaging, DUME, the version, and the right expert for each text."""
    best = max((table.row(expert_row(domain)) for domain in table.domains), key=lambda row: table.average(row).mean)
    rows = {
        f"best expert alone: {best.name.removesuffix(' expert')}": best,
        "all parameters averaged": table.row("averaging"),
        "DUME as published": table.row("dume"),
        "version": table.row(VERSION),
        "the right expert for each text": table.row("oracle"),
    }
    title = "Normalised perplexity on held-out text: 100 = the domain's own expert, higher is better"
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


def continued(version: Path, held_out: Path) -> tuple[str, Along]:
    """The start of the first held-out text, and the weights of experts along it and the version's continuation."""
    with held_out.open(encoding="utf-8") as lines:
        prompt = str(json.loads(next(lines))["text"])[:_PROMPT_CHARACTERS]
    tokenizer, model = DenseFiles(version).tokenizer, load(version)
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        made = model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=0.7, max_new_tokens=_NEW_TOKENS
        )
    return prompt, along(version, prompt + str(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)))


def coloured(prompt: str, result: Along) -> Text:
    """The text, each token in the colour of the expert with the largest weight; the prompt is underlined.

    The last line has the colours' names, and each expert's share of the tokens.
    """
    shown, firsts, done = Text(), result.mean.argmax(-1).tolist(), 0
    for piece, first in zip(result.pieces, firsts, strict=True):
        style = COLOURS[first % len(COLOURS)]
        shown.append(piece, f"underline {style}" if done < len(prompt) else style)
        done += len(piece)
    counted = Counter(firsts)
    names = shares(result.members, [counted[slot] / len(firsts) for slot in range(len(result.members))])
    shown.append("\n\n")
    for slot, name in enumerate(names):
        shown.append(", " if slot else "Tokens: ")
        shown.append(name, COLOURS[slot % len(COLOURS)])
    return shown
