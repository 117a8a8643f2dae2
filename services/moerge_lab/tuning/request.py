"""The request for a tuned model, checked: its settings, texts and files."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import TOKENIZER_FILES
from moerge.models.reader import Checkpoint
from moerge.models.side_files import GENERATION
from moerge.progress import Progress
from moerge_lab.recipes.base import Options, number, whole
from moerge_lab.recipes.registry import parse
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
        tokens: of the training.
        weights: domain -> weight in the mixture of texts; 1 for the others.
        field: field or column with a document's text.
        context: of the rows, in tokens; None: the default, or the model's if that is shorter.
        workers: number of training processes.
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
        record: all inputs.
        rows: of each domain in the order of the record's weights, [n, context] int64.
        trains: the trained parameters.
        build: makes the model before training, float32.
        start: folder of its tokenizer and generation config; of a version, all of it.
        dtype: of the result's tensors; it holds those of the start exactly.
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


def options_of(spec: str, allowed: Iterable[str], why: str) -> Options:
    """The allowed options of a recipe such as "bts:stitches=2".

    Args:
        why: the reason for leaving out the recipe's others.

    Raises:
        MoergeError: another option is given, or the rate isn't above 0.
    """
    _, options, _ = parse(spec)
    kept = {name: options[name] for name in allowed}
    given = {pair.partition("=")[0] for pair in spec.partition(":")[2].split(",") if pair}
    if other := sorted(given - kept.keys()):
        todo = f"omit it; {why}. The options are: {', '.join(kept)}"
        raise MoergeError(f"{', '.join(other)} can't be chosen here", where=f"`recipe` {spec}", todo=todo)
    if number(options, "rate") <= 0:
        raise MoergeError("expected a rate above 0", where=f"`recipe` {spec}", todo="give, for example, rate=0.001")
    return kept


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
        options: of the recipe.
        needed: domains that may have text, in order -> whether they must.
        model: "version" or "mixture", for errors.
        folder: with the tokenizer.
        longest: the model's context.

    Raises:
        MoergeError: a text or setting is unsuitable; names it and the remedy.
    """
    batch = whole(options, "batch", 1)
    _require_parts(batch, wanted)
    _require_domains(wanted, needed, model)
    domains = [domain for domain in needed if domain in wanted.texts]
    context = context_of(wanted.context, longest, f"the {model}'s")
    digests, rows, source = {}, [], DenseFiles(folder)
    for domain in domains:
        files = Corpus(list(wanted.texts[domain]), source, text_field=wanted.field, where=f"`text` {domain}")
        text = read_texts(files, f"reading texts of {domain}", progress)
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
        "weights": {domain: wanted.weights.get(domain, 1.0) for domain in domains},
        "context": context,
        "build": build(wanted.device),
        **{name: getattr(wanted, name) for name in ("precision", "accumulate", "workers", "seed")},
    }
    return Inputs(fields, rows)


def _require_domains(wanted: Wanted, needed: Mapping[str, bool], model: str) -> None:
    """Requires text of the needed domains, and weights above 0 of domains with text."""
    for field, named in (("`text`", wanted.texts), ("`weight`", wanted.weights)):
        if unknown := sorted(named.keys() - needed.keys()):
            todo = f"use one of: {', '.join(needed)}"
            raise MoergeError(f"the {model} has no domain {', '.join(unknown)}", where=field, todo=todo)
    if missing := [domain for domain, must in needed.items() if must and domain not in wanted.texts]:
        todo = "give each domain's: NAME=FILES; without it, the training would spoil the domain"
        raise MoergeError(f"no text of {', '.join(missing)}", where="`text`", todo=todo)
    if unread := sorted(wanted.weights.keys() - wanted.texts.keys()):
        todo = "give `text`, or omit it"
        raise MoergeError(f"no text of {', '.join(unread)}", where="`weight`", todo=todo)
    for domain, weight in wanted.weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise MoergeError(f"expected a number above 0, found {weight:g}", where=f"`weight` {domain}")


def _require_parts(batch: int, wanted: Wanted) -> None:
    """Requires that each process and each part has rows."""
    if batch % wanted.workers:
        what = f"a batch of {batch} rows can't be divided among {wanted.workers} processes"
        raise MoergeError(what, where="`workers`", todo="give a divisor of batch, or another batch with `recipe`")
    if wanted.accumulate > batch // wanted.workers:
        what = f"a process has {batch // wanted.workers} rows of a batch, fewer than {wanted.accumulate} parts"
        raise MoergeError(what, where="`accumulate`", todo="give a smaller number")


def model_files(folder: Path, progress: Progress) -> dict[str, str]:
    """SHA-256 of a folder's weights, config and tokenizer, by name."""
    weights = {spec.file.name for spec in Checkpoint(folder).specs.values()}
    small = {name for name in ("config.json", GENERATION, *TOKENIZER_FILES) if (folder / name).is_file()}
    paths, digests = [folder / name for name in sorted(weights | small)], {}
    with progress.track(f"checking {folder.name}", sum(path.stat().st_size for path in paths), "B") as tracker:
        for path in paths:
            digests[path.name] = file_sha256(path)
            tracker.advance(path.stat().st_size)
    return digests


def dtype_of(folders: Iterable[Path]) -> torch.dtype:
    """The dtype that holds all tensors of the folders exactly."""
    dtypes = {spec.dtype for folder in folders for spec in Checkpoint(folder).specs.values()}
    result = dtypes.pop()
    for dtype in dtypes:
        result = torch.promote_types(result, dtype)
    return result
