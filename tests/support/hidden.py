"""Hides the modules that the environment's MOERGE_TEST_HIDDEN names, and empties the coordinator's list of side rooms.

To be imported before all others, such as by `pytest -p support.hidden`.
"""

import os
import sys
from collections.abc import Sequence
from types import ModuleType

HIDDEN = tuple(os.environ.get("MOERGE_TEST_HIDDEN", "").split())


class _Hiding:
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name.startswith(HIDDEN):
            raise ModuleNotFoundError(name)


if HIDDEN:
    sides = ModuleType("moerge_coordinator.sides")
    sides.__dict__.update(COMMANDS=(), sides=list)
    sys.modules[sides.__name__] = sides
    sys.meta_path.insert(0, _Hiding())
