"""The model card of a tuned model."""

import json
import re
from pathlib import Path

from moerge.models.expert_folder import expert_digest
from moerge.models.families import REFUSED
from moerge.versions.card_scores import CARD_FILE, markdown_rows
from moerge_lab.recipes.registry import shown
from moerge_lab.training.log import losses
from moerge_lab.tuning.training import Done
from moerge_proto.records import Training, TunedMixture, TunedModel


def card(made: TunedModel | TunedMixture, log: Path, done: Done, start: Path) -> str:
    """README.md: inputs and training.

    Args:
        start: folder of the model before training, with its config; a version's card has the fields that the hub reads.
    """
    return _mixture(made, log, done, start) if isinstance(made, TunedMixture) else _version(made, log, done, start)


def _version(made: TunedModel, log: Path, done: Done, version: Path) -> str:
    parent = made.parent
    domains = ", ".join(parent.domains)
    withdrawn = ", ".join(f"`{digest}`" for digest in parent.withdrawn)
    notice = "" if not withdrawn else f"> The trunk still contains parameters of withdrawn experts: {withdrawn}.\n\n"
    experts = markdown_rows(
        (str(slot), *each) for slot, each in enumerate(zip(parent.domains, _code(parent.experts), strict=True))
    )
    return f"""\
{_metadata(version)}# Tuned mixture of {len(parent.domains)} experts: {domains}

{notice}`moerge tune` trained this model on **pooled text of its domains**: {domains}. It is not a version that a
coordinator published: those are functions of contributions alone, and nobody pools text for them.

{_training(made, log, done)}
## Parent

Trunk `{parent.trunk}`, and the experts:

| slot | domain | digest |
|---|---|---|
{experts}

| file | SHA-256 |
|---|---|
{_files(made.parent_files)}
"""


def _mixture(made: TunedMixture, log: Path, done: Done, start: Path) -> str:
    names, domains = ", ".join(each.name for each in made.members), ", ".join(made.texts)
    members = markdown_rows(
        (each.name, f"`{expert_digest(each.files)}`", "yes" if each.name in made.masked else "")
        for each in made.members
    )
    parent = f"\n## Parent\n\n| file | SHA-256 |\n|---|---|\n{_files(made.parent_files)}\n" if made.parent else ""
    stock = json.loads((start / "config.json").read_bytes())["model_type"] not in REFUSED
    return f"""\
---
library_name: {"transformers" if stock else "moerge"}
pipeline_tag: text-generation
tags:
- moerge
- {made.recipe}
---

# {made.recipe}: a mixture of {len(made.members)} models: {names}

`moerge tune` trained this model on **pooled text of its domains**: {domains}. No coordinator publishes it: a version is
a function of contributions alone, without pooled text (law 3){_STOCK if stock else _OWN_CLASS}
{_training(made, log, done)}
## Members

| member | digest | masked |
|---|---|---|
{members}
{parent}"""


_STOCK = ".\n"
_OWN_CLASS = """, and loads with stock transformers (law 6).

Its class is part of moerge, so transformers alone can't load it, nor can engines such as vLLM, SGLang or llama.cpp. It
needs no `trust_remote_code`. After `pip install moerge`:

```python
import moerge_lab.mixtures
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("this-folder")
tokenizer = AutoTokenizer.from_pretrained("this-folder")
```
"""


def _training(made: Training, log: Path, done: Done) -> str:
    build, (first, last) = made.build, losses(log)
    options = ", ".join(f"{name} {shown(value)}" for name, value in made.options.items())
    texts = markdown_rows((name, f"{made.weights[name]:g}", f"`{digest}`") for name, digest in made.texts.items())
    return f"""\
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
"""


def _files(digests: dict[str, str]) -> str:
    return markdown_rows((name, f"`{digest}`") for name, digest in digests.items())


def _code(digests: list[str]) -> list[str]:
    return [f"`{digest}`" for digest in digests]


def _metadata(version: Path) -> str:
    path = version / CARD_FILE
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.match(r"---\n.*?\n---\n\n?", text, re.DOTALL)
    return found[0] if found else ""
