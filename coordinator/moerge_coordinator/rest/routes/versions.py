"""Versions and the workflows that make them."""

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.routers.ridge import SOLVER
from moerge.versions.compare import compare
from moerge.versions.files import REPORT_FILE
from moerge_coordinator.domain.lifecycle import retire_versions, withdrawn_in
from moerge_coordinator.domain.owner_keys import signatures
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import Anyone, Operator, OperatorOrReader, own_name
from moerge_coordinator.rest.content import content
from moerge_coordinator.rest.lists import After, Newest, Number, page
from moerge_coordinator.rest.routes.rounds import ended_round
from moerge_coordinator.rest.routes.trunks import find_trunk
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage.database import reading, transaction
from moerge_coordinator.storage.references import collect
from moerge_coordinator.storage.tables import ContributionRow, ExpertRow, TrunkRow, VersionRow
from moerge_proto.contributions import ContributionSignature
from moerge_proto.experts import ExpertState
from moerge_proto.messages import Page
from moerge_proto.options import SolveOptions
from moerge_proto.owners import Role
from moerge_proto.problems import ProblemType
from moerge_proto.versions import Comparison, Lineage, NewVersion, SolveReport, Version, VersionChange
from moerge_proto.workflows import Workflow

router = APIRouter(tags=["versions"])


class Markdown(PlainTextResponse):
    media_type = "text/markdown"


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
    if new.round is not None and (new.trunk is not None or new.experts is not None):
        found = "a round says which trunk and experts"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="round", todo="leave trunk and experts out")
    asked = None if new.round is None else ended_round(request, new.round, "router")
    trunk = find_trunk(request.app.state.engine, new.trunk if asked is None else asked.trunk)
    if trunk.retired is not None and not trunk.current:
        found = f"trunk {trunk.digest} was retired: it contains something withdrawn"
        raise RefusedError(ProblemType.GONE, found, where="trunk", todo="use the current one")
    with reading(request.app.state.engine) as session:
        query = select(ContributionRow).where(ContributionRow.trunk == trunk.digest, ContributionRow.active)
        parts = list(session.scalars(query))
        rows = {row.digest: row for row in session.scalars(select(ExpertRow).order_by(ExpertRow.number))}
        domains = {row.digest: row.domain for row in sorted(rows.values(), key=lambda row: rows[row.trained].number)}
        withdrawn = withdrawn_in(session, trunk.digest)
    contributed = {part.expert for part in parts if part.split == "statistics"}
    experts = [digest for digest in domains if digest in contributed] if new.experts is None else new.experts
    if asked is not None:
        experts = [digest for digest in experts if domains[digest] in asked.contributed]

    def _instead(digest: str) -> str:
        other = next((each for each in contributed if digest in rows and rows[each].domain == rows[digest].domain), "")
        return f"name the domain's expert that has: {other}" if other else "its owner's worker contributes first"

    for digest in experts:
        if digest not in contributed:
            found, todo = f"expert {digest} has no contribution under trunk {trunk.digest}", _instead(digest)
            raise RefusedError(ProblemType.NOT_READY, found, where="experts", todo=todo)
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
        withdrawn=withdrawn,
        left_out=[] if asked is None else asked.missing,
        solver=SOLVER,
    )


def _require_known(options: SolveOptions, domains: list[str]) -> None:
    weights = options.domain_weights
    if weights != "balanced" and (unknown := sorted(weights.keys() - set(domains))):
        found = f"{', '.join(unknown)}; the version's domains are {', '.join(domains)}"
        todo = "name domains of the version"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="options.domain_weights", todo=todo)


@router.get("/versions")
def list_versions(request: Request, caller: Anyone, after: After = 0, newest: Newest = False) -> Page[Version]:
    """Lists versions. Role: any."""
    with reading(request.app.state.engine) as session:
        return page(session, select(VersionRow), VersionRow.number, after, views.versions(session), newest=newest)


def find_version(session: Session, number: int, where: str = "number") -> VersionRow:
    """The version of that number.

    Raises:
        RefusedError: there is none.
    """
    row = session.get(VersionRow, number)
    if row is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"no version {number}", where=where, todo="see GET /v1/versions")
    return row


def require_served(row: VersionRow) -> None:
    """Requires that the version's files are there for consumers.

    Raises:
        RefusedError: it is retired, or withheld.
    """
    if row.retired is not None:
        raise RefusedError(ProblemType.GONE, f"version {row.number} is retired", todo="use another version")
    if row.withheld is not None:
        found = f"version {row.number} is withheld: it contains a withdrawn expert"
        raise RefusedError(ProblemType.GONE, found, todo="use another version, or wait for the next one")


@router.get("/versions/{number}")
def show_version(request: Request, caller: Anyone, number: Number) -> Version:
    """One version with its lineage and files. Role: any."""
    with reading(request.app.state.engine) as session:
        return views.versions(session)(find_version(session, number))


@router.patch("/versions/{number}")
def change_version(request: Request, caller: Operator, number: Number, change: VersionChange) -> Version:
    """Sets a version's note or tags; nothing else of it ever changes. Role: operator."""
    with transaction(request.app.state.engine) as session:
        row = find_version(session, number)
        if change.note is not None:
            row.note = change.note
        if change.tags is not None:
            row.tags = sorted(set(change.tags))
        session.flush()
        return views.versions(session)(row)


@router.delete("/versions/{number}")
def retire_version(request: Request, caller: Operator, number: Number) -> Version:
    """Retires a version: its number and lineage stay, files that no other version has go.

    Refused while an alias points to it. The same again changes nothing. Role: operator.
    """
    state = request.app.state
    with transaction(state.engine) as session:
        row = find_version(session, number)
        retire_versions(session, [row])
        view = views.versions(session)(row)
    state.workflows.drop_folders([], [number])
    collect(state.engine, state.blobs)
    return view


@router.get("/versions/{number}/report")
def show_report(request: Request, caller: OperatorOrReader, number: Number) -> SolveReport:
    """What solving its routers showed, layer by layer. Role: operator or reader."""
    with reading(request.app.state.engine) as session:
        row = find_version(session, number)
    require_served(row)
    return SolveReport.model_validate_json(_content_of(request, row, REPORT_FILE))


def _content_of(request: Request, row: VersionRow, name: str) -> bytes:
    path: Path = request.app.state.blobs.local(_digest_of(row, name))
    return path.read_bytes()


def _digest_of(row: VersionRow, name: str) -> str:
    for file in row.files:
        if file["name"] == name:
            return str(file["sha256"])
    raise RefusedError(ProblemType.NOT_FOUND, f"version {row.number} has no file {name!r}")


@router.get("/versions/{number}/card", response_class=Markdown)
def show_card(request: Request, caller: Anyone, number: Number) -> Markdown:
    """The version's model card, with what is to be said of it by now on top. Role: any."""
    with reading(request.app.state.engine) as session:
        row = find_version(session, number)
        require_served(row)
        gone = views.versions(session)(row).contains_withdrawn
        domains = {each.digest: each.domain for each in session.scalars(select(ExpertRow))}
    text = _content_of(request, row, "README.md").decode()
    if gone:
        names = ", ".join(f"{domains[digest]} (`{digest}`)" for digest in gone)
        text = f"> This version still contains parameters of experts that were withdrawn: {names}.\n\n{text}"
    return Markdown(text)


@router.get("/versions/{number}/compare/{other}")
def compare_versions(request: Request, caller: Anyone, number: Number, other: Number) -> Comparison:
    """What differs from one version to the other, and how many bytes that is to fetch. Role: any."""
    with reading(request.app.state.engine) as session:
        view = views.versions(session)
        return compare(view(find_version(session, number)), view(find_version(session, other, "other")))


@router.get("/versions/{number}/signatures")
def list_signatures(request: Request, caller: Anyone, number: Number) -> list[ContributionSignature]:
    """Who vouches for each contribution that the version, or its trunk, was made of. Role: any."""
    with reading(request.app.state.engine) as session:
        made = Lineage.model_validate(find_version(session, number).lineage)
        merged = session.scalars(select(TrunkRow.contributions).where(TrunkRow.digest == made.trunk)).one()
        return [*signatures(session, "router", made.contributions), *signatures(session, "trunk", merged)]


@router.get("/versions/{number}/files/{name}", response_class=FileResponse)
def version_content(request: Request, caller: Anyone, number: Number, name: str) -> Response:
    """A file of a version; ranges are served. Role: any.

    An owner gets it if its own ready expert is in the version, all others in it allow redistribution, and none is
    withdrawn.
    """
    with reading(request.app.state.engine) as session:
        row = find_version(session, number)
        require_served(row)
        if caller.role is Role.OWNER:
            _require_shared(session, own_name(caller), row)
    return content(request, _digest_of(row, name), name)


def _require_shared(session: Session, owner: str, row: VersionRow) -> None:
    """Requires that an owner may have a version's files.

    Raises:
        RefusedError: names the domains because of which it may not.
    """
    lineage = row.lineage
    contains = [*lineage["experts"], *views.versions(session)(row).contains_withdrawn]
    experts = list(session.scalars(select(ExpertRow).where(ExpertRow.digest.in_(contains)).order_by(ExpertRow.number)))
    if not any(each.owner == owner and each.state == ExpertState.READY.value for each in experts):
        found, todo = f"no ready expert of yours is in version {row.number}", "ask the operator for a reader's token"
        raise RefusedError(ProblemType.FORBIDDEN, found, where="number", todo=todo)
    gone = [each.domain for each in experts if each.withdrawn is not None]
    if gone:
        found = f"version {row.number} contains withdrawn experts: {', '.join(gone)}"
        raise RefusedError(ProblemType.FORBIDDEN, found, where="number", todo="wait for a version without them")
    kept = [each.domain for each in experts if each.owner != owner and not each.redistribute]
    if kept:
        found = f"in version {row.number} these domains don't allow redistribution: {', '.join(kept)}"
        todo = "their owners can allow it: redistribute = true in their policy"
        raise RefusedError(ProblemType.FORBIDDEN, found, where="number", todo=todo)
