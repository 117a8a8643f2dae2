"""The estimate of one body and one version: memory, disk and network of a coordinator and of each worker."""

from dataclasses import asdict, dataclass

from moerge.memory import needs
from moerge.memory.shapes import Shape
from moerge.sizes import files
from moerge.trunk.methods.registry import METHODS
from moerge_proto.statistics_file import StatisticsSettings

_PASSES = 2
_BATCH_TOKENS = StatisticsSettings().batch_tokens


@dataclass(frozen=True)
class Size:
    """Bytes of the coordinator or of each worker: memory and disk by name, and traffic before compression."""

    memory: dict[str, int]
    disk: dict[str, int]
    received: int
    sent: int
    read: int | None = None  # by a worker, from its disk
    windows: int | None = None  # the number of times that a worker reads its weights in a pass


@dataclass(frozen=True)
class Estimate:
    """Sizes of one body and one version, and of their files in bytes."""

    parameters: int
    files: dict[str, int]
    coordinator: Size
    worker: Size

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def estimate(shape: Shape, experts: int, tokens: int, cores: int, host_memory: int) -> Estimate:
    """The sizes for `experts` of a shape, one per worker.

    Args:
        tokens: of each worker's text.
        cores: of the coordinator.
        host_memory: bytes for a worker's window of hidden states.
    """
    sizes = {
        "an expert": files.expert_bytes(shape),
        "a body contribution": files.body_contribution_bytes(shape),
        "the body": files.body_bytes(shape),
        "a router contribution": files.router_contribution_bytes(shape),
        "an expert's MLPs in a version": files.mlp_bytes(shape),
        "a version": files.version_bytes(shape, experts),
    }
    return Estimate(shape.expert, sizes, _coordinator(shape, experts, cores), _worker(shape, tokens, host_memory))


def _coordinator(shape: Shape, experts: int, cores: int) -> Size:
    """With the first version, which shares the body's file; a further one of the same experts adds its routers.

    The local disk has the largest file beside the blobs, also with S3: it is written before it is a blob.
    """
    received = experts * (files.expert_bytes(shape) + files.contribution_bytes(shape))
    memory = (
        needs.receiving(shape),
        needs.checking(shape),
        needs.merging(shape, experts, METHODS["regmean"], cores),
        needs.solving(shape, cores),
        needs.influence(shape, cores),
        needs.publishing(shape),
    )
    written = (files.body_bytes, files.mlp_bytes, files.body_contribution_bytes, files.router_contribution_bytes)
    disk = {"disk or S3": received + files.version_bytes(shape, experts), "disk": max(size(shape) for size in written)}
    return Size({need.work: need.total() for need in memory}, disk, received, experts * files.body_bytes(shape))


def _worker(shape: Shape, tokens: int, host_memory: int) -> Size:
    """Of one streamed pass for each contribution. Its home has each twice, because a journal is replaced whole."""
    need, sums, body = (
        needs.passing(shape, _BATCH_TOKENS, body=True),
        files.contribution_bytes(shape),
        files.body_bytes(shape),
    )
    states, weights = tokens * need.token, files.expert_bytes(shape)
    windows = -(-states // host_memory)
    memory = {"hidden states": min(host_memory, states), "device": need.on_device}
    return Size(memory, {"disk": body + 2 * sums}, body, weights + sums, _PASSES * windows * weights, windows)
