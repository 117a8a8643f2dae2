"""Lineages of local files, and their inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from moerge.errors import MoergeError
from moerge.files import atomic_file, file_sha256
from moerge.models.dense_files import DenseFiles, DenseTrunk
from moerge.models.expert_folder import DenseExpert
from moerge.progress import NoProgress, Progress
from moerge.routers.ridge import SOLVER
from moerge.trunk.merge import DENSE_TRUNK_FILE, FolderFiles, MergedTrunk, TrunkInputs, merge_trunk
from moerge.trunk.methods.registry import METHODS, require_options
from moerge.versions.card import Contributed, ExpertRecord
from moerge.versions.plan import Slot, Solution, Solve, VersionInputs
from moerge_proto.options import RECOMMENDED, SolveOptions
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.trunks import TrunkLineage, TrunkMethod, TrunkOptions
from moerge_proto.versions import Lineage, SolveReport

TRUNK_RECORD = "merged.json"
"""The file with a merged trunk's properties, in its folder."""


@dataclass(frozen=True)
class LocalTrunk(DenseTrunk):
    """A merged trunk on this machine.

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
    def source(self) -> Path:  # type: ignore[override]  # see `DenseTrunk`
        return self.path

    @property
    def hidden_size(self) -> int:
        return int(self.expert.config.hidden_size)

    @property
    def layers(self) -> int:
        return int(self.expert.config.num_hidden_layers)


def local_trunk(
    experts: Sequence[DenseExpert],
    folder: Path,
    method: TrunkMethod = RECOMMENDED.method,
    contributions: Sequence[Path] = (),
    options: TrunkOptions | None = None,
    *,
    base: DenseExpert | None = None,
    progress: Progress | None = None,
) -> LocalTrunk:
    """Merges a trunk into `folder`, unless it exists.

    Args:
        experts: in order; a method that uses only the base merges none.
        contributions: the experts' trunk contributions, for a solved method.
        options: without `base`.
        base: the base model, for a method that takes one.

    Raises:
        MoergeError: an option is missing or not allowed.
        IncompatibleExpertError: the method doesn't fit the experts' family.
        SolveError: the trunk contributions have too little text.
    """
    chosen = with_base(options or TrunkOptions(), base)
    require_options(METHODS[method], chosen)
    if base is not None and METHODS[method].base_only:
        experts = [base]
    statistics = {file_sha256(path): path for path in contributions}
    inputs = [*([base] if base is not None else []), *experts]
    lineage = TrunkLineage(
        method=method,
        options=chosen,
        experts=[item.digest for item in experts],
        contributions=list(statistics),
        revision=METHODS[method].revision,
    )
    record = folder / TRUNK_RECORD
    merged = MergedTrunk.model_validate_json(record.read_bytes()) if record.is_file() else None
    if merged is None or merged.lineage != lineage:
        record.unlink(missing_ok=True)
        files, domains = {item.digest: item for item in inputs}, {item.digest: item.domain for item in inputs}
        trunk_inputs = TrunkInputs(files, domains, statistics)
        merged = merge_trunk(lineage, trunk_inputs, FolderFiles(folder), progress or NoProgress())
        with atomic_file(record) as out:
            out.write(merged.model_dump_json().encode())
    contains = experts if base is None or base.digest in lineage.experts else inputs
    return kept_trunk(merged, folder, experts[0], [record_of(item) for item in contains])


def with_base(options: TrunkOptions, base: DenseExpert | None) -> TrunkOptions:
    return options if base is None else options.model_copy(update={"base": base.digest})


def kept_trunk(merged: MergedTrunk, folder: Path, expert: DenseFiles, contains: Sequence[ExpertRecord]) -> LocalTrunk:
    """A trunk that was merged into `folder`."""
    [weights] = [file for file in merged.files if file.name == DENSE_TRUNK_FILE]
    path = folder / weights.name
    return LocalTrunk(path, weights.sha256, merged.digest, merged.method, expert, contains, merged.exponents)


def local_version(
    experts: Sequence[DenseExpert],
    trunk: LocalTrunk,
    contributions: Sequence[Path],
    options: SolveOptions = RECOMMENDED.solve,
    *,
    kept: Sequence[Slot] = (),
    tied: bool = False,
) -> tuple[Lineage, VersionInputs]:
    """The arguments of `plan_version`.

    Args:
        experts: in slot order, behind the slots of an earlier version that are `kept`.
        contributions: files of router contributions under the trunk; none if the routers come from elsewhere.
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
        trunk=trunk.digest,
        experts=[slot.record.digest for slot in slots],
        domains=[slot.record.domain for slot in slots],
        contributions=list(parts),
        options=options,
        tied=tied,
        solver=SOLVER,
    )
    return lineage, VersionInputs(
        slots=slots,
        trunk=trunk,
        trunk_sha256=trunk.sha256,
        method=trunk.method,
        merged=trunk.contains,
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
