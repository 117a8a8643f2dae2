"""The memory that a worker's settings let it use."""

from moerge.statistics.memory import Free, free_bytes, layer_groups
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_workers.settings import Settings


def free_memory(settings: Settings) -> Free:
    """The free memory of this machine; an existing cluster's nodes are not asked."""
    host = free_bytes("cpu")
    if settings.ray_address is not None:
        return Free(host, None)
    return Free(host, host if settings.device == "cpu" else free_bytes(settings.device))


def that_fit(
    work: RouterPass | TrunkPass, settings: Settings, free: Free, begun: int = 1
) -> list[RouterPass | TrunkPass]:
    """The passes over a pass's layer groups: as many as the settings say, or the fewest that fit, but at least `begun`.

    Raises:
        MoergeError: they don't fit, or the settings say more than there are layers; says which setting to change.
    """
    return layer_groups(
        work,
        settings.statistics,
        free,
        settings.slots,
        shared=settings.ray_address is None and settings.device == "cpu",
        groups=settings.layer_groups,
        begun=begun,
    )
