"""Experts."""

import re

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.errors import MoergeError
from moerge.models.expert_folder import counts, expert_digest
from moerge_coordinator.domain.intake import checked_family, others, require_held
from moerge_coordinator.domain.lifecycle import (
    containing,
    fitted_from,
    purge_expert,
    remerge,
    retire_versions,
    withdraw_expert,
)
from moerge_coordinator.domain.sources import require_allowed
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import OperatorOrOwner, own_name, require_own_domain
from moerge_coordinator.rest.lists import After, visible_page, visible_row
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage.database import reading, transaction
from moerge_coordinator.storage.references import collect
from moerge_coordinator.storage.tables import DomainRow, ExpertRow, TrunkRow
from moerge_proto.digests import Digest
from moerge_proto.experts import Expert, ExpertState, NewExpert, Purge, Purged, Withdraw, Withdrawal
from moerge_proto.messages import FileEntry, Page
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType

router = APIRouter(prefix="/experts", tags=["experts"])
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@router.post("", status_code=202)
def register(request: Request, caller: OperatorOrOwner, new: NewExpert) -> Expert:
    """Registers uploaded files as the expert of a domain, or fetches them from a source that the operator allows.

    Config, tokenizer and tensor headers of uploaded files are checked before this answers; everything else afterwards.
    The same again changes nothing but `redistribute`, if its owner asks. Role: owner; with a source also operator.
    """
    state = request.app.state
    owner = _owner(request, caller, new)
    digest = expert_digest(new.files)
    for name in new.files:
        if not _FILE_NAME.fullmatch(name) or not counts(name):
            found = f"{name!r} is no name of a config, a tokenizer's file or safetensors weights"
            raise RefusedError(ProblemType.INVALID_REQUEST, found, where="files", todo="leave it out")
    try:
        expert = None
        while expert is None:
            expert = _take(request, owner, new, digest, own=caller.role is Role.OWNER)
    except MoergeError:
        if new.source is None:
            state.uploads.discard(owner, list(new.files.values()))
        raise
    if expert.state is ExpertState.RECEIVED:
        state.workflows.start_expert(digest, new.trunk)
    return expert


def _owner(request: Request, caller: Identity, new: NewExpert) -> str:
    """Whose expert it is: the caller's, or the domain's owner's if an operator has it fetched."""
    if new.source is not None:
        require_allowed(new.source, request.app.state.settings.sources, "source")
        if caller.role is Role.OPERATOR:
            with reading(request.app.state.engine) as session:
                row = session.get(DomainRow, new.domain)
            if row is None:
                raise RefusedError(ProblemType.NOT_FOUND, f"no domain {new.domain!r}", where="domain")
            if new.redistribute:
                found, todo = "only its owner allows redistribution of an expert", "leave it out"
                raise RefusedError(ProblemType.FORBIDDEN, found, where="redistribute", todo=todo)
            return row.owner
    owner = own_name(caller)
    require_own_domain(caller, new.domain)
    return owner


def _take(request: Request, owner: str, new: NewExpert, digest: str, *, own: bool) -> Expert | None:
    """Checks the files and adds the row, or finds it; None if other experts came or went meanwhile: check again.

    Files of a source are only noted; they are checked when they are fetched. `own`: its owner asks.
    """
    state = request.app.state
    with transaction(state.engine) as session:
        if (known := _known(session, new, digest, own=own)) is not None:
            return known
        _require_fitted(session, new)
        if new.source is not None:
            noted = [FileEntry(name=name, sha256=sha256, size=0) for name, sha256 in sorted(new.files.items())]
            return _add(session, owner, new, digest, "", noted)
        before = others(session)
    entries = [
        FileEntry(name=name, sha256=sha256, size=state.uploads.held(owner, sha256, f"files.{name}"))
        for name, sha256 in sorted(new.files.items())
    ]
    who, vocabulary = f"expert of {new.domain!r}", state.settings.vocabulary
    place, reference = state.settings.home / "experts", state.workflows.reference_folder(before)
    family = checked_family(state.blobs, place, entries, reference, who, vocabulary)
    with transaction(state.engine) as session:
        if (known := _known(session, new, digest, own=own)) is not None:
            return known
        _require_fitted(session, new)
        if others(session) != before:  # two at once could each be the first, and unlike each other
            return None
        require_held(session, owner, entries)
        return _add(session, owner, new, digest, family, entries)


def _known(session: Session, new: NewExpert, digest: str, *, own: bool) -> Expert | None:
    """The same expert, if it is registered already; a refused one makes room for another. Its owner's word on
    redistribution is taken over.

    Raises:
        RefusedError: the domain has another expert, or the expert another domain.
    """
    domain, place = new.domain, _place(new)
    query = select(ExpertRow).where((ExpertRow.domain == domain) | (ExpertRow.digest == digest))
    rows = session.scalars(query.where(ExpertRow.withdrawn.is_(None))).all()
    for row in rows:
        if row.digest != digest and (row.fitted_from, row.fitted_to) != place:
            continue
        same = (row.domain, row.digest, row.fitted_from, row.fitted_to) == (domain, digest, *place)
        if same and (row.source is None or row.state != ExpertState.REFUSED.value):
            if own and new.fitted is None:
                for each in (row, *fitted_from(session, digest)):
                    each.redistribute = new.redistribute
            return views.expert(row)
        if row.state == ExpertState.REFUSED.value:  # a source may have been mended
            session.delete(row)
            session.flush()
        elif row.domain == domain and row.digest == digest:
            found = "the same files are registered already, fitted to nothing or to something else"
            raise RefusedError(ProblemType.CONFLICT, found, where="fitted", todo="see GET /v1/experts")
        elif row.domain == domain:
            fitted = "" if new.fitted is None else f" fitted to trunk {new.fitted.trunk}"
            found, where = f"domain {domain!r} has the expert {row.digest}{fitted}", "domain"
            todo = "an expert stays until it is withdrawn"
            raise RefusedError(ProblemType.CONFLICT, found, where=where, todo=todo)
        else:
            found = "the same files are the expert of another domain"
            raise RefusedError(ProblemType.CONFLICT, found, where="files", todo="one expert speaks for one domain")
    return None


def _place(new: NewExpert) -> tuple[str | None, str | None]:
    """The expert that it is fitted from, and the trunk that it is fitted to."""
    return (None, None) if new.fitted is None else (new.fitted.expert, new.fitted.trunk)


def _require_fitted(session: Session, new: NewExpert) -> None:
    """Requires that what a fitted expert comes from is the domain's ready expert, and that its trunk is in use.

    Raises:
        RefusedError: names which is not.
    """
    if new.fitted is None:
        return
    trained = session.scalar(select(ExpertRow).where(ExpertRow.digest == new.fitted.expert))
    own = trained is not None and trained.fitted_to is None and trained.domain == new.domain
    if trained is None or not own or trained.state != ExpertState.READY.value:
        found = f"{new.fitted.expert} is not the ready expert of {new.domain!r}"
        raise RefusedError(ProblemType.NOT_READY, found, where="fitted.expert", todo="register that one first")
    trunk = session.scalar(select(TrunkRow).where(TrunkRow.digest == new.fitted.trunk))
    if trunk is None or trunk.retired is not None:
        found = f"trunk {new.fitted.trunk} is {'not there' if trunk is None else 'retired'}"
        raise RefusedError(ProblemType.WRONG_TRUNK, found, where="fitted.trunk", todo="fit it to the current one")


def _add(session: Session, owner: str, new: NewExpert, digest: str, family: str, entries: list[FileEntry]) -> Expert:
    row = session.scalar(select(ExpertRow).where(ExpertRow.digest == digest))
    redistribute = new.redistribute
    if new.fitted is not None:
        allowed = select(ExpertRow.redistribute).where(ExpertRow.digest == new.fitted.expert)
        redistribute = session.scalars(allowed).one()
    if row is None:  # else it was withdrawn and comes again
        row = ExpertRow(digest=digest)
        session.add(row)
    row.domain, row.owner, row.license, row.family = new.domain, owner, new.license, family
    row.redistribute = redistribute
    row.fitted_from, row.fitted_to = _place(new)
    row.state, row.withdrawn, row.purged, row.source = ExpertState.RECEIVED.value, None, None, new.source
    row.files = [entry.model_dump() for entry in entries]
    session.flush()
    return views.expert(row)


@router.get("")
def list_experts(request: Request, caller: OperatorOrOwner, after: After = 0) -> Page[Expert]:
    """Lists experts; an owner sees its own. Role: operator or owner."""
    return visible_page(request, caller, ExpertRow, after, views.expert)


@router.get("/{digest}")
def show_expert(request: Request, caller: OperatorOrOwner, digest: Digest) -> Expert:
    """One expert; an owner sees its own. Role: operator or owner."""
    with reading(request.app.state.engine) as session:
        return views.expert(visible_row(session, caller, ExpertRow, digest))


@router.post("/{digest}/withdraw")
def withdraw(request: Request, caller: OperatorOrOwner, digest: Digest, how: Withdraw) -> Withdrawal:
    """Withdraws an expert, those fitted from it, and all their contributions (law 5). The same again changes nothing.

    Trunks that contain it are retired; if the current one does, the trunk that takes its place is being merged. Role:
    operator or owner.
    """
    state = request.app.state
    with transaction(state.engine) as session:
        row = visible_row(session, caller, ExpertRow, digest)
        if row.state == ExpertState.REFUSED.value:
            raise RefusedError(ProblemType.CONFLICT, "a refused expert is nowhere to be withdrawn from", where="digest")
        trunks, versions = withdraw_expert(session, row, serve=how.serve)
        expert, names = views.expert(row), [trunk.digest for trunk in trunks]
        numbers = [version.number for version in versions]
    remerge = state.workflows.start_remerge()
    return Withdrawal(expert=expert, trunks=names, versions=numbers, remerge=remerge)


@router.post("/{digest}/purge")
def purge(request: Request, caller: OperatorOrOwner, digest: Digest, how: Purge) -> Purged:
    """Removes a withdrawn expert's files, and the statistics sent for it, wherever nothing else needs them.

    Published versions that contain it keep their files until they are retired. Role: operator or owner.
    """
    state = request.app.state
    if how.retire and caller.role is not Role.OPERATOR:
        raise RefusedError(ProblemType.FORBIDDEN, "an operator retires versions", where="retire")
    with transaction(state.engine) as session:
        row = visible_row(session, caller, ExpertRow, digest)
        if row.state != ExpertState.WITHDRAWN.value:
            found = f"the expert is {row.state}"
            raise RefusedError(ProblemType.CONFLICT, found, where="digest", todo="withdraw it first")
        trunks, versions = containing(session, digest)
        if any(trunk.current for trunk in trunks) and remerge(session) is not None:
            todo = "wait until the remerge is done, then purge"
            raise RefusedError(ProblemType.NOT_READY, "the current trunk still contains it", where="digest", todo=todo)
        if how.retire:
            retire_versions(session, versions)
        purged = purge_expert(session, row)
        numbers = [version.number for version in versions]
    retired = numbers if how.retire else []
    state.workflows.drop_folders(purged, retired)
    removed, size = collect(state.engine, state.blobs)
    return Purged(removed=removed, bytes=size, versions=[] if how.retire else numbers)
