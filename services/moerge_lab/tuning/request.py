"""The request for a tuned model, checked: its settings and texts."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.models.expert_folder import TOKENIZER_FILES
from moerge.models.reader import Checkpoint
from moerge.models.side_files import GENERATION
from moerge.progress import Progress
from moerge_lab.recipes.base import Options, number, whole
from moerge_lab.recipes.registry import parse
from moerge_lab.training.batches import joined
from moerge_lab.training.inputs import Device, build, context_of, end_of_text, read_texts
from moerge_lab.training.parameters import Which
from moerge_lab.training.routing import Routing
from moerge_proto.digests import digest_of
from moerge_proto.records import TunedMixture, TunedModel


@dataclass(frozen=True)
class Wanted:
    """The settings of a tuning.

    Attributes:
        recipe: its name, with options.
        tokens: of the training.
        weights: domain -> weight in the mixture of texts; 1 for the others.
        context: of the rows, in tokens; None: the default, or the model's if that is shorter.
        workers: number of training processes.
        accumulate: parts of a process's batch, computed one after another.
    """

    recipe: str
    tokens: int
    weights: Mapping[str, float]
    context: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    device: Device = "cpu"
    accumulate: int = 1
    workers: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Texts:
    """The texts of a tuning.

    Attributes:
        files: domain -> its files, for `data_files`.
        field: field or column with a document's text.
    """

    files: Mapping[str, Sequence[str]]
    field: str = "text"


@dataclass(frozen=True)
class Request(ABC):
    """A checked request.

    Attributes:
        record: all inputs.
        rows: of each domain in the order of the record's weights, [n, context] int64.
        trains: the trained parameters.
        steps: of the optimizer.
    """

    record: TunedModel | TunedMixture
    rows: Sequence[Tensor]
    trains: Which
    steps: int

    @property
    def name(self) -> str:
        """The digest of all inputs."""
        return digest_of(self.record.model_dump(mode="json"))

    @property
    @abstractmethod
    def routing(self) -> Routing | None:
        """The routing while training; None: the model's own."""

    @property
    def balance(self) -> float:
        """Factor of the loss that balances the experts' load."""
        return 0.0

    @abstractmethod
    def start(self, work: Path) -> Path:
        """The folder of the model before training, with all small files; made in `work` if there is none."""

    @abstractmethod
    def config(self, start: Path) -> str:
        """The text of the trained model's config.json."""

    @abstractmethod
    def tensors(self, trained: Checkpoint, start: Path) -> Mapping[str, Callable[[], Tensor]]:
        """The trained tensors by their names in the start's folder."""


def options_of(spec: str, allowed: Iterable[str], why: str) -> Options:
    """The allowed options of a recipe such as "bts:stitches=2".

    Args:
        why: the reason for leaving out the recipe's others.

    Raises:
        MoergeError: another option is given, or the rate isn't above 0.
    """
    _, options, _ = parse(spec)
    own = {name: options[name] for name in allowed}
    given = {pair.partition("=")[0] for pair in spec.partition(":")[2].split(",") if pair}
    if other := sorted(given - own.keys()):
        todo = f"omit it; {why}. The options are: {', '.join(own)}"
        raise MoergeError(f"{', '.join(other)} can't be chosen here", where=f"--recipe {spec}", todo=todo)
    if number(options, "rate") <= 0:
        raise MoergeError("expected a rate above 0", where=f"--recipe {spec}", todo="give, for example, rate=0.001")
    return own


class Inputs(NamedTuple):
    """The checked common inputs of a training: fields of its record, rows of each domain, and steps."""

    fields: dict[str, Any]
    rows: list[Tensor]
    steps: int


def read_inputs(
    wanted: Wanted,
    options: Options,
    texts: Texts,
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
    for option, named in (("--text", texts.files), ("--weight", wanted.weights)):
        if unknown := sorted(named.keys() - needed.keys()):
            todo = f"use one of: {', '.join(needed)}"
            raise MoergeError(f"the {model} has no domain {', '.join(unknown)}", where=option, todo=todo)
    if missing := [domain for domain, must in needed.items() if must and domain not in texts.files]:
        todo = "give each domain's with --text NAME=FILES; without it, the training would spoil the domain"
        raise MoergeError(f"no text of {', '.join(missing)}", where="--text", todo=todo)
    domains = [domain for domain in needed if domain in texts.files]
    if unread := sorted(wanted.weights.keys() - set(domains)):
        raise MoergeError(
            f"no text of {', '.join(unread)}", where="--weight", todo="give --text NAME=FILES, or omit it"
        )
    for domain, weight in wanted.weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise MoergeError(f"expected a number above 0, found {weight:g}", where=f"--weight {domain}")
    context = context_of(wanted.context, longest, f"the {model}'s")
    digests, rows = {}, []
    for domain in domains:
        files = Corpus(list(texts.files[domain]), folder, text_field=texts.field, option=f"--text {domain}")
        digests[domain], found_rows = _read(domain, files, folder, context, progress)
        rows.append(found_rows)
    steps = max(1, round(wanted.tokens / (batch * context)))
    fields = {
        "recipe": wanted.recipe.partition(":")[0],
        "options": dict(options),
        "tokens": steps * batch * context,
        "texts": digests,
        "weights": {domain: wanted.weights.get(domain, 1.0) for domain in domains},
        "context": context,
        "precision": wanted.precision,
        "accumulate": wanted.accumulate,
        "workers": wanted.workers,
        "seed": wanted.seed,
        "build": build(wanted.device),
    }
    return Inputs(fields, rows, steps)


def model_files(folder: Path) -> dict[str, Path]:
    """A folder's weights, config and tokenizer by name."""
    weights = {spec.file.name for spec in Checkpoint(folder).specs.values()}
    small = {name for name in ("config.json", GENERATION, *TOKENIZER_FILES) if (folder / name).is_file()}
    return {name: folder / name for name in sorted(weights | small)}


def digests_of(files: Mapping[str, Path], what: str, progress: Progress) -> dict[str, str]:
    """The SHA-256 of each file."""
    digests = {}
    with progress.track(f"checking {what}", sum(path.stat().st_size for path in files.values()), "B") as tracker:
        for name, path in files.items():
            digests[name] = file_sha256(path)
            tracker.advance(path.stat().st_size)
    return digests


def _require_parts(batch: int, wanted: Wanted) -> None:
    """Requires that each process and each part has rows."""
    if batch % wanted.workers:
        found = f"a batch of {batch} rows can't be divided among {wanted.workers} processes"
        raise MoergeError(found, where="--workers", todo="give a divisor of batch, or another batch with --recipe")
    if wanted.accumulate > batch // wanted.workers:
        found = f"a process has {batch // wanted.workers} rows of a batch, fewer than {wanted.accumulate} parts"
        raise MoergeError(found, where="--accumulate", todo="give a smaller number")


def _read(domain: str, corpus: Corpus, folder: Path, context: int, progress: Progress) -> tuple[str, Tensor]:
    """The digest of a domain's documents without the held-out tenth, and their rows."""
    texts = read_texts(corpus, f"reading texts of {domain}", progress)
    rows = joined(texts.documents, end_of_text(folder), context)
    if not len(rows):
        found = f"fewer than {context} tokens in documents that aren't held out"
        raise MoergeError(found, where=f"--text {domain}", todo="give more text, or a smaller --context")
    return texts.digest, rows
