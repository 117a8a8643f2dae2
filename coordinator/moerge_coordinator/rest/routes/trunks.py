"""Trunks."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, Response
from sqlalchemy import Engine, select

from moerge.trunk.methods.method import Method
from moerge.trunk.methods.registry import METHODS, require_options
from moerge_coordinator.domain.trunk_history import trunk_history
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import Anyone, Operator, OperatorOrOwner
from moerge_coordinator.rest.content import content
from moerge_coordinator.rest.lists import After, Newest, page
from moerge_coordinator.rest.routes.rounds import ended_round
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage.database import reading
from moerge_coordinator.storage.tables import ExpertRow, TrunkContributionRow, TrunkRow
from moerge_proto.digests import Digest
from moerge_proto.experts import ExpertState
from moerge_proto.history import TrunkHistory
from moerge_proto.messages import Page
from moerge_proto.options import PAPER, RECOMMENDED
from moerge_proto.owners import Role
from moerge_proto.problems import ProblemType
from moerge_proto.trunks import NewTrunk, Trunk, TrunkLineage, TrunkOptions
from moerge_proto.workflows import Workflow

router = APIRouter(prefix="/trunks", tags=["trunks"])
TrunkName = Annotated[str, PathParameter(pattern="^([0-9a-f]{64}|current)$")]


@router.post("", status_code=202)
def merge(request: Request, caller: Operator, new: NewTrunk) -> Workflow:
    """Merges a trunk, which then is the current one. Role: operator."""
    named = None if new.method is None else _checked(METHODS[new.method], new)
    with reading(request.app.state.engine) as session:
        query = select(ExpertRow).where(ExpertRow.state == ExpertState.READY.value).order_by(ExpertRow.number)
        found = list(session.scalars(query))
        ready = {row.digest: row.domain for row in found if row.fitted_to is None}
        fitted = {row.digest: row.trained for row in found if row.fitted_to is not None}
        rows = session.scalars(select(TrunkContributionRow).where(TrunkContributionRow.active))
        contributions = {row.expert: row.digest for row in rows}
    asked = None if new.round is None else ended_round(request, new.round, "trunk")
    base = new.options.base
    _require_trained(fitted, "options.base", [base] if base is not None else [])
    _require_trained(fitted, "experts", new.experts or [])
    if base is not None and base not in ready:
        raise _not_ready(base, "options.base")
    experts = [digest for digest in ready if digest != base] if new.experts is None else new.experts
    if asked is not None:
        experts = [digest for digest in experts if ready[digest] in asked.contributed]
    if named is not None and named.base_only:
        experts = [str(base)]
    if unknown := [digest for digest in experts if digest not in ready]:
        raise _not_ready(unknown[0], "experts")
    if not experts or len(set(experts)) < len(experts):
        raise RefusedError(ProblemType.NOT_READY, "a trunk needs at least one expert, and none twice", where="experts")
    complete = asked is not None or contributions.keys() >= set(experts)
    method = named or METHODS[RECOMMENDED.method if complete else PAPER.method]
    if method.solved:
        _require_contributions(experts, ready, contributions)
    if new.options.weights:
        _require_weights(new.options, [ready[digest] for digest in experts])
    lineage = TrunkLineage(
        method=method.name,
        options=new.options,
        experts=experts,
        contributions=[contributions[digest] for digest in experts] if method.solved else [],
        revision=method.revision,
    )
    workflow: Workflow = request.app.state.workflows.start_trunk(lineage)
    return workflow


def _checked(method: Method, new: NewTrunk) -> Method:
    """The method, once its options are checked, and that a round is for a solved one.

    Raises:
        MoergeError: names the option.
        RefusedError: a round is named, and the method needs no trunk contributions.
    """
    require_options(method, new.options)
    if new.round is not None and not method.solved:
        solved = ", ".join(each.name for each in METHODS.values() if each.solved)
        found = f"the method {method.name!r} takes no round"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="round", todo=f"choose one of {solved}")
    return method


def _require_trained(fitted: Mapping[str, str], where: str, experts: list[str]) -> None:
    """Requires that none is of `fitted`: digest -> the expert that it is fitted from."""
    for digest in experts:
        if digest in fitted:
            found = f"expert {digest} is fitted to a trunk, so it isn't merged into one"
            todo = f"name the expert that it is fitted from: {fitted[digest]}"
            raise RefusedError(ProblemType.INVALID_REQUEST, found, where=where, todo=todo)


def _not_ready(digest: str, where: str) -> RefusedError:
    return RefusedError(ProblemType.NOT_READY, f"expert {digest} is not ready", where=where, todo="see GET /v1/experts")


def _require_contributions(experts: list[str], domains: Mapping[str, str], contributions: Mapping[str, str]) -> None:
    if missing := [domains[digest] for digest in experts if digest not in contributions]:
        raise RefusedError(
            ProblemType.NOT_READY,
            f"no trunk contribution of {', '.join(missing)}",
            where="method",
            todo="their owners run the worker with --trunk-contribution, or use another method",
        )


def _require_weights(options: TrunkOptions, domains: list[str]) -> None:
    if unknown := sorted(options.weights.keys() - set(domains)):
        found = f"{', '.join(unknown)}; the trunk's domains are {', '.join(domains)}"
        raise RefusedError(
            ProblemType.INVALID_REQUEST, found, where="options.weights", todo="name domains of the trunk"
        )
    if not any(options.weights.get(domain, 1.0) for domain in domains):
        found = "every weight is zero"
        raise RefusedError(ProblemType.INVALID_REQUEST, found, where="options.weights", todo="give one above zero")


@router.get("")
def list_trunks(request: Request, caller: OperatorOrOwner, after: After = 0, newest: Newest = False) -> Page[Trunk]:
    """Lists trunks. Role: operator or owner."""
    with reading(request.app.state.engine) as session:
        return page(session, select(TrunkRow), TrunkRow.number, after, views.trunk, newest=newest)


def find_trunk(engine: Engine, digest: str | None) -> TrunkRow:
    """The trunk of that digest, or the current one.

    Raises:
        RefusedError: there is none.
    """
    with reading(engine) as session:
        query = select(TrunkRow)
        query = query.where(TrunkRow.current) if digest is None else query.where(TrunkRow.digest == digest)
        row = session.scalar(query)
    if row is None:
        raise RefusedError(
            ProblemType.NOT_FOUND, f"no trunk {digest or 'yet'}", where="trunk", todo="an operator merges one"
        )
    return row


@router.get("/{digest}")
def show_trunk(request: Request, caller: OperatorOrOwner, digest: TrunkName) -> Trunk:
    """One trunk, by digest or as `current`. Role: operator or owner."""
    return views.trunk(_named(request, digest))


def _named(request: Request, name: str) -> TrunkRow:
    return find_trunk(request.app.state.engine, None if name == "current" else name)


@router.get("/{digest}/history")
def show_history(request: Request, caller: Anyone, digest: TrunkName) -> TrunkHistory:
    """How a trunk's versions did as experts joined, by what owners reported, and what a remerge is expected to gain.

    An owner sees its own domains' scores, and the averages. Role: any.
    """
    row = _named(request, digest)
    with reading(request.app.state.engine) as session:
        history = trunk_history(session, row)
    if caller.role is not Role.OWNER:
        return history
    versions = [
        each.model_copy(
            update={"scores": [score for score in each.scores if score.domain in caller.domains], "behind": None}
        )
        for each in history.versions
    ]
    return history.model_copy(update={"versions": versions, "remerge": None, "before": None})


@router.get("/{digest}/files/{name}", response_class=FileResponse)
def trunk_content(request: Request, caller: OperatorOrOwner, digest: Digest, name: str) -> Response:
    """A file of a trunk; ranges are served. Role: operator or owner."""
    row = find_trunk(request.app.state.engine, digest)
    sha256 = next((file["sha256"] for file in row.files if file["name"] == name), None)
    if sha256 is None:
        raise RefusedError(ProblemType.NOT_FOUND, f"the trunk has no file {name!r}")
    return content(request, sha256, name)
