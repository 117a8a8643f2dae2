"""Experts."""

import re

from fastapi import APIRouter, Request
from sqlalchemy import select

from moerge.errors import MoergeError
from moerge.experts import counts, expert_digest
from moerge_coordinator import views
from moerge_coordinator.auth import OperatorOrOwner, own_name, require_own_domain
from moerge_coordinator.database import transaction
from moerge_coordinator.intake import show_folder
from moerge_coordinator.refusals import RefusedError
from moerge_coordinator.routes.pages import After, page
from moerge_coordinator.sources import require_allowed
from moerge_coordinator.tables import DomainRow, ExpertRow
from moerge_proto.digests import Digest
from moerge_proto.experts import Expert, ExpertState, NewExpert
from moerge_proto.messages import FileEntry, Page
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType

router = APIRouter(prefix="/experts", tags=["experts"])
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@router.post("", status_code=202)
def register(request: Request, caller: OperatorOrOwner, new: NewExpert) -> Expert:
    """Registers uploaded files as the expert of a domain, or fetches them from a source that the operator allows.

    Config, tokenizer and tensor headers of uploaded files are checked before this answers; everything else afterwards.
    The same again changes nothing. Role: owner; with a source also operator.
    """
    state = request.app.state
    owner = _owner(request, caller, new)
    digest = expert_digest(new.files)
    for name in new.files:
        if not _FILE_NAME.fullmatch(name) or not counts(name):
            found = f"{name!r} is no name of a config, a tokenizer's file or safetensors weights"
            raise RefusedError(ProblemType.INVALID_REQUEST, found, where="files", todo="leave it out")
    with state.registering:  # two at once could each be the first, and unlike each other
        try:
            expert = _known(request, new.domain, digest) or _take(request, owner, new, digest)
        except MoergeError:
            if new.source is None:
                state.uploads.discard(owner, list(new.files.values()))
            raise
    if expert.state is ExpertState.RECEIVED:
        state.workflows.start_expert(digest)
    return expert


def _owner(request: Request, caller: Identity, new: NewExpert) -> str:
    """Whose expert it is: the caller's, or the domain's owner's if an operator has it fetched."""
    if new.source is not None:
        require_allowed(new.source, request.app.state.settings.sources, "source")
        if caller.role is Role.OPERATOR:
            with transaction(request.app.state.engine) as session:
                row = session.get(DomainRow, new.domain)
            if row is None:
                raise RefusedError(ProblemType.NOT_FOUND, f"no domain {new.domain!r}", where="domain")
            return row.owner
    owner = own_name(caller)
    require_own_domain(caller, new.domain)
    return owner


def _take(request: Request, owner: str, new: NewExpert, digest: str) -> Expert:
    """Shows uploaded files as a folder, checks them, and adds the row; those of a source are only noted."""
    state = request.app.state
    if new.source is not None:
        noted = [FileEntry(name=name, sha256=sha256, size=0) for name, sha256 in sorted(new.files.items())]
        return _add(request, owner, new, digest, "", noted)
    entries = [
        FileEntry(name=name, sha256=sha256, size=state.uploads.held(owner, sha256, f"files.{name}"))
        for name, sha256 in sorted(new.files.items())
    ]
    target, who = state.workflows.expert_folder(digest), f"expert of {new.domain!r}"
    family = show_folder(state.engine, state.blobs, target, entries, who, state.settings.vocabulary)
    return _add(request, owner, new, digest, family, entries)


def _known(request: Request, domain: str, digest: str) -> Expert | None:
    """The same expert, if it is registered already; a refused one makes room for another.

    Raises:
        RefusedError: the domain has another expert, or the expert another domain.
    """
    with transaction(request.app.state.engine) as session:
        rows = session.scalars(select(ExpertRow).where((ExpertRow.domain == domain) | (ExpertRow.digest == digest)))
        for row in rows.all():
            same = row.domain == domain and row.digest == digest
            if same and (row.source is None or row.state != ExpertState.REFUSED.value):
                return views.expert(row)
            if row.state == ExpertState.REFUSED.value:
                session.delete(row)  # a source may have been mended
            elif row.domain == domain:
                found, where = f"domain {domain!r} has the expert {row.digest}", "domain"
                todo = "an expert stays until it is withdrawn"
                raise RefusedError(ProblemType.CONFLICT, found, where=where, todo=todo)
            else:
                found = "the same files are the expert of another domain"
                raise RefusedError(ProblemType.CONFLICT, found, where="files", todo="one expert speaks for one domain")
    return None


def _add(request: Request, owner: str, new: NewExpert, digest: str, family: str, entries: list[FileEntry]) -> Expert:
    row = ExpertRow(
        digest=digest,
        domain=new.domain,
        owner=owner,
        license=new.license,
        family=family,
        state=ExpertState.RECEIVED.value,
        files=[entry.model_dump() for entry in entries],
        source=new.source,
    )
    with transaction(request.app.state.engine) as session:
        session.add(row)
        session.flush()
        return views.expert(row)


@router.get("")
def list_experts(request: Request, caller: OperatorOrOwner, after: After = 0) -> Page[Expert]:
    """Lists experts; an owner sees its own. Role: operator or owner."""
    query = select(ExpertRow)
    if caller.role is Role.OWNER:
        query = query.where(ExpertRow.owner == caller.owner)
    with transaction(request.app.state.engine) as session:
        return page(session, query, ExpertRow.number, after, views.expert)


@router.get("/{digest}")
def show_expert(request: Request, caller: OperatorOrOwner, digest: Digest) -> Expert:
    """One expert; an owner sees its own. Role: operator or owner."""
    with transaction(request.app.state.engine) as session:
        row = session.scalar(select(ExpertRow).where(ExpertRow.digest == digest))
    if row is None or (caller.role is Role.OWNER and row.owner != caller.owner):
        raise RefusedError(ProblemType.NOT_FOUND, f"no expert {digest}")
    return views.expert(row)
