"""The request for a tuned model, checked: version, recipe, texts and settings."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version as installed
from pathlib import Path
from typing import Literal

from torch import Tensor
from transformers import AutoTokenizer

from moerge import __version__
from moerge.documents.corpus import Corpus
from moerge.documents.splits import HELD_OUT_SHARE, split_digest, split_of, text_digest
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.models.config import read_config
from moerge.models.expert_folder import TOKENIZER_FILES
from moerge.models.families import published_family
from moerge.models.reader import Checkpoint
from moerge.models.side_files import GENERATION
from moerge.progress import Progress
from moerge.recipes.base import Options, number, whole
from moerge.recipes.registry import RECIPES, parse
from moerge.recipes.trained import routing_of
from moerge.training.batches import joined
from moerge.training.parameters import Which
from moerge.training.routing import Routing
from moerge.versions.files import LINEAGE_FILE
from moerge_proto.digests import digest_of
from moerge_proto.tuned import Build, TunedModel, tuned
from moerge_proto.versions import Lineage

CONTEXT = 512
"""Default context, if the version allows it."""
OPTIONS = ("routing", "balance", "rate", "batch")
"""A recipe's options that apply to a version; the others choose a start."""
_PREFIXES = {"": 1, "k": 1_000, "m": 1_000_000}


@dataclass(frozen=True)
class Wanted:
    """The settings of a tuning.

    Attributes:
        recipe: its name, with options.
        tokens: of the training.
        weights: domain -> weight in the mixture; 1 for the others.
        context: of the rows, in tokens; None: `CONTEXT`, or the version's if that is shorter.
        workers: number of training processes.
        accumulate: parts of a process's batch, computed one after another.
    """

    recipe: str
    tokens: int
    weights: Mapping[str, float]
    context: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    accumulate: int = 1
    workers: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """A checked request.

    Attributes:
        version: the parent's folder.
        record: all inputs.
        rows: of each domain in slot order, [n, context] int64.
        trains: the trained parameters.
        steps: of the optimizer.
    """

    version: Path
    record: TunedModel
    rows: Sequence[Tensor]
    trains: Which
    steps: int

    @property
    def name(self) -> str:
        """The digest of all inputs."""
        return digest_of(self.record.model_dump(mode="json"))

    @property
    def routing(self) -> Routing:
        return routing_of(self.record.options)


def token_count(text: str) -> int:
    """A number of tokens such as 250000, 250k or 1M.

    Raises:
        MoergeError: it has another form, or is 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([km]?)", text.lower())
    count = round(float(found[1]) * _PREFIXES[found[2]]) if found else 0
    if not count:
        raise MoergeError(f"expected a number of tokens, found {text!r}", where="--tokens", todo="write 250k or 1M")
    return count


def read_request(
    version: Path, texts: Mapping[str, Sequence[str]], wanted: Wanted, field: str, progress: Progress
) -> Request:
    """Reads and checks everything that a training needs.

    Args:
        version: folder of a published version.
        texts: domain -> its files, for `data_files`.
        field: field or column with a document's text.

    Raises:
        MoergeError: version, recipe, text or setting is unsuitable; names it and the remedy.
    """
    trains, options = _recipe(wanted.recipe)
    parent = _parent(version)
    batch = whole(options, "batch", 1)
    _require_parts(batch, wanted)
    for option, named in (("--text", texts), ("--weight", wanted.weights)):
        if unknown := sorted(named.keys() - set(parent.domains)):
            todo = f"use one of: {', '.join(parent.domains)}"
            raise MoergeError(f"the version has no domain {', '.join(unknown)}", where=option, todo=todo)
    if missing := [domain for domain in parent.domains if domain not in texts]:
        todo = "give each domain's with --text NAME=FILES; without it, the training would spoil the domain"
        raise MoergeError(f"no text of {', '.join(missing)}", where="--text", todo=todo)
    for domain, weight in wanted.weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise MoergeError(f"expected a number above 0, found {weight:g}", where=f"--weight {domain}")
    config = read_config(version)
    published_family(config)
    longest = int(config.max_position_embeddings)
    context = wanted.context or min(CONTEXT, longest)
    if context > longest:
        found = f"expected at most {longest}, the version's context, found {context}"
        raise MoergeError(found, where="--context", todo="give a smaller one")
    files = _file_digests(version, progress)
    digests, rows = {}, []
    for domain in parent.domains:
        digests[domain], found_rows = _read(
            domain,
            Corpus(list(texts[domain]), version, text_field=field, option=f"--text {domain}"),
            version,
            context,
            progress,
        )
        rows.append(found_rows)
    steps = max(1, round(wanted.tokens / (batch * context)))
    record = TunedModel(
        parent=parent,
        parent_files=files,
        recipe=wanted.recipe.partition(":")[0],
        options=dict(options),
        tokens=steps * batch * context,
        texts=digests,
        weights={domain: wanted.weights.get(domain, 1.0) for domain in parent.domains},
        context=context,
        precision=wanted.precision,
        accumulate=wanted.accumulate,
        workers=wanted.workers,
        seed=wanted.seed,
        build=_build(wanted.device),
    )
    return Request(version, record, rows, trains, steps)


def _recipe(spec: str) -> tuple[Which, Options]:
    """The parameters that a recipe trains, and its options for a version."""
    recipe, options, _ = parse(spec)
    if recipe.trains is None or "start" not in recipe.options:
        known = ", ".join(each.name for each in RECIPES.values() if each.trains and "start" in each.options)
        raise MoergeError(f"{recipe.name} doesn't train a version", where="--recipe", todo=f"use one of: {known}")
    given = {pair.partition("=")[0] for pair in spec.partition(":")[2].split(",") if pair}
    if other := sorted(given - set(OPTIONS)):
        todo = f"omit it; the training starts from the version. The options are: {', '.join(OPTIONS)}"
        raise MoergeError(f"{', '.join(other)} can't be chosen here", where=f"--recipe {spec}", todo=todo)
    if number(options, "rate") <= 0:
        raise MoergeError("expected a rate above 0", where=f"--recipe {spec}", todo="give, for example, rate=0.001")
    return recipe.trains, {name: options[name] for name in OPTIONS}


def _parent(version: Path) -> Lineage:
    path = version / LINEAGE_FILE
    todo = "name the folder of a version, written by moerge pull or moerge merge"
    if not path.is_file():
        raise MoergeError("not found", where=str(path), todo=todo)
    content = path.read_bytes()
    if tuned(content) is not None:
        raise MoergeError("is a tuned model", where=str(version), todo="tune its parent, with more tokens")
    try:
        return Lineage.model_validate_json(content)
    except ValueError as error:
        raise MoergeError("not the record of a version", where=str(path), todo=todo) from error


def _require_parts(batch: int, wanted: Wanted) -> None:
    """Requires that each process and each part has rows."""
    if batch % wanted.workers:
        found = f"a batch of {batch} rows can't be divided among {wanted.workers} processes"
        raise MoergeError(found, where="--workers", todo="give a divisor of batch, or another batch with --recipe")
    if wanted.accumulate > batch // wanted.workers:
        found = f"a process has {batch // wanted.workers} rows of a batch, fewer than {wanted.accumulate} parts"
        raise MoergeError(found, where="--accumulate", todo="give a smaller number")


def _file_digests(version: Path, progress: Progress) -> dict[str, str]:
    weights = {spec.file.name for spec in Checkpoint(version).specs.values()}
    small = {name for name in ("config.json", GENERATION, *TOKENIZER_FILES) if (version / name).is_file()}
    names = sorted(weights | small)
    digests = {}
    with progress.track("checking the version", sum((version / name).stat().st_size for name in names), "B") as tracker:
        for name in names:
            digests[name] = file_sha256(version / name)
            tracker.advance((version / name).stat().st_size)
    return digests


def _read(domain: str, corpus: Corpus, version: Path, context: int, progress: Progress) -> tuple[str, Tensor]:
    """The digest of a domain's documents without the held-out tenth, and their rows."""
    digest, documents = sha256(), []
    with progress.track(f"reading texts of {domain}", corpus.size(), "B") as tracker:
        for document in corpus.documents(tracker):
            if split_of(split_digest(document.text), 0, HELD_OUT_SHARE) != "held-out":
                digest.update(text_digest(document.text))
                documents.append(list(corpus.encode(document).ids))
    end = AutoTokenizer.from_pretrained(version, local_files_only=True, trust_remote_code=False).eos_token_id
    rows = joined(documents, end, context)
    if not len(rows):
        found = f"fewer than {context} tokens in documents that aren't held out"
        raise MoergeError(found, where=f"--text {domain}", todo="give more text, or a smaller --context")
    return digest.hexdigest(), rows


def _build(device: Literal["cpu", "cuda"]) -> Build:
    return Build(moerge=__version__, torch=installed("torch"), transformers=installed("transformers"), device=device)
