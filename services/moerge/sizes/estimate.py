"""The estimate of one trunk and one version: memory, disk, network and hours of a coordinator and of each worker."""

from dataclasses import asdict, dataclass

from moerge.memory import needs
from moerge.memory.shapes import Shape
from moerge.sizes import coordinator, files, worker
from moerge.threads import AT_ONCE
from moerge.trunk.methods.registry import METHODS
from moerge_proto.statistics_file import StatisticsSettings

_HOUR = 3600
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
class CoordinatorSize:
    """A coordinator's memory by task, disk, traffic in bytes, and hours by task."""

    memory: dict[str, int]
    disk: int
    spare_disk: int
    received: int
    sent: int
    read: int
    hours: dict[str, float]


@dataclass(frozen=True)
class WorkerSize:
    """A worker's memory on its device and for hidden states, disk, traffic in bytes, windows, and hours by task."""

    device_memory: int
    host_memory: int
    disk: int
    received: int
    sent: int
    read: int
    windows: int
    hours: dict[str, float]


@dataclass(frozen=True)
class Estimate:
    """Sizes of one trunk and one version, and of their files in bytes."""

    parameters: int
    files: dict[str, int]
    coordinator: CoordinatorSize
    worker: WorkerSize

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


def _coordinator(shape: Shape, experts: int, on: Machines) -> CoordinatorSize:
    received, sent = coordinator.received_bytes(shape, experts), coordinator.sent_bytes(shape, experts)
    core, at_once = on.core_flops * _HOUR, min(on.cores, AT_ONCE)
    hours = {
        "network": (received + sent) / on.network / _HOUR,
        "reading": coordinator.reads(shape, experts) / on.disk / _HOUR,
        "checking": coordinator.check_flop(shape, experts) / (core * on.cores),
        "merging": coordinator.merge_flop(shape, experts) / (core * at_once),
        "solving": coordinator.solve_flop(shape) / (core * at_once),
    }
    work = (
        needs.receiving(shape),
        needs.checking(shape),
        needs.merging(shape, experts, METHODS["regmean"], on.cores),
        needs.solving(shape, on.cores),
        needs.influence(shape, on.cores),
        needs.publishing(shape),
    )
    return CoordinatorSize(
        memory={need.work: need.total() for need in work},
        disk=coordinator.disk(shape, experts),
        spare_disk=coordinator.spare_disk(shape),
        received=received,
        sent=sent,
        read=coordinator.reads(shape, experts),
        hours=hours,
    )


def _worker(work: Work, on: Machines) -> WorkerSize:
    shape, tokens = work.shape, work.tokens
    received, sent = files.trunk_bytes(shape), worker.sent_bytes(shape)
    need = needs.passing(shape, _BATCH_TOKENS, trunk=True)
    windows = -(-tokens * need.token // on.host_memory)
    read = worker.read_bytes(shape, windows)
    hours = {
        "network": (received + sent) / on.network / _HOUR,
        "reading": read / on.disk / _HOUR,
        "computing": worker.flop(shape, tokens) / on.flops / _HOUR,
    }
    return WorkerSize(
        device_memory=need.on_device,
        host_memory=min(on.host_memory, tokens * need.token),
        disk=worker.disk(shape),
        received=received,
        sent=sent,
        read=read,
        windows=windows,
        hours=hours,
    )
