"""Owners' influence on a version's routers: its measurement, its route, and needs of attention of its warnings."""

from fastapi import APIRouter

from moerge.client.client import Client
from moerge.errors import ContributionError, SolveError
from moerge.influence import MOST_LAYERS, measure_lineage
from moerge.models.families.family import mlp_layers
from moerge.versions.version_plan import VersionInputs
from moerge_coordinator.dashboard.attention import Need
from moerge_coordinator.domain import versions
from moerge_coordinator.log import progress
from moerge_coordinator.rest.auth import Operator, Route
from moerge_coordinator.rest.lists import Number
from moerge_coordinator.rest.state import Coordinator
from moerge_proto.influence import VersionInfluence
from moerge_proto.versions import Lineage, Version

router = APIRouter(prefix="/versions/{number}", tags=["versions"], route_class=Route)
_MOST_WARNINGS = 5


@router.get("/influence")
def show_influence(state: Coordinator, caller: Operator, number: Number) -> VersionInfluence:
    """The influence of each owner on the routers, measured before the publication."""
    with state.database.reading() as session:
        return versions.find(session, number).influence


def measured(lineage: Lineage, inputs: VersionInputs) -> VersionInfluence:
    """The influence of each owner; after a failed measurement, a warning."""
    layers = min(len(mlp_layers(inputs.body.config)), MOST_LAYERS)
    try:
        with progress().track("measuring the owners' influence", layers, "layers") as tracker:
            return measure_lineage(lineage, inputs, lambda layer: tracker.advance(1))
    except (ContributionError, SolveError) as error:
        return VersionInfluence(layers=[], domains=[], warnings=[f"Influence can't be measured: {error}"])


def needs(rest: Client, newest: Version) -> list[Need]:
    place = f"/versions/{newest.number}#influence"
    return [
        Need(f"Version {newest.number}: {warning}", "check it before you promote it", place)
        for warning in rest.version_influence(newest.number).warnings[:_MOST_WARNINGS]
    ]
