"""The estimate of a version under one body: memory, disk and network of a coordinator and of each worker."""

from dataclasses import asdict, dataclass

from moerge.memory import needs
from moerge.memory.shapes import Shape
from moerge.sizes import files
from moerge.trunk.methods.method import Method
from moerge_proto.statistics_file import StatisticsSettings

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
    """Sizes of one version and its body, and of their files in bytes."""

    parameters: int
    files: dict[str, int]
    coordinator: Size
    worker: Size

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def estimate(
    shape: Shape, body: Method, experts: int, tokens: int, cores: int, host_memory: int, *, anchor: bool = False
) -> Estimate:
    """The sizes for `experts` of a shape, one per worker, with a solved head under a seed's or a solved body.

    Under a seed's body, workers register parts with fitted MLPs; otherwise whole experts.

    Args:
        tokens: of each worker's text.
        cores: of the coordinator.
        host_memory: bytes for a worker's window of hidden states.
        anchor: whether the seed is one more expert, whose contributions the coordinator makes of public texts.
    """
    registered, sent = _registered(shape, body), _contributions(shape, body)
    seed = {"the seed's parts": files.part_bytes(shape)} if body.is_seed else {}
    sizes = {
        **seed,
        **registered,
        **sent,
        "the body": files.body_bytes(shape),
        "an expert's MLPs in a version": files.mlp_bytes(shape),
        "the head of a version": files.head_bytes(shape),
        "a version": files.version_bytes(shape, experts + anchor),
    }
    owner = sum(registered.values()) + sum(sent.values())
    largest = max(sizes[name] for name in sizes.keys() - {"a version"})
    own = sum(seed.values()) + anchor * sum(sent.values())
    coordinator = _coordinator(shape, body, experts, cores, experts * owner, own, largest, anchor=anchor)
    return Estimate(shape.expert, sizes, coordinator, _worker(shape, body, tokens, host_memory, owner))


def _registered(shape: Shape, body: Method) -> dict[str, int]:
    """The files that an owner registers as its expert."""
    if body.is_seed:
        return {"an expert's parts": files.part_bytes(shape)}
    return {"an expert": files.expert_bytes(shape)}


def _contributions(shape: Shape, body: Method) -> dict[str, int]:
    """An owner's contributions."""
    sizes = {
        "a head contribution": files.head_contribution_bytes(shape),
        "a router contribution": files.router_contribution_bytes(shape),
    }
    return sizes if body.is_seed else {"a body contribution": files.body_contribution_bytes(shape), **sizes}


def _coordinator(
    shape: Shape, body: Method, experts: int, cores: int, received: int, own: int, largest: int, *, anchor: bool
) -> Size:
    """With its `own` files and the first version, which shares the body's file.

    A further one of the same experts adds head and routers.

    The local disk has the largest file beside the blobs, also with S3: it is written before it is a blob.
    """
    memory = [
        needs.receiving(shape),
        needs.checking(shape),
        needs.merging(shape, experts, body, cores),
        needs.merging_head(shape, experts + anchor, solved=True),
        needs.solving(shape, cores),
        needs.influence(shape, cores),
        needs.publishing(shape),
    ]
    disk = {"disk or S3": received + own + files.version_bytes(shape, experts + anchor), "disk": largest}
    passed = needs.passing(shape, _BATCH_TOKENS, body=False)
    more = {"the anchor's sums": passed.total(needs.PUBLIC_TOKENS) + passed.journal} if anchor else {}
    sent = 0 if body.is_seed else experts * files.body_bytes(shape)
    return Size({need.work: need.total() for need in memory} | more, disk, received, sent)


def _worker(shape: Shape, body: Method, tokens: int, host_memory: int, sent: int) -> Size:
    """Of one streamed pass for each contribution. Its home has each twice, because a journal is replaced whole."""
    need, fit = needs.passing(shape, _BATCH_TOKENS, body=not body.is_seed), needs.fitting(shape, _BATCH_TOKENS)
    contributions, own = _contributions(shape, body).values(), files.body_bytes(shape)
    states, weights = tokens * need.token, files.expert_bytes(shape)
    windows = -(-states // host_memory)
    memory = {"hidden states": min(host_memory, states), "device": need.on_device}
    disk, received = own + 2 * sum(contributions), own
    if body.is_seed:
        memory["device, fitting"], disk, received = fit.on_device, disk + files.part_bytes(shape), 0
    read = len(contributions) * windows * weights
    return Size(memory, {"disk": disk}, received, sent, read, windows)
