"""Experts."""

import re
import shutil
import tempfile
from pathlib import Path

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.architectures.config import read_config
from moerge.errors import MoergeError
from moerge.experts import check_expert, expert_digest
from moerge_coordinator import views
from moerge_coordinator.auth import DomainOwner, OperatorOrOwner, own_name, require_own_domain
from moerge_coordinator.database import reading, transaction
from moerge_coordinator.lifecycle import containing, purge_expert, remerge, retire_versions, withdraw_expert
from moerge_coordinator.needed import collect
from moerge_coordinator.refusals import RefusedError
from moerge_coordinator.routes.pages import After, page
from moerge_coordinator.tables import ExpertRow, HoldingRow
from moerge_proto.digests import Digest
from moerge_proto.experts import Expert, ExpertState, NewExpert, Purge, Purged, Withdraw, Withdrawal
from moerge_proto.messages import FileEntry, Page
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType

router = APIRouter(prefix="/experts", tags=["experts"])
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@router.post("", status_code=202)
def register(request: Request, caller: DomainOwner, new: NewExpert) -> Expert:
    """Registers uploaded files as the expert of a domain.

    Config, tokenizer and tensor headers are checked before this answers; the weights afterwards. The same again
    changes nothing. Role: owner.
    """
    state = request.app.state
    owner = own_name(caller)
    require_own_domain(caller, new.domain)
    digest = expert_digest(new.files)
    for name in new.files:
        if not _FILE_NAME.fullmatch(name):
            raise RefusedError(ProblemType.INVALID_REQUEST, f"{name!r} is not a plain file name", where="files")
    try:
        expert = None
        while expert is None:
            expert = _take(request, owner, new, digest)
    except MoergeError:
        state.uploads.discard(owner, list(new.files.values()))
        raise
    if expert.state is ExpertState.RECEIVED:
        state.workflows.start_expert(digest, new.trunk)
    return expert


def _take(request: Request, owner: str, new: NewExpert, digest: str) -> Expert | None:
    """Checks the files and adds the row, or finds it; None if other experts came or went meanwhile: check again."""
    state = request.app.state
    with transaction(state.engine) as session:
        if (known := _known(session, new.domain, digest)) is not None:
            return known
        others = _others(session)
    entries = [
        FileEntry(name=name, sha256=sha256, size=state.uploads.held(owner, sha256, f"files.{name}"))
        for name, sha256 in sorted(new.files.items())
    ]
    place: Path = state.settings.home / "experts"
    place.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".", dir=place))
    try:
        for entry in entries:
            state.blobs.link(entry.sha256, folder / entry.name)
        who, vocabulary = f"expert of {new.domain!r}", state.settings.vocabulary
        family, _ = check_expert(folder, _reference(request, others), who, vocabulary)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with transaction(state.engine) as session:
        if (known := _known(session, new.domain, digest)) is not None:
            return known
        if _others(session) != others:  # two at once could each be the first, and unlike each other
            return None
        _require_held(session, owner, entries)
        return _add(session, owner, new, digest, family.model_type, entries)


def _known(session: Session, domain: str, digest: str) -> Expert | None:
    """The same expert, if it is registered already; a refused one makes room for another.

    Raises:
        RefusedError: the domain has another expert, or the expert another domain.
    """
    query = select(ExpertRow).where((ExpertRow.domain == domain) | (ExpertRow.digest == digest))
    rows = session.scalars(query.where(ExpertRow.withdrawn.is_(None)))
    for row in rows.all():
        if row.domain == domain and row.digest == digest:
            return views.expert(row)
        if row.state == ExpertState.REFUSED.value:
            session.delete(row)
            session.flush()
        elif row.domain == domain:
            found, where = f"domain {domain!r} has the expert {row.digest}", "domain"
            todo = "an expert stays until it is withdrawn"
            raise RefusedError(ProblemType.CONFLICT, found, where=where, todo=todo)
        else:
            found = "the same files are the expert of another domain"
            raise RefusedError(ProblemType.CONFLICT, found, where="files", todo="one expert speaks for one domain")
    return None


def _others(session: Session) -> list[str]:
    """The experts that a new one must be like, oldest first."""
    alive = (ExpertState.RECEIVED.value, ExpertState.READY.value)
    query = select(ExpertRow.digest).where(ExpertRow.state.in_(alive))
    return list(session.scalars(query.order_by(ExpertRow.number)))


def _reference(request: Request, others: list[str]) -> Path | None:
    """The folder of the expert that all others must be like: the oldest of those with the longest vocabulary."""
    folders: list[Path] = [request.app.state.workflows.expert_folder(digest) for digest in others]
    return max(folders, key=lambda folder: read_config(folder).vocab_size, default=None)


def _require_held(session: Session, owner: str, entries: list[FileEntry]) -> None:
    """Requires that no refusal of another expert has taken a shared file away meanwhile."""
    for entry in entries:
        if session.get(HoldingRow, (owner, entry.sha256)) is None:
            where = f"files.{entry.name}"
            raise RefusedError(ProblemType.NOT_READY, "it was discarded meanwhile", where=where, todo="upload it again")


def _add(session: Session, owner: str, new: NewExpert, digest: str, family: str, entries: list[FileEntry]) -> Expert:
    row = session.scalar(select(ExpertRow).where(ExpertRow.digest == digest))
    if row is None:  # else it was withdrawn and comes again
        row = ExpertRow(digest=digest)
        session.add(row)
    row.domain, row.owner, row.license, row.family = new.domain, owner, new.license, family
    row.state, row.withdrawn, row.purged = ExpertState.RECEIVED.value, None, None
    row.files = [entry.model_dump() for entry in entries]
    session.flush()
    return views.expert(row)


@router.get("")
def list_experts(request: Request, caller: OperatorOrOwner, after: After = 0) -> Page[Expert]:
    """Lists experts; an owner sees its own. Role: operator or owner."""
    query = select(ExpertRow)
    if caller.role is Role.OWNER:
        query = query.where(ExpertRow.owner == caller.owner)
    with reading(request.app.state.engine) as session:
        return page(session, query, ExpertRow.number, after, views.expert)


@router.get("/{digest}")
def show_expert(request: Request, caller: OperatorOrOwner, digest: Digest) -> Expert:
    """One expert; an owner sees its own. Role: operator or owner."""
    with reading(request.app.state.engine) as session:
        return views.expert(_visible(session, caller, digest))


def _visible(session: Session, caller: Identity, digest: str) -> ExpertRow:
    row = session.scalar(select(ExpertRow).where(ExpertRow.digest == digest))
    if row is None or (caller.role is Role.OWNER and row.owner != caller.owner):
        raise RefusedError(ProblemType.NOT_FOUND, f"no expert {digest}", todo="see GET /v1/experts")
    return row


@router.post("/{digest}/withdraw")
def withdraw(request: Request, caller: OperatorOrOwner, digest: Digest, how: Withdraw) -> Withdrawal:
    """Withdraws an expert and all its contributions (law 5). The same again changes nothing. Role: operator or owner.

    Trunks that contain it are retired; if the current one does, the trunk that takes its place is being merged.
    """
    state = request.app.state
    with transaction(state.engine) as session:
        row = _visible(session, caller, digest)
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
        row = _visible(session, caller, digest)
        if row.state != ExpertState.WITHDRAWN.value:
            found = f"the expert is {row.state}"
            raise RefusedError(ProblemType.CONFLICT, found, where="digest", todo="withdraw it first")
        trunks, versions = containing(session, digest)
        if any(trunk.current for trunk in trunks) and remerge(session) is not None:
            todo = "wait until the remerge is done, then purge"
            raise RefusedError(ProblemType.NOT_READY, "the current trunk still contains it", where="digest", todo=todo)
        if how.retire:
            retire_versions(session, versions)
        purge_expert(session, row)
        numbers = [version.number for version in versions]
    retired = numbers if how.retire else []
    state.workflows.drop_folders([digest], retired)
    removed, size = collect(state.engine, state.blobs)
    return Purged(removed=removed, bytes=size, versions=[] if how.retire else numbers)
