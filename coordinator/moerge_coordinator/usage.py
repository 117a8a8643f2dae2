"""The use of versions' experts, as consumers report it: rounded shares for each expert's owner."""

from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Request
from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import versions
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import Anyone, OperatorOrReader, Route
from moerge_coordinator.rest.lists import After, VersionPath, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.tables import UsageRow, VersionRow, tell
from moerge_proto.messages import Page
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType
from moerge_proto.usage import ExpertShares, NewUsage, Usage

router = APIRouter(tags=["usage"], route_class=Route)


@router.put("/versions/{number}/usage")
def report_usage(
    state: Coordinator, caller: OperatorOrReader, request: Request, number: VersionPath, new: NewUsage
) -> list[Usage]:
    """Accepts the shares of a served version's experts in a consumer's own requests.

    They replace the earlier report of the same reader about the version: the name of its token, or else the token.
    """
    with state.database.transaction("report usage") as session:
        rows = report(session, caller, reporter_of(caller, request), number, new.experts)
        return [view(session, row) for row in rows]


@router.get("/usage")
def list_usage(state: Coordinator, caller: Anyone, request: Request, after: After = 0) -> Page[Usage]:
    """Lists reported shares; for an owner, those of its own domains; for a reader, its own reports."""
    with state.database.reading() as session:
        query = visible(caller, reporter_of(caller, request))
        return page(session, query, UsageRow.number, after, lambda row: view(session, row))


def reporter_of(caller: Identity, request: Request) -> str:
    """The caller's name, or else its token; names have no space."""
    return caller.name or f"token {getattr(request.state, 'token', None)}"


def report(
    session: Session, caller: Identity, reporter: str, name: str, experts: Mapping[str, ExpertShares]
) -> Sequence[UsageRow]:
    """The rows of a report, in place of the reporter's earlier ones about the version."""
    version = versions.find_served(session, name)
    number, domains = version.number, version.lineage.domains
    if unknown := sorted(experts.keys() - set(domains)):
        problem = f"version {name} has no expert of {', '.join(unknown)}"
        todo = f"use its domains: {', '.join(domains)}"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="experts", todo=todo)
    session.execute(delete(UsageRow).where(UsageRow.version == number, UsageRow.reporter == reporter))
    rows = [
        UsageRow(version=number, reporter=reporter, reader=caller.name, domain=domain, shares=experts[domain])
        for domain in domains
        if domain in experts
    ]
    session.add_all(rows)
    session.flush()
    tell(session, f"usage of version {name} has arrived from {caller.name or f'a {caller.role.value}'}")
    return rows


def view(session: Session, row: UsageRow) -> Usage:
    columns = {name: getattr(row, name) for name in Usage.model_fields}
    return Usage.model_validate(columns | {"version": session.get_one(VersionRow, row.version).name})


def visible(caller: Identity, reporter: str) -> Select[UsageRow]:
    query = select(UsageRow)
    if caller.role is Role.OWNER:
        return query.where(UsageRow.domain.in_(caller.domains))
    return query if caller.role is Role.OPERATOR else query.where(UsageRow.reporter == reporter)
