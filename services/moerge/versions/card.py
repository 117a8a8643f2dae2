"""The model card: what a version was made of, by digest and licence, and how to load it."""

from collections.abc import Iterable, Sequence

from huggingface_hub import ModelCardData

from moerge.versions.files import FilePlan, text_file
from moerge_proto.contributions import Contribution
from moerge_proto.experts import Expert
from moerge_proto.options import SolveOptions
from moerge_proto.trunks import Trunk
from moerge_proto.versions import Lineage


def card_file(
    lineage: Lineage,
    experts: Sequence[Expert],
    trunk: Trunk,
    merged: Sequence[Expert],
    parts: Sequence[Contribution],
) -> FilePlan:
    """README.md: a pure function of the lineage and of what its digests name.

    Args:
        experts: the version's, in slot order.
        trunk: the version's.
        merged: the experts whose parameters the trunk contains.
        parts: the contributions, in the lineage's order.
    """
    licenses = {expert.license for expert in (*experts, *merged)}
    data = ModelCardData(
        license=licenses.pop().lower() if len(licenses) == 1 else "other",
        library_name="transformers",
        tags=["mixture-of-experts", "moerge", "dume"],
    )
    options = lineage.options
    text = f"""---
{data.to_yaml()}
---

# Mixture of {len(experts)} experts: {", ".join(lineage.domains)}

{_notices(lineage, merged)}\
Made by [moerge](https://arxiv.org/abs/2603.29765) from dense experts, without training: the trunk is merged from
{len(merged)} of them by the method `{trunk.method}`, every expert's MLPs are kept, and the routers are ridge
regressions on statistics that the owners computed on their own data.

## Experts

| slot | domain | owner | licence | digest |
|---|---|---|---|---|
{_rows((str(i), e.domain, e.owner, e.license, _digest(e)) for i, e in enumerate(experts))}

## Trunk

`{lineage.trunk}`, which contains parameters of:

| domain | owner | licence | digest |
|---|---|---|---|
{_rows((e.domain, e.owner, e.license, f"`{e.digest}`") for e in merged)}

## Router contributions

| domain | owner | tokens | documents | digest |
|---|---|---|---|---|
{_rows((p.domain, p.owner, f"{p.tokens:,}", f"{p.documents:,}", f"`{p.digest}`") for p in parts)}

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


def _notices(lineage: Lineage, merged: Sequence[Expert]) -> str:
    """What somebody must know who uses the version: what it still contains, and whom it lacks."""
    domains = {expert.digest: expert.domain for expert in merged}
    lines = []
    if lineage.withdrawn:
        names = ", ".join(f"{domains[digest]} (`{digest}`)" for digest in lineage.withdrawn)
        lines.append(f"> The trunk still contains parameters of experts that were withdrawn: {names}.\n")
    if lineage.left_out:
        names = ", ".join(lineage.left_out)
        lines.append(f"> Left out, because they had not contributed when the round ended: {names}.\n")
    return "".join(f"{line}\n" for line in lines)


def _digest(expert: Expert) -> str:
    fitted = "" if expert.fitted is None else f", its MLPs fitted to the trunk from `{expert.fitted.expert}`"
    return f"`{expert.digest}`{fitted}"


def _lambda(options: SolveOptions) -> str:
    if options.lambda_scale == "auto":
        return "the best of each layer on the tuning splits"
    unit = " x mean diagonal" if options.lambda_scale == "relative" else ""
    return f"{options.ridge_lambda:g}{unit}"


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
