"""The choice of what makes router contributions of exact sums. Noise and masks exclude each other."""

from functools import partial

from moerge_proto.masks import LEAST_OWNERS
from moerge_workers.computing.finishing import Finishing
from moerge_workers.contributing.exchange import Beside
from moerge_workers.masks.finishing import Masking
from moerge_workers.masks.seeds import seals
from moerge_workers.noise.finishing import Noise
from moerge_workers.settings import Settings


def finishing_of(settings: Settings) -> Finishing:
    """What the settings ask for: noise, masks, or neither."""
    if settings.privacy is not None:
        return Noise(settings.privacy)
    return Finishing() if settings.masks is None else Masking(settings.masks)


def beside_of(settings: Settings) -> Beside:
    """Gives the seals of a masked contribution, of an earlier run too; None for others."""
    return partial(seals, settings.home, LEAST_OWNERS if settings.masks is None else settings.masks.owners)
