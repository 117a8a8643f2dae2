"""Lineages of local files, and their inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from moerge.errors import MoergeError
from moerge.files import atomic_file, file_sha256
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.progress import NoProgress, Progress
from moerge.routers.ridge import SOLVER
from moerge.trunk.merge import DENSE_BODY_FILE, BodyInputs, FolderFiles, MergedBody, merge_body
from moerge.trunk.methods.registry import METHODS, require_options
from moerge.versions.card import Contributed, ExpertRecord
from moerge.versions.plan import Slot, Solution, Solve, VersionInputs
from moerge_proto.bodies import BodyLineage, BodyMethod, BodyOptions
from moerge_proto.options import RECOMMENDED, SolveOptions
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.versions import Lineage, SolveReport

BODY_RECORD = "merged.json"
"""The file with a merged body's properties, in its folder."""


@dataclass(frozen=True)
class LocalBody(DenseBody):
    """A merged body on this machine.

    Attributes:
        path: its safetensors file, in the dense family's tensor names.
        expert: a dense expert in it, or the config of one.
        contains: the experts whose parameters it contains, including the base.
        exponents: fractional bits of each layer's gram and cross.
    """

    path: Path
    sha256: str
    digest: str
    method: str
    expert: DenseFiles
    contains: Sequence[ExpertRecord]
    exponents: Sequence[int]

    @property
    def source(self) -> Path:  # type: ignore[override]  # see `DenseBody`
        return self.path

    @property
    def hidden_size(self) -> int:
        return int(self.expert.config.hidden_size)

    @property
    def layers(self) -> int:
        return int(self.expert.config.num_hidden_layers)


def local_body(
    experts: Sequence[DenseExpert],
    folder: Path,
    method: BodyMethod = RECOMMENDED.method,
    contributions: Sequence[Path] = (),
    options: BodyOptions | None = None,
    *,
    base: DenseExpert | None = None,
    progress: Progress | None = None,
) -> LocalBody:
    """Merges a body into `folder`, unless it exists.

    Args:
        experts: in order; a method that uses only the base merges none.
        contributions: the experts' body contributions, for a solved method.
        options: without `base`.
        base: the base model, for a method that takes one.

    Raises:
        MoergeError: an option is missing or not allowed.
        IncompatibleExpertError: the method doesn't fit the experts' family.
        SolveError: the body contributions have too little text.
    """
    chosen = with_base(options or BodyOptions(), base)
    require_options(METHODS[method], chosen)
    if base is not None and METHODS[method].base_only:
        experts = [base]
    statistics = {file_sha256(path): path for path in contributions}
    inputs = [*([base] if base is not None else []), *experts]
    lineage = BodyLineage(
        method=method,
        options=chosen,
        experts=[item.digest for item in experts],
        contributions=list(statistics),
        revision=METHODS[method].revision,
    )
    record = folder / BODY_RECORD
    merged = MergedBody.model_validate_json(record.read_bytes()) if record.is_file() else None
    if merged is None or merged.lineage != lineage:
        record.unlink(missing_ok=True)
        files, domains = {item.digest: item for item in inputs}, {item.digest: item.domain for item in inputs}
        body_inputs = BodyInputs(files, domains, statistics)
        merged = merge_body(lineage, body_inputs, FolderFiles(folder), progress or NoProgress())
        with atomic_file(record) as out:
            out.write(merged.model_dump_json().encode())
    contains = experts if base is None or base.digest in lineage.experts else inputs
    return kept_body(merged, folder, experts[0], [record_of(item) for item in contains])


def with_base(options: BodyOptions, base: DenseExpert | None) -> BodyOptions:
    return options if base is None else options.model_copy(update={"base": base.digest})


def kept_body(merged: MergedBody, folder: Path, expert: DenseFiles, contains: Sequence[ExpertRecord]) -> LocalBody:
    """A body that was merged into `folder`."""
    [weights] = [file for file in merged.files if file.name == DENSE_BODY_FILE]
    path = folder / weights.name
    return LocalBody(path, weights.sha256, merged.digest, merged.method, expert, contains, merged.exponents)


def local_version(
    experts: Sequence[DenseExpert],
    body: LocalBody,
    contributions: Sequence[Path],
    options: SolveOptions = RECOMMENDED.solve,
    *,
    kept: Sequence[Slot] = (),
    tied: bool = False,
) -> tuple[Lineage, VersionInputs]:
    """The arguments of `plan_version`.

    Args:
        experts: in slot order, behind the slots of an earlier version that are `kept`.
        contributions: files of router contributions under the body; none if the routers come from elsewhere.
        tied: leave the head out if it equals the embedding.

    Raises:
        MoergeError: fewer experts than `options.top_k`.
    """
    new = [Slot(record_of(expert), expert.checkpoint, expert.trained or expert) for expert in experts]
    slots = [*kept, *new]
    if options.top_k > len(slots):
        problem = f"{options.top_k} experts per token, of {len(slots)}"
        raise MoergeError(problem, where="`top_k`", todo=f"give a whole number between 1 and {len(slots)}")
    parts = dict(sorted((file_sha256(path), path) for path in contributions))
    lineage = Lineage(
        body=body.digest,
        experts=[slot.record.digest for slot in slots],
        domains=[slot.record.domain for slot in slots],
        contributions=list(parts),
        options=options,
        tied=tied,
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
    )


def given(routers: Sequence[Tensor]) -> Solve:
    """A solve that gives these routers, [D, H] per layer, and an empty report."""

    def solve(lineage: Lineage, inputs: VersionInputs) -> Solution:
        return routers, SolveReport(domains=lineage.domains, layers=[])

    return solve


def record_of(expert: DenseExpert) -> ExpertRecord:
    fitted_from = None if expert.trained is None else expert.trained.digest
    return ExpertRecord(expert.digest, expert.domain, expert.owner, expert.license, fitted_from, expert.hub_id)


def _contributed(digest: str, path: Path) -> Contributed:
    with StatisticsFile(path) as file:
        manifest = file.manifest
    return Contributed(digest, manifest.domain, manifest.owner, manifest.tokens, manifest.documents)
