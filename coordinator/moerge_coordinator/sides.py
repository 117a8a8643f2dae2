"""The side rooms: what a federation can do without. The main road takes their parts from here, and imports none."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moerge_coordinator.masks.commands import cohort, unmask

if TYPE_CHECKING:
    from fastapi import APIRouter
    from starlette.types import ASGIApp

    from moerge.errors import MoergeError
    from moerge_coordinator.dashboard.site import FindNeeds
    from moerge_coordinator.domain.contribution_kinds import Rule
    from moerge_coordinator.domain.ports import Admission, CardScores, Comparison, Comparisons, Influence
    from moerge_coordinator.rest.state import State
    from moerge_coordinator.settings import Event, Settings


def _none(given: object) -> tuple[()]:
    return ()


def _unchanged(app: "ASGIApp", settings: "Settings") -> "ASGIApp":
    return app


@dataclass(frozen=True)
class Side:
    """A side room's parts, each for one place of the main road.

    Attributes:
        problems: problems of the settings, before a start.
        routers: further routes of /v1.
        rules: rules of further kinds of contributions.
        comparisons: further comparisons of a version with the champion, before its promotion.
        card_scores: scores in model cards.
        influence: the measurement of owners' influence before a publication.
        admission: what a caller needs to use a version.
        on_parts: the comparison, by all comparisons of versions, of the parts that readers have.
        events: events that `notify` keeps for it.
        running: its own context, within that of the workflows.
        needs: what the newest version needs of an operator before it is promoted.
        layer: wraps the served app, where calls have their peers' own addresses.
    """

    problems: "Callable[[Settings], Iterable[MoergeError]]" = _none
    routers: "Sequence[APIRouter]" = ()
    rules: "Mapping[str, Rule[Any]]" = field(default_factory=dict)
    comparisons: "Comparisons" = ()
    card_scores: "CardScores" = ()
    influence: "Influence | None" = None
    admission: "Admission | None" = None
    on_parts: "Callable[[Comparisons], Comparison] | None" = None
    events: "Callable[[Settings], Iterable[Event]]" = _none
    running: "Callable[[State], AbstractContextManager[object]]" = nullcontext
    needs: "FindNeeds | None" = None
    layer: "Callable[[ASGIApp, Settings], ASGIApp]" = _unchanged


def _masks() -> Side:
    from moerge_coordinator.masks.seals import RULES

    return Side(rules=RULES)


def _notices() -> Side:
    from moerge_coordinator import webhooks

    return Side(problems=webhooks.problems, events=webhooks.events, running=webhooks.sending)


def _people() -> Side:
    from moerge_coordinator.people import signed_in

    return Side(layer=signed_in)


def _evaluations() -> Side:
    from moerge_coordinator.evaluations.promotion import compared
    from moerge_coordinator.evaluations.routes import router
    from moerge_coordinator.evaluations.scores import card_scores

    return Side(routers=[router], comparisons=[compared], card_scores=[card_scores])


def _influence() -> Side:
    from moerge_coordinator.influence import measured, needs, router

    return Side(routers=[router], influence=measured, needs=needs)


def _grants() -> Side:
    from moerge_coordinator.grants.parts import on_parts
    from moerge_coordinator.grants.routes import router
    from moerge_coordinator.grants.rules import require_granted

    return Side(routers=[router], admission=require_granted, on_parts=on_parts)


def _usage() -> Side:
    from moerge_coordinator.usage import router

    return Side(routers=[router])


SIDES: tuple[Callable[[], Side], ...] = (_masks, _notices, _people, _evaluations, _influence, _grants, _usage)
"""Each imports its room, which can be slow."""
COMMANDS: tuple[Callable[..., None], ...] = (cohort, unmask)
"""The rooms' commands, which help texts list without the rest."""


def sides() -> list[Side]:
    return [load() for load in SIDES]
