"""The model card of a tuned model."""

import re
from pathlib import Path
from statistics import fmean

from moerge.recipes.registry import shown
from moerge.versions.card_scores import CARD_FILE, markdown_rows
from moerge_workers.tuning.request import Request
from moerge_workers.tuning.training import Done


def losses(log: Path) -> tuple[float, float]:
    """The mean losses of the first and the last tenth of the steps in a training's log."""
    found = [float(line.split(",")[2]) for line in log.read_text(encoding="utf-8").splitlines()[1:]]
    tenth = max(1, len(found) // 10)
    return fmean(found[:tenth]), fmean(found[-tenth:])


def card(request: Request, log: Path, done: Done) -> str:
    """README.md: inputs and training. The fields that the hub reads are the parent's."""
    made, parent = request.record, request.record.parent
    domains, build = ", ".join(parent.domains), made.build
    options = ", ".join(f"{name} {shown(value)}" for name, value in made.options.items())
    first, last = losses(log)
    withdrawn = ", ".join(f"`{digest}`" for digest in parent.withdrawn)
    notice = "" if not withdrawn else f"> The trunk still contains parameters of withdrawn experts: {withdrawn}.\n\n"
    texts = markdown_rows((name, f"{made.weights[name]:g}", f"`{digest}`") for name, digest in made.texts.items())
    experts = markdown_rows(
        (str(slot), *each) for slot, each in enumerate(zip(parent.domains, _code(parent.experts), strict=True))
    )
    files = markdown_rows((name, f"`{digest}`") for name, digest in made.parent_files.items())
    return f"""\
{_metadata(request.version)}# Tuned mixture of {len(parent.domains)} experts: {domains}

{notice}`moerge tune` trained this model on **pooled text of its domains**: {domains}. It is not a version that a
coordinator published: those are functions of contributions alone, and nobody pools text for them.

| property | value |
|---|---|
| recipe | `{made.recipe}`: {options} |
| trained parameters | {done.parameters:,} |
| tokens | {made.tokens:,} in rows of {made.context} |
| loss | {first:.4f} in the first tenth of the steps, {last:.4f} in the last |
| seed | {made.seed} |
| processes | {made.workers} |
| parts of a process's batch | {made.accumulate} |
| device | {build.device}, {made.precision} |
| build | moerge {build.moerge}, torch {build.torch}, transformers {build.transformers} |

The loss of every step is in `{log.name}`; all inputs are in `moerge.json`.

## Texts

A tenth of each domain's documents was held out.

| domain | weight | digest of its documents |
|---|---|---|
{texts}

## Parent

Trunk `{parent.trunk}`, and the experts:

| slot | domain | digest |
|---|---|---|
{experts}

| file | SHA-256 |
|---|---|
{files}
"""


def _code(digests: list[str]) -> list[str]:
    return [f"`{digest}`" for digest in digests]


def _metadata(version: Path) -> str:
    path = version / CARD_FILE
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.match(r"---\n.*?\n---\n\n?", text, re.DOTALL)
    return found[0] if found else ""
