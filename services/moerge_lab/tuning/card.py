"""The model card of a tuned model."""

import json
import re
from pathlib import Path

from moerge.models.families.refused import REFUSED
from moerge.versions.card_scores import markdown_rows
from moerge_lab.recipes.registry import shown
from moerge_lab.training.folder import record_rows
from moerge_lab.training.job import LOG
from moerge_lab.training.loop import losses
from moerge_lab.tuning.request import Request
from moerge_lab.tuning.train_process import MODEL, Done
from moerge_proto.records import TunedMixture, TunedModel
from moerge_proto.version_files import CARD_FILE


def card(request: Request, work: Path, done: Done) -> str:
    """README.md: inputs and training. A version's card has the fields that the hub reads."""
    record = request.record
    head, parts = _version(record, request.start) if isinstance(record, TunedModel) else _mixture(record, work)
    (first, last), options = losses(work / LOG), ", ".join(f"{name} {shown(x)}" for name, x in record.options.items())
    texts = markdown_rows((name, f"{record.weights[name]:g}", f"`{digest}`") for name, digest in record.texts.items())
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

{parts}"""


def _version(record: TunedModel, version: Path) -> tuple[str, str]:
    """Head, and the parent's parts."""
    path, domains = version / CARD_FILE, ", ".join(record.domains)
    metadata = re.match(r"---\n.*?\n---\n\n?", path.read_text(encoding="utf-8") if path.is_file() else "", re.DOTALL)
    experts = zip(record.domains, record.parent.experts, strict=True)
    rows = markdown_rows((str(slot), domain, f"`{digest}`") for slot, (domain, digest) in enumerate(experts))
    files = markdown_rows((name, f"`{digest}`") for name, digest in record.parent_files.items())
    head = f"""\
{metadata[0] if metadata else ""}# Tuned mixture of {len(record.domains)} experts: {domains}

`moerge tune` trained this model on **pooled text of its domains**: {domains}. It is not a version that a
coordinator published: those are functions of contributions alone, and nobody pools text for them.
"""
    parts = f"""\
## Parent

Body `{record.parent.body}`, and the experts:

| slot | domain | digest |
|---|---|---|
{rows}

| file of the parent | SHA-256 |
|---|---|
{files}
"""
    return head, parts


def _mixture(record: TunedMixture, work: Path) -> tuple[str, str]:
    """Head, and the members."""
    names = ", ".join(member.name for member in record.members)
    stock = json.loads((work / MODEL / "config.json").read_bytes())["model_type"] not in REFUSED
    rows = markdown_rows((member.name, f"`{member.digest}`") for member in record.members)
    head = f"""\
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
    return head, f"## Members\n\n| member | digest |\n|---|---|\n{rows}\n"


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
