"""Evaluations: reported scores of versions, and the paper's table of them."""

from typing import Annotated

from fastapi import APIRouter, Query

from moerge_coordinator.domain import versions
from moerge_coordinator.evaluations import scores
from moerge_coordinator.rest.auth import Anyone, OperatorOrOwner, Route
from moerge_coordinator.rest.lists import After, Flag, VersionPath, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.tables import EvaluationRow
from moerge_proto.evaluations import Evaluation, NewEvaluation, VersionTable
from moerge_proto.messages import Page
from moerge_proto.owners import Role

router = APIRouter(prefix="/versions/{number}", tags=["evaluations"], route_class=Route)
Replaced = Annotated[Flag, Query(description="Also lists scores that a later report replaced.")]


@router.post("/evaluations", status_code=201)
def evaluate(state: Coordinator, caller: OperatorOrOwner, number: VersionPath, new: NewEvaluation) -> list[Evaluation]:
    """Accepts scores of a served version: an owner's perplexities of its domains, or results on tasks. Idempotent.

    Each replaces the earlier score of the same reporter and domain, or task and metric. An owner needs a ready expert
    in the version.
    """
    with state.database.transaction("evaluate version") as session:
        return scores.evaluate(session, caller, number, new)


@router.get("/evaluations")
def list_evaluations(
    state: Coordinator, caller: Anyone, number: VersionPath, after: After = 0, replaced: Replaced = False
) -> Page[Evaluation]:
    """Lists a version's reported scores; for an owner, the operators' and its own, for a reader, those on tasks."""
    with state.database.reading() as session:
        version = versions.find(session, number)
        query = scores.visible(version.number, caller.owner)
        if caller.role is Role.READER:
            query = query.where(EvaluationRow.kind == "task")
        if not replaced:
            query = query.where(EvaluationRow.active)
        return page(session, query, EvaluationRow.number, after, scores.view_of(version))


@router.get("/table")
def show_table(state: Coordinator, caller: Anyone, number: VersionPath) -> VersionTable:
    """The paper's normalised table of a version, from its existing perplexities.

    For an owner, only its own domains' scores, and the average.
    """
    with state.database.reading() as session:
        return scores.visible_table(session, versions.find(session, number), caller.owner)
