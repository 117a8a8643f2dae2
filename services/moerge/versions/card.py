"""The model card: what a version was made of, by digest and licence, and how to load it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from huggingface_hub import ModelCardData

from moerge.versions.files import FilePlan, text_file
from moerge_proto.digests import sha256_hex
from moerge_proto.options import SolveOptions
from moerge_proto.versions import Lineage

_KINDS = {"ridge": "ridge regressions", "discriminant": "linear discriminants"}


class ExpertRecord(NamedTuple):
    """An expert in a card; `fitted_from` names the expert that its MLPs were fitted from, if they were."""

    digest: str
    domain: str
    owner: str
    license: str
    fitted_from: str | None = None


class Contributed(NamedTuple):
    """A router contribution in a card."""

    digest: str
    domain: str
    owner: str
    tokens: int
    documents: int


class ChatTemplates(NamedTuple):
    """The chat templates of a version's experts: domain -> text, empty without one. `taken` is the published one's."""

    taken: str
    texts: Mapping[str, str]


def card_file(
    lineage: Lineage,
    experts: Sequence[ExpertRecord],
    method: str,
    merged: Sequence[ExpertRecord],
    contributed: Sequence[Contributed],
    chat: ChatTemplates,
) -> FilePlan:
    """README.md: a pure function of the lineage and of what its digests name.

    Args:
        experts: the version's, in slot order.
        method: by which the trunk was merged.
        merged: the experts whose parameters the trunk contains.
        contributed: the router contributions, in the lineage's order.
        chat: the experts' chat templates.
    """
    licenses = {expert.license for expert in (*experts, *merged)}
    data = ModelCardData(
        license=licenses.pop().lower() if len(licenses) == 1 else "other",
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["mixture-of-experts", "moerge", "dume"],
    )
    options = lineage.options
    text = f"""---
{data.to_yaml()}
---

# Mixture of {len(experts)} experts: {", ".join(lineage.domains)}

{_notices(lineage, merged)}\
Made by moerge, the method of DUME ([arXiv 2603.29765](https://arxiv.org/abs/2603.29765)) as a service, from dense
experts and without training. The trunk is merged from {len(merged)} of them by the method `{method}`. {_mlps(experts)}
The routers are {_KINDS[options.routers]}, solved from statistics that the owners computed on their own data.

## Experts

| slot | domain | owner | licence | digest |
|---|---|---|---|---|
{_rows((str(i), e.domain, e.owner, e.license, _digest(e)) for i, e in enumerate(experts))}
{_chat(chat)}
## Trunk

`{lineage.trunk}`, which contains parameters of:

| domain | owner | licence | digest |
|---|---|---|---|
{_rows((e.domain, e.owner, e.license, f"`{e.digest}`") for e in merged)}

## Router contributions

| domain | owner | tokens | documents | digest |
|---|---|---|---|---|
{_rows((p.domain, p.owner, f"{p.tokens:,}", f"{p.documents:,}", f"`{p.digest}`") for p in contributed)}

Solved by {options.routers} with lambda = {_lambda(options)}, top-k = {options.top_k},
temperature = {options.temperature:g} by `{lineage.solver}`. The complete lineage is in `moerge.json`.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("DIR")
tokenizer = AutoTokenizer.from_pretrained("DIR")
```
"""
    return text_file("README.md", text)


def _notices(lineage: Lineage, merged: Sequence[ExpertRecord]) -> str:
    """What somebody must know who uses the version: what it still contains, and whom it lacks."""
    domains = {expert.digest: expert.domain for expert in merged}
    lines = []
    if lineage.withdrawn:
        names = ", ".join(f"{domains[digest]} (`{digest}`)" for digest in lineage.withdrawn)
        lines.append(f"> The trunk still contains parameters of experts that were withdrawn: {names}.\n")
    if lineage.left_out:
        names = ", ".join(lineage.left_out)
        lines.append(f"> Left out, because they had not contributed: {names}.\n")
    return "".join(f"{line}\n" for line in lines)


def _chat(chat: ChatTemplates) -> str:
    """The paragraph on the published chat template; empty if no expert has one."""
    own = chat.texts[chat.taken]
    differ = [domain for domain, text in chat.texts.items() if text != own]
    if not own and not differ:
        return ""
    text = f"{chat.taken} has no chat template."
    if own:
        text = f"The chat template is {chat.taken}'s, SHA-256 `{sha256_hex(own.encode(errors='surrogatepass'))}`."
    if differ:
        text += f" Different in: {', '.join(differ)}."
    return f"\n{text}\n"


def _mlps(experts: Sequence[ExpertRecord]) -> str:
    fitted = [expert.domain for expert in experts if expert.fitted_from is not None]
    if not fitted:
        return "Every expert's MLPs are kept as they are."
    return f"The MLPs of {', '.join(fitted)} are fitted to the trunk; all others are kept as they are."


def _digest(expert: ExpertRecord) -> str:
    fitted = "" if expert.fitted_from is None else f", its MLPs fitted to the trunk from `{expert.fitted_from}`"
    return f"`{expert.digest}`{fitted}"


def _lambda(options: SolveOptions) -> str:
    if options.lambda_scale == "auto":
        return "the best of each layer on the tuning splits"
    unit = " x mean diagonal" if options.lambda_scale == "relative" else ""
    return f"{options.ridge_lambda:g}{unit}"


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
