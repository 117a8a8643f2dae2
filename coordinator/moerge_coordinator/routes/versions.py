"""Versions and the workflows that make them."""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse
from sqlalchemy import select

from moerge.routers.ridge import SOLVER
from moerge_coordinator import views
from moerge_coordinator.auth import Anyone, Operator, OperatorOrReader
from moerge_coordinator.database import transaction
from moerge_coordinator.refusals import RefusedError
from moerge_coordinator.routes.pages import After, Number, page
from moerge_coordinator.routes.trunks import find_trunk
from moerge_coordinator.tables import ContributionRow, ExpertRow, VersionRow
from moerge_proto.messages import Page
from moerge_proto.problems import ProblemType
from moerge_proto.versions import Lineage, NewVersion, SolveOptions, Version
from moerge_proto.workflows import Workflow

router = APIRouter(tags=["versions"])


@router.post("/versions", status_code=202)
def solve(request: Request, caller: Operator, new: NewVersion) -> Workflow:
    """Sums, solves and publishes; the workflow's result is the version's number.

    A lineage that is published already gives the version that it has. Role: operator.
    """
    lineage = _lineage(request, new)
    if new.options.top_k > len(lineage.experts):
        found = f"{new.options.top_k} of {len(lineage.experts)} experts"
        raise RefusedError(
            ProblemType.INVALID_REQUEST, found, where="options.top_k", todo="use at most as many as there are"
        )
    workflow: Workflow = request.app.state.workflows.start_version(lineage)
    return workflow


def _lineage(request: Request, new: NewVersion) -> Lineage:
    trunk = find_trunk(request.app.state.engine, new.trunk)
    with transaction(request.app.state.engine) as session:
        query = select(ContributionRow).where(ContributionRow.trunk == trunk.digest, ContributionRow.active)
        parts = list(session.scalars(query))
        domains = {row.digest: row.domain for row in session.scalars(select(ExpertRow).order_by(ExpertRow.number))}
    contributed = {part.expert for part in parts if part.split == "statistics"}
    experts = [digest for digest in domains if digest in contributed] if new.experts is None else new.experts
    for digest in experts:
        if digest not in contributed:
            found = f"expert {digest} has no contribution under trunk {trunk.digest}"
            raise RefusedError(
                ProblemType.NOT_READY, found, where="experts", todo="its owner's worker contributes first"
            )
    if not experts or len(set(experts)) < len(experts):
        raise RefusedError(
            ProblemType.NOT_READY,
            "a version needs at least one expert with a contribution, and none twice",
            where="experts",
            todo="start the owners' workers, or see GET /v1/contributions",
        )
    names = [domains[digest] for digest in experts]
    _require_known(new.options, names)
    splits = ("statistics", "tuning") if new.options.lambda_scale == "auto" else ("statistics",)
    return Lineage(
        trunk=trunk.digest,
        experts=experts,
        domains=names,
        contributions=sorted(part.digest for part in parts if part.expert in experts and part.split in splits),
        options=new.options,
        tied=new.tied,
        solver=SOLVER,
    )


def _require_known(options: SolveOptions, domains: list[str]) -> None:
    weights = options.domain_weights
    if weights != "balanced" and (unknown := sorted(weights.keys() - set(domains))):
        found = f"{', '.join(unknown)}; the version's domains are {', '.join(domains)}"
        todo = "name domains of the version"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="options.domain_weights", todo=todo)


@router.get("/versions")
def list_versions(request: Request, caller: Anyone, after: After = 0) -> Page[Version]:
    """Lists versions. Role: any."""
    with transaction(request.app.state.engine) as session:
        return page(session, select(VersionRow), VersionRow.number, after, views.version)


def _row(request: Request, number: int) -> VersionRow:
    with transaction(request.app.state.engine) as session:
        row = session.get(VersionRow, number)
    if row is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"no version {number}", todo="see GET /v1/versions")
    return row


@router.get("/versions/{number}")
def show_version(request: Request, caller: Anyone, number: Number) -> Version:
    """One version with its lineage and files. Role: any."""
    return views.version(_row(request, number))


@router.get("/versions/{number}/files/{name}", response_class=FileResponse)
def version_content(request: Request, caller: OperatorOrReader, number: Number, name: str) -> FileResponse:
    """A file of a version; ranges are served. Role: operator or reader."""
    sha256 = next((file["sha256"] for file in _row(request, number).files if file["name"] == name), None)
    if sha256 is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"version {number} has no file {name!r}")
    return FileResponse(request.app.state.blobs.path(sha256), filename=name, headers={"ETag": f'"{sha256}"'})


@router.get("/workflows/{id}")
def show_workflow(
    request: Request, caller: Operator, id: Annotated[str, PathParameter(pattern="^[a-z0-9-]{1,200}$")]
) -> Workflow:
    """How a workflow goes. Role: operator."""
    workflow: Workflow | None = request.app.state.workflows.find(id)
    if workflow is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"no workflow {id!r}")
    return workflow
