"""A published version, and its bounds."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from moerge.scoring.routers import randomised
from moerge_lab.recipes.base import Fleet, Model, Options, Recipe
from moerge_lab.recipes.models import Loaded, Oracle, Routed

VERSION = "version"
"""The name of the recipe, and of the row with its own routers."""


def published(folder: Path) -> Recipe:
    """The recipe of a version's folder with the fleet's domains as slots, in order.

    Its rows are random routing, the oracle (DUME section 3.2) and the version itself.
    """
    return Recipe(VERSION, "DUME section 3.2", partial(_rows, folder), uses_text=False)


def _rows(folder: Path, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    routed = Routed.of(folder, fleet.device, fleet.dtype)
    with randomised(routed.model, fleet.seed):
        yield "random routing", Loaded(routed.model)
    yield "oracle", Oracle(routed.model, [domain.name for domain in fleet.domains])
    yield VERSION, routed
