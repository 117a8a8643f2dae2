"""The model card of a tuned model."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from moerge.models.families import REFUSED
from moerge.versions.card_scores import CARD_FILE, markdown_rows
from moerge_lab.recipes.registry import shown
from moerge_lab.training.folder import record_rows
from moerge_lab.training.job import LOG
from moerge_lab.training.log import losses
from moerge_lab.tuning.request import Request
from moerge_lab.tuning.train_process import MODEL, Done
from moerge_proto.records import TunedMixture, TunedModel


def card(request: Request, work: Path, done: Done) -> str:
    """README.md: inputs and training. A version's card has the fields that the hub reads."""
    record = request.record
    if isinstance(record, TunedModel):
        head, parent = _version(record, request.start), _parent_of_version(record)
    else:
        head, parent = _mixture(record, work), _members(record)
    (first, last), options = losses(work / LOG), ", ".join(f"{name} {shown(x)}" for name, x in record.options.items())
    texts = markdown_rows((name, f"{record.weights[name]:g}", f"`{digest}`") for name, digest in record.texts.items())
    files = markdown_rows((name, f"`{digest}`") for name, digest in record.parent_files.items())
    parent_files = f"\n| file of the parent | SHA-256 |\n|---|---|\n{files}\n" if files else ""
    return f"""\
{head}
{record_rows(record)}
| options | {options} |
| trained parameters | {done.parameters:,} |
| loss | {first:.4f} in the first tenth of the steps, {last:.4f} in the last |

The loss of every step is in `{LOG}`; all inputs are in `moerge.json`.

## Texts

A tenth of each domain's documents was held out.

| domain | weight | digest of its documents |
|---|---|---|
{texts}

{parent}{parent_files}"""


def _version(record: TunedModel, version: Path) -> str:
    domains = ", ".join(record.domains)
    withdrawn = ", ".join(f"`{digest}`" for digest in record.parent.withdrawn)
    notice = "" if not withdrawn else f"> The trunk still contains parameters of withdrawn experts: {withdrawn}.\n\n"
    return f"""\
{_metadata(version)}# Tuned mixture of {len(record.domains)} experts: {domains}

{notice}`moerge tune` trained this model on **pooled text of its domains**: {domains}. It is not a version that a
coordinator published: those are functions of contributions alone, and nobody pools text for them.
"""


def _metadata(version: Path) -> str:
    path = version / CARD_FILE
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    match = re.match(r"---\n.*?\n---\n\n?", text, re.DOTALL)
    return match[0] if match else ""


def _parent_of_version(record: TunedModel) -> str:
    experts = zip(record.domains, record.parent.experts, strict=True)
    rows = markdown_rows((str(slot), domain, f"`{digest}`") for slot, (domain, digest) in enumerate(experts))
    return f"""\
## Parent

Trunk `{record.parent.trunk}`, and the experts:

| slot | domain | digest |
|---|---|---|
{rows}
"""


def _members(record: TunedMixture) -> str:
    rows = markdown_rows(
        (member.name, f"`{member.digest}`", "yes" if member.name in record.masked else "") for member in record.members
    )
    return f"## Members\n\n| member | digest | masked |\n|---|---|---|\n{rows}\n"


def _mixture(record: TunedMixture, work: Path) -> str:
    names = ", ".join(member.name for member in record.members)
    config: Mapping[str, str] = json.loads((work / MODEL / "config.json").read_bytes())
    stock = config["model_type"] not in REFUSED
    return f"""\
---
library_name: {"transformers" if stock else "moerge"}
pipeline_tag: text-generation
tags:
- moerge
- {record.recipe}
---

# {record.recipe}: a mixture of {len(record.members)} models: {names}

`moerge tune` trained this model on **pooled text of its domains**: {", ".join(record.texts)}. No coordinator publishes
it: a version is a function of contributions alone, without pooled text (law 3){_STOCK if stock else _OWN_CLASS}"""


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
