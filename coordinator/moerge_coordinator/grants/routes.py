"""Grants and parts of versions."""

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import select

from moerge_coordinator.domain import versions
from moerge_coordinator.domain.owners import require_own_domain
from moerge_coordinator.grants import parts, rules
from moerge_coordinator.rest.auth import DomainOwner, Operator, OperatorOrOwner, OperatorOrReader, Reader, Route
from moerge_coordinator.rest.lists import After, Number, page
from moerge_coordinator.rest.state import Coordinator
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import GrantRow
from moerge_proto.digests import Name
from moerge_proto.grants import Decided, DomainReaders, Grant, NewGrant, Usable, VersionPart
from moerge_proto.messages import Page
from moerge_proto.owners import Role
from moerge_proto.workflows import Workflow, WorkflowState

router = APIRouter(tags=["grants"], route_class=Route)
Domain = Annotated[Name, Path()]
Reader_ = Annotated[Name, Path(description="The name of tokens, or of a group of them; `all` for all readers.")]


@router.put("/grants/{domain}/{reader}")
def grant(state: Coordinator, caller: DomainOwner, domain: Domain, reader: Reader_, new: NewGrant) -> Decided:
    """Grants a domain's experts, present and later ones, to a reader. Idempotent.

    The owner's first decision on a domain ends the federation's default for it. What a reader has pulled before the end
    of a grant can't be taken back.
    """
    with state.database.transaction("grant expert") as session:
        return rules.decide(session, state.settings, caller, domain, reader, new.until, granted=True)


@router.delete("/grants/{domain}/{reader}")
def revoke(state: Coordinator, caller: DomainOwner, domain: Domain, reader: Reader_) -> Decided:
    """Revokes a grant. Idempotent. Revoking `all` closes a domain that has the federation's default."""
    with state.database.transaction("revoke grant") as session:
        return rules.decide(session, state.settings, caller, domain, reader, None, granted=False)


@router.get("/grants")
def list_grants(state: Coordinator, caller: OperatorOrOwner, after: After = 0) -> Page[Grant]:
    """Lists all decisions of owners; for an owner, only its own. The last one of a domain and a reader counts."""
    with state.database.reading() as session:
        query = select(GrantRow)
        if caller.role is Role.OWNER:
            query = query.where(GrantRow.owner == caller.owner)
        return page(session, query, GrantRow.number, after, lambda row: message(Grant, row))


@router.get("/grants/usable")
def list_usable(state: Coordinator, caller: OperatorOrReader) -> list[Usable]:
    """The domains whose experts the caller may use."""
    with state.database.reading() as session:
        return list(rules.usable(session, state.settings, caller))


@router.get("/grants/{domain}")
def show_readers(state: Coordinator, caller: OperatorOrOwner, domain: Domain) -> DomainReaders:
    """The readers who may use a domain's experts; for an owner, only of its own domains."""
    with state.database.reading() as session:
        if caller.role is Role.OWNER:
            require_own_domain(caller, domain)
        return rules.of_domain(session, state.settings, domain)


@router.get("/versions/{number}/part")
def show_part(state: Coordinator, caller: Reader, number: Number) -> VersionPart:
    """The part of a version that the reader may use: the version itself, if that is all of it."""
    with state.database.reading() as session:
        return parts.part_of(session, state.settings, versions.find(session, number), caller)


@router.post("/versions/{number}/part", status_code=202)
def make_part(state: Coordinator, caller: Reader, number: Number) -> Workflow:
    """Makes the part of a version whose experts the reader may use, unless it is there; the result is its name."""
    with state.database.reading() as session:
        version = versions.find(session, number)
        lineage = parts.reader_lineage(session, state.settings, version, caller)
        name = version.name if lineage is None else parts.name_of(version, lineage.domains)
        made = parts.found(session, name) is not None
        if made or version.retired is not None:
            versions.find_served(session, name if made else number)
        elif lineage is not None:
            parts.require_makeable(session, version, lineage)
    if lineage is None or made:
        return Workflow(id=f"version-{name.replace('+', '-')}", state=WorkflowState.DONE, result=name)
    return state.workflows.start_version(lineage, part_of=number)


@router.get("/versions/{number}/parts")
def list_parts(state: Coordinator, caller: Operator, number: Number) -> list[VersionPart]:
    """The parts of a version that readers may use, and the version itself where one may use all of it."""
    with state.database.reading() as session:
        return parts.list_parts(session, state.settings, versions.find_served(session, number))


@router.post("/versions/{number}/parts", status_code=202)
def make_parts(state: Coordinator, caller: Operator, number: Number) -> list[Workflow]:
    """Makes the parts of a version that readers may use, before they pull; the results are their names."""
    with state.database.reading() as session:
        version = versions.find_served(session, number)
        missing = [part for part in parts.list_parts(session, state.settings, version) if not part.made]
        lineages = [parts.part_lineage(session, version, part.domains) for part in missing]
    return [state.workflows.start_version(lineage, part_of=number) for lineage in lineages]
