"""One piece of a coordinator's or a merge's work: `python -m bench.layer_child WORK FOLDER`, for `bench.layer`."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from moerge.blobs.local import LocalBlobs
from moerge.bodies.lineage import BodyLineage, BodyOptions
from moerge.bodies.merge import BodyInputs, MergedBody, merge_body
from moerge.bodies.methods.registry import METHODS
from moerge.influence import measure_lineage
from moerge.merging.local_lineages import given
from moerge.models.bounds import feature_bounds, feature_exponents
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import require_finite
from moerge.models.reader import Checkpoint
from moerge.progress import NoProgress
from moerge.routers.ridge import SOLVER
from moerge.statistics.describe import median_rank
from moerge.statistics.validate import validate
from moerge.versions.card import Contributed, ExpertRecord
from moerge.versions.version_plan import Slot, VersionInputs, plan_version, solve_lineage
from moerge_proto.bodies import BodyMethod
from moerge_proto.digests import digest_of
from moerge_proto.ranges import LocalFile
from moerge_proto.recipes import RECOMMENDED
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.versions import HeadLineage, Lineage

DOMAINS = ("d0", "d1")


class Coordinator:
    """A folder of experts, contributions and blobs. Weights are read in ranges, as from another store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.blobs = folder, LocalBlobs(folder / "blobs")
        self.names = {domain: digest_of(domain) for domain in DOMAINS}
        self.files = ExitStack()

    def expert(self, domain: str) -> DenseFiles:
        expert = DenseFiles(self.folder / domain)
        expert.checkpoint = Checkpoint(expert.folder, {"model.safetensors": LocalFile(expert.folder / "weights")})
        return expert

    def sums(self, kind: str) -> list[Path]:
        return [self.folder / f"{kind}-{domain}" for domain in DOMAINS]

    def merge(self, method: BodyMethod) -> MergedBody:
        sums = {digest_of(path.name): path for path in self.sums("body")} if method == "regmean" else {}
        lineage = BodyLineage(
            method=method,
            options=BodyOptions(),
            experts=[*self.names.values()],
            contributions=[*sums],
            revision=METHODS[method].revision,
        )
        experts = {digest: self.expert(domain) for domain, digest in self.names.items()}
        inputs = BodyInputs(experts, {digest: domain for domain, digest in self.names.items()}, sums)
        return merge_body(lineage, inputs, self.blobs, NoProgress())

    def version(self) -> tuple[Lineage, VersionInputs]:
        """The version on the averaged body, which `merge-average` has left."""
        body = next(path for path in self.blobs_by_size() if path.stat().st_size > 2**20)
        lineage = Lineage(
            body=digest_of("body"),
            head=HeadLineage(method="average"),
            experts=[*self.names.values()],
            domains=[*DOMAINS],
            contributions=[digest_of(path.name) for path in self.sums("router")],
            options=RECOMMENDED.solve,
            solver=SOLVER,
        )
        records = [ExpertRecord(digest, domain, "owner", "unknown") for domain, digest in self.names.items()]
        experts = [self.expert(record.domain) for record in records]
        return lineage, VersionInputs(
            slots=[Slot(item, own.checkpoint, own, own.checkpoint) for item, own in zip(records, experts, strict=True)],
            body=DenseBody(LocalFile(body), experts[0].config),
            body_sha256=body.name,
            method="average",
            merged=records,
            contributed=[Contributed(digest_of(path.name), "d0", "owner", 1, 1) for path in self.sums("router")],
            statistics=lambda: self.sums("router"),
        )

    def blobs_by_size(self) -> list[Path]:
        return sorted((self.folder / "blobs").glob("??/*"), key=lambda path: path.stat().st_size)


def receive(made: Coordinator) -> None:
    """An expert's check."""
    with NoProgress().track("", 0, "B") as tracker:
        require_finite(made.expert(DOMAINS[0]).checkpoint, tracker)


def check_sums(made: Coordinator) -> None:
    """The check of a router contribution."""
    expert = made.expert(DOMAINS[0])
    with StatisticsFile(made.sums("router")[0]) as file:
        validate(file, feature_exponents(expert), feature_bounds(expert))
        median_rank(file)


def publish(made: Coordinator) -> None:
    """The first version's files, with given routers."""
    import torch

    lineage, inputs = made.version()
    config = inputs.body.config
    routers = [torch.zeros(len(DOMAINS), config.hidden_size)] * config.num_hidden_layers
    for plan in plan_version(lineage, inputs, given(routers)).files:
        if plan.sha256 is None:
            made.blobs.put(plan.name, plan.write)


WORK: dict[str, Callable[[Coordinator], object]] = {
    "receive": receive,
    "validate": check_sums,
    "merge-average": lambda made: made.merge("average"),
    "merge-regmean": lambda made: made.merge("regmean"),
    "solve": lambda made: solve_lineage(*made.version()),
    "influence": lambda made: measure_lineage(*made.version()),
    "publish": publish,
    "nothing": lambda made: None,
}


def main() -> None:
    name, folder = sys.argv[1:]
    WORK[name](Coordinator(Path(folder)))


if __name__ == "__main__":
    main()
