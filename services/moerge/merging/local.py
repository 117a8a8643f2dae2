"""Lineages of what lies on this machine, and the inputs that they name."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.models.bounds import feature_exponents
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from moerge.routers.ridge import SOLVER
from moerge.versions.card import Contributed, ExpertRecord
from moerge.versions.plan import Slot, Solution, Solve, VersionInputs
from moerge_proto.options import RECOMMENDED, SolveOptions
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.versions import Lineage, SolveReport


@dataclass(frozen=True)
class LocalTrunk:
    """A merged trunk on this machine.

    Attributes:
        path: its safetensors file, in the dense family's tensor names.
        digest: its name.
        method: by which it was merged.
        experts: whose parameters it contains.
    """

    path: Path
    digest: str
    method: str
    experts: Sequence[DenseExpert]

    @property
    def hidden_size(self) -> int:
        return int(self.experts[0].config.hidden_size)

    @property
    def layers(self) -> int:
        return int(self.experts[0].config.num_hidden_layers)

    @cached_property
    def exponents(self) -> Sequence[int]:
        """Fractional bits of each layer's gram and cross."""
        first = self.experts[0]
        return feature_exponents(Checkpoint(self.path), first.family, first.config)

    @cached_property
    def sha256(self) -> str:
        """The digest of its file."""
        return file_sha256(self.path)


def local_version(
    experts: Sequence[DenseExpert],
    trunk: LocalTrunk,
    contributions: Sequence[Path],
    options: SolveOptions = RECOMMENDED.solve,
    *,
    tied: bool = False,
) -> tuple[Lineage, VersionInputs]:
    """The arguments of `plan_version`.

    Args:
        experts: in slot order.
        trunk: that the contributions were computed under.
        contributions: files of router contributions; none if the routers come from elsewhere.
        options: how the routers are solved.
        tied: leave the head out where it is the embedding.

    Raises:
        MoergeError: fewer experts than `options.top_k`.
    """
    if options.top_k > len(experts):
        found = f"{options.top_k} experts per token, of {len(experts)}"
        raise MoergeError(found, where="k", todo=f"give a whole number between 1 and {len(experts)}")
    parts = dict(sorted((file_sha256(path), path) for path in contributions))
    lineage = Lineage(
        trunk=trunk.digest,
        experts=[each.digest for each in experts],
        domains=[each.domain for each in experts],
        contributions=list(parts),
        options=options,
        tied=tied,
        solver=SOLVER,
    )
    return lineage, VersionInputs(
        slots=[Slot(_record(each), each.folder, (each.trained or each).folder) for each in experts],
        trunk=trunk.path,
        trunk_sha256=trunk.sha256,
        method=trunk.method,
        merged=[_record(each) for each in trunk.experts],
        config=trunk.experts[0].folder,
        contributed=[_contributed(digest, path) for digest, path in parts.items()],
        statistics=lambda: list(parts.values()),
    )


def given(routers: Sequence[Tensor]) -> Solve:
    """A solve that gives these routers, [D, H] per layer, and an empty report."""

    def solve(lineage: Lineage, inputs: VersionInputs) -> Solution:
        return routers, SolveReport(domains=lineage.domains, layers=[])

    return solve


def _record(expert: DenseExpert) -> ExpertRecord:
    fitted_from = None if expert.trained is None else expert.trained.digest
    return ExpertRecord(expert.digest, expert.domain, expert.owner, expert.license, fitted_from)


def _contributed(digest: str, path: Path) -> Contributed:
    with StatisticsFile(path) as file:
        made = file.manifest
    return Contributed(digest, made.domain, made.owner, made.tokens, made.documents)
