"""The estimate of one trunk and one version: memory, disk, network and hours of a coordinator and of each worker."""

from dataclasses import asdict, dataclass

from moerge.memory import needs
from moerge.memory.shapes import Shape
from moerge.sizes import coordinator, files
from moerge.threads import AT_ONCE
from moerge.trunk.methods.registry import METHODS
from moerge_proto.statistics_file import StatisticsSettings

_HOUR, _PASSES = 3600, 2
_BATCH_TOKENS = StatisticsSettings().batch_tokens


@dataclass(frozen=True)
class Work:
    """The work of a federation.

    Attributes:
        shape: of the experts.
        experts: their number, one per worker.
        tokens: of each worker's text.
    """

    shape: Shape
    experts: int
    tokens: int


@dataclass(frozen=True)
class Machines:
    """Rates of the coordinator's machine and of each worker's.

    Attributes:
        flops: of a worker's device, in its format, per second.
        core_flops: of one core of the coordinator, in float64, per second.
        cores: of the coordinator.
        host_memory: bytes for a worker's window of hidden states.
        disk: bytes per second of a disk or a store of blobs.
        network: bytes per second between a worker and the coordinator; all workers share the coordinator's.
    """

    flops: float
    core_flops: float
    cores: int
    host_memory: int
    disk: float
    network: float


@dataclass(frozen=True)
class Size:
    """Memory, disk and hours by name, and traffic in bytes, of the coordinator or of each worker.

    Traffic is before compression; `windows` is the number of times that a worker reads its weights in a pass.
    """

    memory: dict[str, int]
    disk: dict[str, int]
    received: int
    sent: int
    read: int
    hours: dict[str, float]
    windows: int | None = None


@dataclass(frozen=True)
class Estimate:
    """Sizes of one trunk and one version, and of their files in bytes."""

    parameters: int
    files: dict[str, int]
    coordinator: Size
    worker: Size

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def estimate(work: Work, machines: Machines) -> Estimate:
    """The sizes of this work on these machines."""
    shape, experts = work.shape, work.experts
    sizes = {
        "an expert": files.expert_bytes(shape),
        "a trunk contribution": files.trunk_contribution_bytes(shape),
        "the trunk": files.trunk_bytes(shape),
        "a router contribution": files.router_contribution_bytes(shape),
        "an expert's MLPs in a version": files.mlp_bytes(shape),
        "a version": files.version_bytes(shape, experts),
    }
    return Estimate(shape.expert, sizes, _coordinator(shape, experts, machines), _worker(work, machines))


def _coordinator(shape: Shape, experts: int, on: Machines) -> Size:
    received, sent = coordinator.received_bytes(shape, experts), experts * files.trunk_bytes(shape)
    core, at_once, read = on.core_flops * _HOUR, min(on.cores, AT_ONCE), coordinator.reads(shape, experts)
    memory = (
        needs.receiving(shape),
        needs.checking(shape),
        needs.merging(shape, experts, METHODS["regmean"], on.cores),
        needs.solving(shape, on.cores),
        needs.influence(shape, on.cores),
        needs.publishing(shape),
    )
    hours = {
        "network": (received + sent) / on.network / _HOUR,
        "reading": read / on.disk / _HOUR,
        "checking": coordinator.check_flop(shape, experts) / (core * on.cores),
        "merging": coordinator.merge_flop(shape, experts) / (core * at_once),
        "solving": coordinator.solve_flop(shape) / (core * at_once),
    }
    disk = {"disk or S3": coordinator.disk(shape, experts), "disk": coordinator.spare_disk(shape)}
    return Size({need.work: need.total() for need in memory}, disk, received, sent, read, hours)


def _worker(work: Work, on: Machines) -> Size:
    """Of one streamed pass for each contribution. Its home has each twice, because a journal is replaced whole."""
    shape, tokens = work.shape, work.tokens
    need, sums, trunk = (
        needs.passing(shape, _BATCH_TOKENS, trunk=True),
        files.contribution_bytes(shape),
        files.trunk_bytes(shape),
    )
    states, sent = tokens * need.token, files.expert_bytes(shape) + sums
    windows = -(-states // on.host_memory)
    read = _PASSES * windows * files.expert_bytes(shape)
    hours = {
        "network": (trunk + sent) / on.network / _HOUR,
        "reading": read / on.disk / _HOUR,
        "computing": _pass_flop(shape, tokens) / on.flops / _HOUR,
    }
    memory = {"hidden states": min(on.host_memory, states), "device": need.on_device}
    return Size(memory, {"disk": trunk + 2 * sums}, trunk, sent, read, hours, windows)


def _pass_flop(shape: Shape, tokens: int) -> int:
    """Operations of both passes: 2 per parameter of the layers and token, and 2 per number of a gram's triangle."""
    grams = sum(shape.triangles(trunk=True)) + sum(shape.triangles(trunk=False))
    return tokens * 2 * (_PASSES * shape.layers * shape.layer + grams)
