"""The side rooms: what a federation can do without. The main road takes their parts from here, and imports none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moerge_coordinator.masks.commands import cohort, unmask

if TYPE_CHECKING:
    from moerge_coordinator.domain.contribution_rules import Rule


@dataclass(frozen=True)
class Side:
    """A side room's parts, each for one place of the main road.

    Attributes:
        rules: rules of further kinds of contributions.
    """

    rules: "Mapping[str, Rule[Any]]" = field(default_factory=dict)


def _masks() -> Side:
    from moerge_coordinator.masks.seals import RULES

    return Side(rules=RULES)


SIDES: tuple[Callable[[], Side], ...] = (_masks,)
"""Each imports its room, which can be slow."""
COMMANDS: tuple[Callable[..., None], ...] = (cohort, unmask)
"""The rooms' commands, which help texts list without the rest."""


def sides() -> list[Side]:
    return [load() for load in SIDES]
