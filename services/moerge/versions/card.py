"""The model card of a version: its parts by digest and licence, limits of engines, and use."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from huggingface_hub import ModelCardData

from moerge.bodies.head_kinds import HEADS
from moerge.routers.registry import ROUTERS
from moerge.versions.card_scores import markdown_rows
from moerge.versions.file_plan import FilePlan, text_file
from moerge_proto.digests import sha256_hex
from moerge_proto.recipes import SolveOptions
from moerge_proto.version_files import CARD_FILE
from moerge_proto.versions import EngineLimit, Lineage

_HUB_LICENSES = """
afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 cc cc0-1.0 cc-by-2.0
cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 ecl-2.0 epl-1.0 epl-2.0 eupl-1.1 eupl-1.2 gemma
gfdl gpl gpl-2.0 gpl-3.0 isc lgpl lgpl-2.1 lgpl-3.0 llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 mit mpl-2.0 ms-pl
ncsa odbl odc-by ofl-1.1 openrail osl-3.0 pddl postgresql unknown unlicense wtfpl zlib
"""
"""The hub's identifiers of licences; others are `other`, with a name."""
_UNSCORED = """\
This card was written with the version. Scores are measured later: `moerge pull` adds reported ones,
and `moerge version table` prints them.
"""


class ExpertRecord(NamedTuple):
    """An expert in a card. `parts_of`: the dense expert whose MLPs and head it has; `fitted`: to the body."""

    digest: str
    domain: str
    owner: str
    license: str
    parts_of: str | None = None
    fitted: bool = False
    hub_id: str | None = None

    @property
    def dense(self) -> str:
        """The digest of the dense expert."""
        return self.parts_of or self.digest


class SeedRecord(NamedTuple):
    """The seed of a body in a card; `name`: a folder's, or a hub id and revision."""

    name: str | None
    license: str


class Origin(NamedTuple):
    """The origin of a version's body and head.

    Attributes:
        method: the body's.
        merged: the experts whose parameters the body contains.
        seed: of a seed's body.
        head: parameters of a head that isn't the embedding; 0 of one that is.
        kept: domains whose experts keep the seed's body and head.
    """

    method: str
    merged: Sequence[ExpertRecord]
    seed: SeedRecord | None
    head: int
    kept: Sequence[str] = ()


class Contributed(NamedTuple):
    digest: str
    domain: str
    owner: str
    tokens: int
    documents: int


class ChatTemplates(NamedTuple):
    """The chat templates of a version: the published one, and its experts' by domain; a text is empty without one.

    `taken`: the domain of the expert with the published one, or `base`; None: the seed has it.
    """

    taken: str | None
    published: str
    texts: Mapping[str, str]

    @property
    def owner(self) -> str:
        if self.taken is None:
            return "the seed"
        return f"the expert of {self.taken}" if self.taken in self.texts else "the base model"

    @property
    def differ(self) -> list[str]:
        """The domains of experts with another one, or none."""
        return [domain for domain, text in self.texts.items() if text != self.published]

    @property
    def warning(self) -> str:
        """A sentence on experts with another one, or none; empty if there are none."""
        if not (names := ", ".join(self.differ)):
            return ""
        own = f"the chat template is that of {self.owner}; experts with another one, or none: {names}"
        none = f"no chat template, because {self.owner} has none; experts with one: {names}"
        return f"{own if self.published else none}. `chat_template` chooses"


class Model(NamedTuple):
    """The published checkpoint.

    Attributes:
        active: the parameters that a token uses, of all `parameters`.
        fused: whether one file has the MLPs of all experts.
    """

    architecture: str
    dtype: str
    parameters: int
    active: int
    fused: bool = False


def card_file(
    lineage: Lineage,
    experts: Sequence[ExpertRecord],
    origin: Origin,
    contributed: Sequence[Contributed],
    chat: ChatTemplates,
    model: Model,
    limits: Sequence[EngineLimit] = (),
) -> FilePlan:
    """README.md, a pure function of its arguments.

    Args:
        experts: the version's, in slot order.
        contributed: the router contributions, in the lineage's order.
    """
    options, domains, merged = lineage.options, ", ".join(lineage.domains), origin.merged
    text = f"""---
{_metadata([*experts, *merged], origin.seed).to_yaml()}
---

# Mixture of {len(experts)} experts: {domains}

{_notices(lineage)}\
moerge made this model from dense experts, in closed form and without training. The method extends DUME
([arXiv 2603.29765](https://arxiv.org/abs/2603.29765)).

Safety is not inherited: this model may answer harmful requests that one of its experts was trained to refuse
([arXiv 2406.14563](https://arxiv.org/abs/2406.14563)).

| property | value |
|---|---|
| architecture | `{model.architecture}`, {model.dtype} |
| parameters | {model.parameters:,} in total, {model.active:,} active per token |
| experts per token | {options.top_k} of {len(experts)} |
| body (embedding, attention, norms) | {_body(origin)} |
| head (last norm, language model head) | {_head(lineage, origin)} |
| MLPs | {_mlps(experts, origin, fused=model.fused)} |
| routers | {_routers(lineage)} |

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "my-model"  # the folder of this file
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
```

{_chat(chat)}
{_engines(limits)}## Scores

{_UNSCORED}
## Experts

| slot | domain | owner | licence | digest |
|---|---|---|---|---|
{markdown_rows((str(i), e.domain, e.owner, e.license, _digest(e, origin)) for i, e in enumerate(experts))}

## Body

{_contained(lineage, origin)}
## Router contributions

{_contributions(lineage, contributed)}
The complete lineage is in `moerge.json`.
"""
    return text_file(CARD_FILE, text)


def _body(origin: Origin) -> str:
    if origin.seed is not None:
        return f"that of {origin.seed.name or 'the seed'}, unchanged"
    return f"merged from {len(origin.merged)} experts by the method `{origin.method}`"


def _head(lineage: Lineage, origin: Origin) -> str:
    size = f"separate from the embedding, {origin.head:,} parameters" if origin.head else "the embedding"
    return f"{HEADS[lineage.head.method].about}; {size}"


def _contained(lineage: Lineage, origin: Origin) -> str:
    if origin.seed is not None:
        return f"`{lineage.body}`, which contains no expert's parameters. The seed's licence: {origin.seed.license}.\n"
    rows = markdown_rows((e.domain, e.owner, e.license, f"`{e.digest}`") for e in origin.merged)
    return f"""\
`{lineage.body}`, which contains parameters of:

| domain | owner | licence | digest |
|---|---|---|---|
{rows}
"""


def _metadata(experts: Sequence[ExpertRecord], seed: SeedRecord | None) -> ModelCardData:
    """The fields that the hub reads (https://huggingface.co/docs/hub/model-cards)."""
    licenses = {expert.license.lower() for expert in experts} | ({seed.license.lower()} if seed is not None else set())
    license, name = "other", None
    if len(licenses) == 1:
        [name] = licenses
        known = re.sub("-(only|or-later)$", "", name)
        license, name = (known, None) if known in _HUB_LICENSES.split() else (license, re.sub("[^a-z0-9.-]", "-", name))
    seeds = [seed.name.partition("@")[0]] if seed is not None and seed.name and "/" in seed.name else []
    result = list(dict.fromkeys([*seeds, *(expert.hub_id for expert in experts if expert.hub_id)]))
    return ModelCardData(
        license=license,
        license_name=name,
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=result or None,
        base_model_relation="merge" if result else None,
        tags=["mixture-of-experts", "moe", "merge", "moerge"],
    )


def _notices(lineage: Lineage) -> str:
    if not lineage.left_out:
        return ""
    return f"> Left out, because they had not contributed: {', '.join(lineage.left_out)}.\n\n"


def _chat(chat: ChatTemplates) -> str:
    template, owner, differ = chat.published, chat.owner, chat.differ
    text = f"Tokenizer and generation settings come from {owner}."
    if template:
        digest = sha256_hex(template.encode(errors="surrogatepass"))
        text += f"\nThe chat template is that of {owner}, SHA-256 `{digest}`."
    elif differ:
        text += f"\nIt has no chat template, so this model has none. Experts with one: {', '.join(differ)}."
    if template and differ:
        text += f" Experts with another one, or none: {', '.join(differ)}."
    return f"{text}\n"


def _engines(limits: Sequence[EngineLimit]) -> str:
    if not limits:
        return ""
    lines = "".join(f"- **{limit.engine}** {limit.happens}. To avoid it: {limit.remedy}.\n" for limit in limits)
    return f"## Engines\n\n{lines}\n"


def _mlps(experts: Sequence[ExpertRecord], origin: Origin, *, fused: bool) -> str:
    fitted = [expert.domain for expert in experts if expert.fitted]
    others = "; all others unchanged" if len(fitted) < len(experts) else ""
    text = f"fitted to the body: {', '.join(fitted)}{others}" if fitted else "the experts' own, unchanged"
    if origin.kept:
        keep = "keeps" if len(origin.kept) == 1 else "keep"
        text += f"; {', '.join(origin.kept)} {keep} the seed's body and head"
    return f"{text}; in one file, which each version with other experts has anew" if fused else text


def _digest(expert: ExpertRecord, origin: Origin) -> str:
    if expert.parts_of is None:
        return f"`{expert.digest}`"
    head = "" if expert.domain in origin.kept else " and head"
    return f"`{expert.digest}`, {'fitted MLPs' if expert.fitted else 'MLPs'}{head} of `{expert.parts_of}`"


def _routers(lineage: Lineage) -> str:
    if not lineage.contributions:
        return "not solved from contributions"
    options = lineage.options
    warm = f", temperature = {options.temperature:g}" if options.top_k > 1 else ""
    kind = ROUTERS[options.routers].about
    return f"{kind}, lambda = {_lambda(options)}, {_weights(options)}{warm}; `{lineage.solver}`"


def _lambda(options: SolveOptions) -> str:
    if options.lambda_scale == "auto":
        return "the best of each layer on the tuning splits"
    unit = " x mean diagonal" if options.lambda_scale == "relative" else ""
    return f"{options.ridge_lambda:g}{unit}"


def _weights(options: SolveOptions) -> str:
    weights = options.domain_weights
    if weights == "balanced":
        return "domains balanced"
    if not weights:
        return "domains weighted by their tokens"
    return "tokens weighted by domain: " + ", ".join(f"{domain} {weight:g}" for domain, weight in weights.items())


def _contributions(lineage: Lineage, contributed: Sequence[Contributed]) -> str:
    if not lineage.contributions:
        return "None.\n"
    rows = markdown_rows((p.domain, p.owner, f"{p.tokens:,}", f"{p.documents:,}", f"`{p.digest}`") for p in contributed)
    return f"""\
Sums that the owners computed on their own data.

| domain | owner | tokens | documents | digest |
|---|---|---|---|---|
{rows}
"""
