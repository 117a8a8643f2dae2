"""Lineages of local files, and their inputs."""

import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor
from transformers import PretrainedConfig

from moerge.bodies.head_kinds import HEADS
from moerge.bodies.lineage import BodyLineage, BodyOptions
from moerge.bodies.merge import (
    CONFIG_FILE,
    DENSE_BODY_FILE,
    SEED_HEAD_FILE,
    SEED_PARTS_FILE,
    BodyInputs,
    FolderFiles,
    MergedBody,
    merge_body,
    seed_body,
)
from moerge.bodies.methods.registry import METHODS, require_options
from moerge.errors import MoergeError
from moerge.files import atomic_file, file_sha256
from moerge.models.config import read_config
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import DenseExpert, small_files
from moerge.models.families.family import mlp_layers
from moerge.models.reader import Checkpoint
from moerge.progress import NoProgress, Progress
from moerge.routers.ridge import SOLVER
from moerge.versions.card import Contributed, ExpertRecord
from moerge.versions.version_plan import Seed, Slot, Solution, Solve, VersionInputs
from moerge_proto.bodies import BodyMethod, HeadMethod
from moerge_proto.recipes import RECOMMENDED, SolveOptions
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.versions import HeadLineage, Lineage, SolveReport

BODY_RECORD = "merged.json"
"""The file with the `MergedBody` of a body's folder."""


@dataclass(frozen=True)
class LocalBody(DenseBody):
    """A body on this machine, in a folder with its config.

    Attributes:
        path: its safetensors file, in the dense family's tensor names.
        contains: the experts whose parameters it contains, including the base; none in a seed's.
        exponents: fractional bits of each layer's gram and cross.
        seed: of a seed's body.
        seed_digest: the digest of all the seed's files.
        model: the digest of the whole seed, with its MLPs.
    """

    path: Path
    sha256: str
    digest: str
    method: BodyMethod
    contains: Sequence[ExpertRecord]
    exponents: Sequence[int]
    seed: Seed | None = None
    seed_digest: str | None = None
    model: str | None = None

    @property
    def source(self) -> Path:  # type: ignore[override]  # see `DenseBody`
        return self.path

    @cached_property
    def _config(self) -> PretrainedConfig:  # type: ignore[override]
        return read_config(self.path.parent)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def layers(self) -> int:
        return len(mlp_layers(self.config))

    @property
    def base(self) -> DenseFiles | None:
        """The base model's tokenizer and generation config; None if the body was merged without one."""
        return DenseFiles(self.path.parent) if METHODS[self.method].takes_base and self.seed is None else None


def local_body(
    experts: Sequence[DenseExpert],
    folder: Path,
    method: BodyMethod = RECOMMENDED.body,
    contributions: Sequence[Path] = (),
    options: BodyOptions | None = None,
    *,
    base: DenseExpert | None = None,
    progress: Progress | None = None,
) -> LocalBody:
    """Merges a body into `folder`, unless it exists; or copies the seed's.

    Args:
        experts: in order; the method `seed` merges none.
        contributions: the experts' body contributions, for a solved method.
        options: without `base`.
        base: the base model, for a method that takes one; for `seed`, the seed.

    Raises:
        MoergeError: an option is missing or not allowed.
        IncompatibleExpertError: the method doesn't fit the experts' family.
        SolveError: the body contributions have too little text.
    """
    require_base(method, options or BodyOptions(), base)
    progress = progress or NoProgress()
    if METHODS[method].is_seed and base is not None:
        return _copied(base, folder, progress)
    merged, statistics = _recorded(folder), {file_sha256(path): path for path in contributions}
    inputs = [*([base] if base is not None else []), *experts]
    lineage = BodyLineage(
        method=method,
        options=with_base(options or BodyOptions(), base),
        experts=[item.digest for item in experts],
        contributions=list(statistics),
        revision=METHODS[method].revision,
    )
    if merged is None or merged.lineage != lineage:
        shutil.rmtree(folder, ignore_errors=True)  # it may have another base's tokenizer
        files, domains = {item.digest: item for item in inputs}, {item.digest: item.domain for item in inputs}
        merged = merge_body(lineage, BodyInputs(files, domains, statistics), FolderFiles(folder), progress)
        for name, data in {} if base is None else small_files(base).items():
            if name != CONFIG_FILE:
                with atomic_file(folder / name) as out:
                    out.write(data)
        _write(folder, merged)
    contains = experts if base is None or base.digest in lineage.experts else inputs
    return kept_body(merged, folder, [record_of(item) for item in contains])


def _copied(seed: DenseExpert, folder: Path, progress: Progress) -> LocalBody:
    """The seed's body in `folder`."""
    merged = _recorded(folder)
    if merged is None or (merged.license, merged.model) != (seed.license, seed.digest):
        shutil.rmtree(folder, ignore_errors=True)  # it may have another seed's tokenizer
        made = seed_body(seed, FolderFiles(folder, {SEED_PARTS_FILE}), progress, seed.hub_id, seed.license)
        merged = made.model_copy(update={"model": seed.digest})
        _write(folder, merged)
    return kept_body(merged, folder, [])


def _recorded(folder: Path) -> MergedBody | None:
    record = folder / BODY_RECORD
    return MergedBody.model_validate_json(record.read_bytes()) if record.is_file() else None


def _write(folder: Path, merged: MergedBody) -> None:
    with atomic_file(folder / BODY_RECORD) as out:
        out.write(merged.model_dump_json().encode())


def require_base(method: BodyMethod, options: BodyOptions, base: DenseExpert | None) -> None:
    """Requires the method's options, and a base model if and only if it takes one."""
    is_seed = METHODS[method].is_seed
    require_options(METHODS[method], options if is_seed else with_base(options, base))
    if is_seed and base is None:
        raise MoergeError("the method 'seed' needs the seed model", where="`base`", todo="name its folder or hub id")


def with_base(options: BodyOptions, base: DenseExpert | None) -> BodyOptions:
    return options if base is None else options.model_copy(update={"base": base.digest})


def kept_body(merged: MergedBody, folder: Path, contains: Sequence[ExpertRecord]) -> LocalBody:
    """A body that was written into `folder`."""
    [weights] = [file for file in merged.files if file.name == DENSE_BODY_FILE]
    path, seed = folder / weights.name, None
    if METHODS[merged.method].is_seed:
        head = Checkpoint.of_file(folder / SEED_HEAD_FILE)
        seed = Seed(merged.source, merged.license, DenseFiles(folder), head)
    return LocalBody(
        path,
        weights.sha256,
        merged.digest,
        merged.method,
        contains,
        merged.exponents,
        seed,
        merged.seed,
        merged.model,
    )


def local_version(
    experts: Sequence[DenseExpert],
    body: LocalBody,
    contributions: Sequence[Path],
    options: SolveOptions = RECOMMENDED.solve,
    *,
    head: HeadMethod = RECOMMENDED.head,
    head_contributions: Sequence[Path] = (),
    kept: Sequence[Slot] = (),
    seed_heads: Collection[str] = (),
    tied: bool = False,
    chat_template: str | None = None,
) -> tuple[Lineage, VersionInputs]:
    """The arguments of `plan_version`.

    Args:
        experts: in slot order, behind the slots of an earlier version that are `kept`.
        contributions: files of router contributions under the body; none if the routers come from elsewhere.
        head: the method of the head.
        head_contributions: one per slot with an own head, in order, for a solved head.
        seed_heads: domains whose experts have the seed's head.
        tied: leave the head out if it equals the embedding.
        chat_template: see `Lineage`.

    Raises:
        MoergeError: the class doesn't allow the number of experts, in all or per token; or a head lacks its inputs.
    """
    slots = [*kept, *map(_slot, experts)]
    slots = [replace(slot, head=None) if slot.record.domain in seed_heads else slot for slot in slots]
    if options.top_k > len(slots):
        problem = f"{options.top_k} experts per token, of {len(slots)}"
        raise MoergeError(problem, where="`top_k`", todo=f"give a whole number between 1 and {len(slots)}")
    if why := body.family.host.few(len(slots)):
        raise MoergeError(why, where="`experts`", todo="add another expert")
    if why := body.family.host.refusal(options.top_k):
        raise MoergeError(why, where="`top_k`", todo="give 1")
    require_head(head, body.method)
    if HEADS[head].solved and len(head_contributions) != (own := sum(slot.head is not None for slot in slots)):
        problem = f"{len(head_contributions)} head contributions of {own} experts"
        raise MoergeError(problem, where="`head_contributions`", todo="give one per expert, or another head")
    heads = list(head_contributions) if HEADS[head].solved else []
    parts = dict(sorted((file_sha256(path), path) for path in contributions))
    lineage = Lineage(
        body=body.digest,
        seed=body.seed_digest,
        head=HeadLineage(
            method=head,
            contributions=list(map(file_sha256, heads)),
            revision=HEADS[head].revision,
        ),
        experts=[slot.record.digest for slot in slots],
        domains=[slot.record.domain for slot in slots],
        contributions=list(parts),
        options=options,
        tied=tied,
        chat_template=chat_template,
        solver=SOLVER,
    )
    return lineage, VersionInputs(
        slots=slots,
        body=body,
        body_sha256=body.sha256,
        method=body.method,
        merged=body.contains,
        contributed=[_contributed(digest, path) for digest, path in parts.items()],
        statistics=lambda: list(parts.values()),
        head_statistics=lambda: heads,
        seed=body.seed,
        base=body.base,
    )


def require_head(head: HeadMethod, body: BodyMethod) -> None:
    """Requires the seed's body for the seed's head, because a version's lineage names no other seed."""
    if head == "seed" and not METHODS[body].is_seed:
        problem = f"the seed's head under a body by {body!r}"
        raise MoergeError(problem, where="`head`", todo="use the seed's body, or the head average or regmean")


def given(routers: Sequence[Tensor]) -> Solve:
    """A solve that gives these routers, [D, H] per layer, and an empty report."""

    def solve(lineage: Lineage, inputs: VersionInputs) -> Solution:
        return routers, SolveReport(domains=lineage.domains, layers=[])

    return solve


def record_of(expert: DenseExpert) -> ExpertRecord:
    parts_of, fitted = (None, False) if expert.trained is None else (expert.trained.digest, True)
    return ExpertRecord(expert.digest, expert.domain, expert.owner, expert.license, parts_of, fitted, expert.hub_id)


def _slot(expert: DenseExpert) -> Slot:
    dense = expert.trained or expert
    return Slot(record_of(expert), expert.checkpoint, dense, dense.checkpoint)


def _contributed(digest: str, path: Path) -> Contributed:
    with StatisticsFile(path) as file:
        manifest = file.manifest
    return Contributed(digest, manifest.domain, manifest.owner, manifest.tokens, manifest.documents)
