"""Bodies as named files: merged from experts and body contributions, or a seed's own."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pydantic import JsonValue

from moerge.bodies.lineage import BodyLineage, BodyOptions
from moerge.bodies.methods.method import MethodInputs
from moerge.bodies.methods.registry import METHODS
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.models.bounds import feature_bounds, feature_exponents
from moerge.models.config import config_bytes, settings_of
from moerge.models.dense import body_names, part_names
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import small_files
from moerge.models.families.family import EMBEDDING, mlp_layers
from moerge.models.reader import Checkpoint
from moerge.models.writer import copies, write_safetensors
from moerge.progress import Progress
from moerge.threads import at_once
from moerge_proto.digests import Digest, digest_of, sha256_hex
from moerge_proto.messages import UNKNOWN, FileEntry
from moerge_proto.ranges import Source
from moerge_proto.statistics_file import StatisticsFile

DENSE_BODY_FILE, SEED_HEAD_FILE, CONFIG_FILE = "body.safetensors", "head.safetensors", "config.json"
SEED_PARTS_FILE = "parts.safetensors"
"""The seed's own MLPs, last norm and head, as an expert's parts."""


class Files(Protocol):
    """A place for files, such as `Blobs`."""

    def put(self, name: str, write: Callable[[BinaryIO], str]) -> FileEntry:
        """Runs `write`, which fills the file and returns its SHA-256. A `write` that raises leaves nothing."""

    def source(self, digest: str) -> Source:
        """A stored file."""


class FolderFiles:
    """A folder of named files; each is complete or absent. Those in `named` have a digest, but aren't written."""

    def __init__(self, folder: Path, named: Collection[str] = ()) -> None:
        self.folder, self._named, self._paths = folder, named, dict[str, Path]()

    def put(self, name: str, write: Callable[[BinaryIO], str]) -> FileEntry:
        if name in self._named:
            return FileEntry(name=name, sha256=write(counted := _Counted()), size=counted.size)
        path = self.folder / name
        with atomic_file(path) as out:
            sha256 = write(out)
        self._paths[sha256] = path
        return FileEntry(name=name, sha256=sha256, size=path.stat().st_size)

    def source(self, digest: str) -> Path:
        return self._paths[digest]


class _Counted(BytesIO):
    """A file whose bytes are counted, not kept."""

    size = 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        return len(data)


@dataclass(frozen=True)
class BodyInputs:
    """Files behind the digests of a lineage: experts, including the base, and body contributions."""

    experts: Mapping[str, DenseFiles]
    domains: Mapping[str, str]
    statistics: Mapping[str, Source] = field(default_factory=dict)


class MergedBody(BodyLineage):
    """A body: its lineage, files and properties.

    `config`: the settings that decide features. `exponents` and `bounds` are per layer: the fractional bits of router
    contributions, and the largest squared norm of a feature divided by its gain. Of a seed: `source` is its name,
    `license` an SPDX identifier, `seed` the digest of these files, and `model` that of the whole model as an expert.
    """

    digest: Digest
    family: str
    hidden_size: int
    layers: int
    config: dict[str, JsonValue]
    exponents: list[int]
    bounds: list[float]
    tensors: int
    files: list[FileEntry]
    source: str | None = None
    license: str = UNKNOWN
    seed: Digest | None = None
    model: Digest | None = None

    @property
    def lineage(self) -> BodyLineage:
        return BodyLineage.model_validate(self.model_dump(include=set(BodyLineage.model_fields)))


def merge_body(lineage: BodyLineage, inputs: BodyInputs, files: Files, progress: Progress) -> MergedBody:
    """Merges the body of a lineage; equal inputs give equal bytes.

    At most the largest tensor of each expert and two merged ones are in memory at a time, or smaller ones.

    Raises:
        MoergeError: the lineage has another revision of its method.
        IncompatibleExpertError: the method doesn't fit the experts' family.
        SolveError: the body contributions have too little text.
    """
    method = METHODS[lineage.method]
    if lineage.revision != method.revision:
        problem = f"expected revision {method.revision} of {method.name!r}, found {lineage.revision}"
        raise MoergeError(problem, where="method", todo="merge the body again")
    experts = [inputs.experts[digest] for digest in lineage.experts]
    first, base = experts[0], lineage.options.base
    with ExitStack() as stack:
        sources = [inputs.statistics[digest] for digest in lineage.contributions]
        opened = MethodInputs(
            experts=experts,
            domains=[inputs.domains[digest] for digest in lineage.experts],
            options=lineage.options,
            base=None if base is None else inputs.experts[base].checkpoint,
            statistics=[stack.enter_context(StatisticsFile(source)) for source in sources],
        )
        plans = method.plan(opened)
        title = f"merging a body of {len(experts)} by {method.name}"
        tracker = stack.enter_context(progress.track(title, sum(plan.bytes for plan in plans), "B"))
        count = at_once() if method.solved else 1
        weights = files.put(DENSE_BODY_FILE, lambda out: write_safetensors(out, plans, tracker.advance, at_once=count))
    body = DenseBody(files.source(weights.sha256), first.config)
    config = _config(config_bytes(first.side_file(CONFIG_FILE)), body.checkpoint)
    written = [weights, files.put(CONFIG_FILE, partial(_write, config))]
    exponents, content = feature_exponents(body), {file.name: file.sha256 for file in written}
    return _described(lineage, body_digest(lineage.model_dump(mode="json"), content, exponents), body, written)


def seed_body(
    seed: DenseFiles, files: Files, progress: Progress, source: str | None = None, license: str = UNKNOWN
) -> MergedBody:
    """The body of a registered model, its own. Beside it are its head, parts, tokenizer and generation config.

    Args:
        source: the model's name.
        license: its SPDX identifier.
    """
    tensors, names = seed.checkpoint, sorted(name for name in seed.family.head_names if name in seed.checkpoint.specs)
    plans = {
        DENSE_BODY_FILE: copies(tensors, body_names(seed)),
        SEED_HEAD_FILE: copies(tensors, names),
        SEED_PARTS_FILE: copies(tensors, part_names(seed)),
    }
    total = sum(plan.bytes for file in plans.values() for plan in file)
    with progress.track("writing the seed's body", total, "B") as tracker:
        stored = [
            files.put(name, lambda out, file=file: write_safetensors(out, file, tracker.advance))  # type: ignore[misc]
            for name, file in plans.items()
        ]
    weights = stored[0]
    body, small = DenseBody(files.source(weights.sha256), seed.config), small_files(seed)
    small[CONFIG_FILE] = _config(small[CONFIG_FILE], body.checkpoint)
    written = [*stored, *(files.put(name, partial(_write, data)) for name, data in small.items())]
    lineage = BodyLineage(method="seed", options=BodyOptions(), experts=[], contributions=[])
    digest = seed_digest(weights.sha256, settings_of(body.config), feature_exponents(body))
    result = _described(lineage, digest, body, written)
    facts = {"source": source, "license": license, "seed": files_digest(written)}
    return result.model_copy(update=facts)


def _described(lineage: BodyLineage, digest: str, body: DenseBody, files: list[FileEntry]) -> MergedBody:
    return MergedBody(
        **dict(lineage),
        digest=digest,
        family=body.family.model_type,
        hidden_size=body.config.hidden_size,
        layers=len(mlp_layers(body.config)),
        config=settings_of(body.config),
        exponents=feature_exponents(body),
        bounds=feature_bounds(body),
        tensors=len(body.checkpoint.specs),
        files=files,
    )


def _config(content: bytes, body: Checkpoint) -> bytes:
    """An expert's config.json with the body's vocabulary, without references to code."""
    fields = json.loads(content)
    fields.pop("auto_map", None)
    fields["vocab_size"] = body.shapes[EMBEDDING][0]
    return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def _write(data: bytes, out: BinaryIO) -> str:
    out.write(data)
    return sha256_hex(data)


def body_digest(lineage: Mapping[str, object], files: Mapping[str, str], exponents: Sequence[int]) -> str:
    """A merged body's name: a digest of its lineage as JSON, of every file's digest, and of the exponents."""
    return digest_of({**lineage, "files": dict(files), "exponents": list(exponents)})  # type: ignore[dict-item]


def seed_digest(sha256: str, config: Mapping[str, JsonValue], exponents: Sequence[int]) -> str:
    """The name of a seed's body: of all that features depend on, so that owners can compute it themselves.

    Args:
        sha256: of the body's file.
        config: `settings_of` the model.
    """
    return digest_of({"seed": sha256, "config": dict(config), "exponents": list(exponents)})


def files_digest(files: Iterable[FileEntry]) -> str:
    """A digest of files with their names."""
    return digest_of({file.name: file.sha256 for file in files})
