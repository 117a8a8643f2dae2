"""The request for a tuned model, checked: its settings, texts and files."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.models.reader import Checkpoint
from moerge.progress import Progress
from moerge_lab.recipes.base import Options, number, whole
from moerge_lab.recipes.trained import routing_of
from moerge_lab.training.batches import joined
from moerge_lab.training.inputs import Device, build, context_of, end_of_text, read_texts
from moerge_lab.training.loop import Run
from moerge_lab.training.losses import Routing
from moerge_lab.training.parameters import Which
from moerge_proto.records import TunedMixture, TunedModel


@dataclass(frozen=True)
class Wanted:
    """The texts and settings of a tuning.

    Attributes:
        recipe: its name, with options.
        texts: domain -> its files.
        weights: domain -> weight in the mixture of texts; 1 for the others.
        field: field or column with a document's text.
        context: of the rows, in tokens; None: the default, or the model's if that is shorter.
        accumulate: parts of a process's batch, computed one after another.
    """

    recipe: str
    texts: Mapping[str, Sequence[str]]
    tokens: int
    weights: Mapping[str, float]
    field: str = "text"
    context: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    device: Device = "cpu"
    accumulate: int = 1
    workers: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """A checked request.

    Attributes:
        rows: of each domain in the order of the record's weights, [n, context] int64.
        build: makes the model before training, float32.
        start: folder of the tokenizer and generation config; of a version, all of it.
        dtype: of the result's tensors.
    """

    record: TunedModel | TunedMixture
    rows: Sequence[Tensor]
    trains: Which
    build: Callable[[], PreTrainedModel]
    start: Path
    dtype: torch.dtype

    @property
    def run(self) -> Run:
        record, options = self.record, self.record.options
        return Run.of(
            record.tokens,
            record.context,
            whole(options, "batch", 1),
            number(options, "rate"),
            accumulate=record.accumulate,
            seed=record.seed,
            bfloat16=record.precision == "bfloat16",
        )

    @property
    def routing(self) -> Routing | None:
        """The routing of a version while training; None: a mixture has its own."""
        return routing_of(self.record.options) if isinstance(self.record, TunedModel) else None


def require_options(spec: str, allowed: Options, why: str) -> None:
    """Requires that a recipe such as "bts:stitches=2" names allowed options alone, and that its rate is above 0.

    Args:
        why: the reason for leaving out the recipe's others.
    """
    given = {pair.partition("=")[0] for pair in spec.partition(":")[2].split(",") if pair}
    if other := sorted(given - allowed.keys()):
        todo = f"omit it; {why}. The options are: {', '.join(allowed)}"
        raise MoergeError(f"{', '.join(other)} can't be chosen here", where=f"`recipe` {spec}", todo=todo)
    if number(allowed, "rate") <= 0:
        raise MoergeError("expected a rate above 0", where=f"`recipe` {spec}", todo="give, for example, rate=0.001")


class Inputs(NamedTuple):
    """The checked common inputs of a training: fields of its record, and rows of each domain."""

    fields: dict[str, Any]
    rows: list[Tensor]


def read_inputs(
    wanted: Wanted,
    options: Options,
    needed: Mapping[str, bool],
    model: str,
    folder: Path,
    longest: int,
    progress: Progress,
) -> Inputs:
    """Reads the texts and checks the settings.

    Args:
        needed: domains that may have text, in order -> whether they must.
        model: "version" or "mixture", for errors.
        folder: with the tokenizer.
        longest: the model's context.

    Raises:
        MoergeError: a text or setting is unsuitable; names it and the remedy.
    """
    batch = whole(options, "batch", 1)
    _require(wanted, batch, needed, model)
    context = context_of(wanted.context, longest, f"the {model}'s")
    digests, rows, source = {}, [], DenseFiles(folder)
    for domain in filter(wanted.texts.__contains__, needed):
        field, named = wanted.field, ("text_field",)
        corpus = Corpus(wanted.texts[domain], source, text_field=field, settings=named, where=f"`text` {domain}")
        text = read_texts(corpus, f"reading texts of {domain}", progress)
        rows.append(joined(text.documents, end_of_text(source), context))
        digests[domain] = text.digest
        if not len(rows[-1]):
            what = f"fewer than {context} tokens in documents that aren't held out"
            raise MoergeError(what, where=f"`text` {domain}", todo="give more text, or a smaller `context`")
    fields = {
        "recipe": wanted.recipe.partition(":")[0],
        "options": dict(options),
        "tokens": Run.of(wanted.tokens, context, batch, 0).steps * batch * context,
        "texts": digests,
        "weights": {domain: wanted.weights.get(domain, 1.0) for domain in digests},
        "context": context,
        "build": build(wanted.device),
        **{name: getattr(wanted, name) for name in ("precision", "accumulate", "workers", "seed")},
    }
    return Inputs(fields, rows)


def _require(wanted: Wanted, batch: int, needed: Mapping[str, bool], model: str) -> None:
    """Requires text of the needed domains, weights above 0 of domains with text, and rows for each process and part."""
    for field, named in (("`text`", wanted.texts), ("`weight`", wanted.weights)):
        if unknown := sorted(named.keys() - needed.keys()):
            todo = f"use one of: {', '.join(needed)}"
            raise MoergeError(f"the {model} has no domain {', '.join(unknown)}", where=field, todo=todo)
    if missing := [domain for domain, must in needed.items() if must and domain not in wanted.texts]:
        todo = "give each domain's: NAME=FILES; without it, the training would spoil the domain"
        raise MoergeError(f"no text of {', '.join(missing)}", where="`text`", todo=todo)
    for domain, weight in wanted.weights.items():
        if domain not in wanted.texts:
            raise MoergeError(f"no text of {domain}", where="`weight`", todo="give `text`, or omit it")
        if not (math.isfinite(weight) and weight > 0):
            raise MoergeError(f"expected a number above 0, found {weight:g}", where=f"`weight` {domain}")
    if batch % wanted.workers:
        what = f"a batch of {batch} rows can't be divided among {wanted.workers} processes"
        raise MoergeError(what, where="`workers`", todo="give a divisor of batch, or another batch with `recipe`")
    if wanted.accumulate > batch // wanted.workers:
        what = f"a process has {batch // wanted.workers} rows of a batch, fewer than {wanted.accumulate} parts"
        raise MoergeError(what, where="`accumulate`", todo="give a smaller number")


def dtype_of(folders: Iterable[Path]) -> torch.dtype:
    """The dtype that holds all tensors of the folders exactly."""
    dtypes = {spec.dtype for folder in folders for spec in Checkpoint(folder).specs.values()}
    return reduce(torch.promote_types, dtypes)
