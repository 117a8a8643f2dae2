"""Experts: registration, checks against other experts, acceptance or refusal."""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.documents.pool import pool_texts
from moerge.errors import MoergeError
from moerge.models.dense import require_parts
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import check_small_files, counts, expert_digest, is_weights, require_of_seed
from moerge_coordinator.domain import versions
from moerge_coordinator.domain.adapters import require_complete, require_no_pause
from moerge_coordinator.domain.owner_keys import expert_signer
from moerge_coordinator.domain.owners import own_name, require_own_domain
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.seeds import seed_of
from moerge_coordinator.domain.withdrawal import containing, purge_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import BodyRow, ExpertRow, HoldingRow, OwnerRow, notify, now, tell
from moerge_proto.experts import Expert, ExpertState, NewExpert, Parts
from moerge_proto.messages import FileEntry
from moerge_proto.owners import Identity
from moerge_proto.problems import Problem, ProblemType

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def register(ports: Ports, caller: Identity, new: NewExpert) -> Expert:
    """The expert of uploaded files, after a check of the headers; or of files to make of an adapter.

    A refusal discards its uploaded files.
    """
    owner = _owner(caller, new)
    _require_names(new)
    try:
        if new.adapter is None:
            return _register_uploaded(ports, owner, new)
        require_complete(ports, owner, new, new.adapter)
        with ports.database.transaction("register expert") as session:
            require_no_pause(session, owner)
            unsized = [FileEntry(name=name, sha256=sha256, size=0) for name, sha256 in sorted(new.files.items())]
            return _known(session, new) or _add(session, owner, new, "", unsized)
    except MoergeError:
        ports.uploads.discard(owner, list(new.files.values()))
        raise


def require_welcome(ports: Ports, caller: Identity, new: NewExpert) -> None:
    """Requires that an expert with these uploaded config and tokenizer files can be registered.

    A refusal discards its uploaded files, unless only an adapter's pause isn't over.
    """
    owner, small = _owner(caller, new), [name for name in sorted(new.files) if not is_weights(name)]
    _require_names(new)
    with ports.database.reading() as session:
        if new.adapter is not None:
            require_no_pause(session, owner)
        expert_signer(session, owner, new)
    try:
        with ports.database.reading() as session:
            _require_free(session, new)
            seed = seed_of(session, new.parts)
        entries = _held(ports, owner, {name: new.files[name] for name in small})
        with _checked(ports, entries, seed, new.domain):
            pass  # the weights are still with the owner
    except MoergeError:
        ports.uploads.discard(owner, [new.files[name] for name in small])
        raise


def _require_names(new: NewExpert) -> None:
    for name in new.files:
        if not _FILE_NAME.fullmatch(name) or not counts(name):
            problem = f"{name!r} is not the name of a config, tokenizer or safetensors file"
            raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="files", todo="remove it from the list")


def _owner(caller: Identity, new: NewExpert) -> str:
    """The calling owner, whose domain it must be."""
    owner = own_name(caller)
    require_own_domain(caller, new.domain)
    return owner


def _register_uploaded(ports: Ports, owner: str, new: NewExpert) -> Expert:
    known = partial(_known, new=new)
    with ports.database.transaction("find expert") as session:
        if (expert := known(session)) is not None:
            return expert
    entries = _held(ports, owner, new.files)

    def add(session: Session, family: str) -> Expert:
        return _add(session, owner, new, family, entries)

    return add_checked(ports, owner, entries, new.domain, known, add, new.parts)


def _held(ports: Ports, owner: str, files: Mapping[str, str]) -> list[FileEntry]:
    """Files that the owner has uploaded, with their sizes."""
    return [
        FileEntry(name=name, sha256=sha256, size=ports.uploads.held(owner, sha256, f"files.{name}"))
        for name, sha256 in sorted(files.items())
    ]


def add_checked(
    ports: Ports,
    owner: str,
    entries: Sequence[FileEntry],
    domain: str,
    known: Callable[[Session], Expert | None],
    add: Callable[[Session, str], Expert],
    parts: Parts,
) -> Expert:
    """The expert that `add` makes of these files and their family, in a transaction, after a check against the seed.

    `known` finds the same expert registered meanwhile.
    """
    with ports.database.reading() as session:
        seed = seed_of(session, parts)
    with _checked(ports, entries, seed, domain) as expert:
        require_parts(expert, own_head=parts.own_head)
    with ports.database.transaction("add expert") as session:
        if (same := known(session)) is not None:
            return same
        _require_held(session, owner, entries)
        return add(session, expert.family.model_type)


@contextmanager
def _checked(ports: Ports, entries: Sequence[FileEntry], seed: BodyRow, domain: str) -> Iterator[DenseFiles]:
    """An expert's files in a temporary folder, after checks of the small files against the seed's."""
    place, who = ports.folders.experts, f"expert of {domain!r}"
    place.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".", dir=place))
    try:
        expert = ports.folders.shown(entries, folder)
        check_small_files(expert, None, who)
        require_of_seed(ports.folders.seed(seed).side_files, expert, who, f"{seed.source}", pool_texts())
        yield expert
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_held(session: Session, owner: str, entries: Sequence[FileEntry]) -> None:
    """Requires that no other expert's refusal has removed a shared file meanwhile."""
    for entry in entries:
        if session.get(HoldingRow, (owner, entry.sha256)) is None:
            where = f"files.{entry.name}"
            raise RefusedError(ProblemType.NOT_READY, "it was discarded meanwhile", where=where, todo="upload it again")


def _known(session: Session, new: NewExpert) -> Expert | None:
    """The same expert, if already registered, with its owner's new `redistribute` and signature.

    A refused one may be replaced.
    """
    _require_free(session, new)
    for row in _rivals(session, new):
        if _is_same(row, new) and not _may_try_again(session, row, new):
            row.redistribute = new.redistribute
            if new.signature is not None:
                row.signature, row.fingerprint = new.signature, expert_signer(session, row.owner, new)
            return message(Expert, row)
        session.delete(row)
        session.flush()
    return None


def _require_free(session: Session, new: NewExpert) -> None:
    """Requires that no other expert has the files or the place in the domain, and that the body is registered."""
    rivals = [row for row in _rivals(session, new) if row.state is not ExpertState.REFUSED]
    for row in rivals:
        if _is_same(row, new):
            continue
        if row.domain != new.domain:
            where, problem = "files", "another domain's expert has the same files"
            todo = "register each expert for one domain only"
        elif row.digest == expert_digest(new.files):
            where, problem = "parts", "the same files are already registered with different `parts`"
            todo = f"first withdraw it: moerge expert withdraw {row.digest}"
        else:
            where, problem = "domain", f"domain {new.domain!r} has the expert {row.digest} under this body"
            todo = f"first withdraw it: moerge expert withdraw {row.digest}"
        raise RefusedError(ProblemType.CONFLICT, problem, where=where, todo=todo)
    seed_of(session, new.parts)


def _rivals(session: Session, new: NewExpert) -> list[ExpertRow]:
    """The experts with the same files, or with the same place: of the domain, for the body."""
    digest, body = expert_digest(new.files), new.parts.body
    query = select(ExpertRow).where((ExpertRow.domain == new.domain) | (ExpertRow.digest == digest))
    rows = session.scalars(query.where(ExpertRow.withdrawn.is_(None)))
    return [row for row in rows if row.digest == digest or row.parts_body == body]


def _is_same(row: ExpertRow, new: NewExpert) -> bool:
    return (row.domain, row.digest, row.parts) == (new.domain, expert_digest(new.files), new.parts)


def _may_try_again(session: Session, row: ExpertRow, new: NewExpert) -> bool:
    """Tell whether another check may accept a refused expert, as after a new upload under other settings."""
    held = all(session.get(HoldingRow, (row.owner, file.sha256)) is not None for file in row.files)
    return row.state is ExpertState.REFUSED and (new.adapter is not None or held)


def _add(session: Session, owner: str, new: NewExpert, family: str, entries: list[FileEntry]) -> Expert:
    digest, parts = expert_digest(new.files), new.parts
    row = session.scalar(select(ExpertRow).where(ExpertRow.digest == digest))  # a withdrawn expert joins again
    row = row or ExpertRow(digest=digest)
    row.domain, row.owner, row.license, row.family = new.domain, owner, new.license, family
    row.redistribute = new.redistribute
    row.parts_of, row.parts_body, row.fitted, row.own_head = parts.expert, parts.body, parts.fitted, parts.own_head
    row.state, row.withdrawn, row.purged = ExpertState.RECEIVED, None, None
    row.adapter, row.files = new.adapter, entries
    row.signature, row.fingerprint = new.signature, expert_signer(session, owner, new)
    session.add(row)
    session.flush()
    tell(session, f"expert {row.digest[:12]} of {row.domain} has arrived from {owner}")
    return message(Expert, row)


def find(session: Session, digest: str) -> ExpertRow:
    """The expert's row, which must exist."""
    return session.scalars(select(ExpertRow).where(ExpertRow.digest == digest)).one()


def accept(session: Session, digest: str) -> None:
    """Makes an expert with checked weights ready, unless it was withdrawn meanwhile."""
    row = find(session, digest)
    if row.state is ExpertState.RECEIVED:
        row.state = ExpertState.READY
        tell(session, f"expert {row.digest[:12]} of {row.domain} is ready")
        notify(session, "expert.joined", expert=row.digest)


def refuse(session: Session, digest: str, problem: Problem) -> ExpertRow | None:
    """Refuses an expert; None if another has already replaced it."""
    row = session.scalar(select(ExpertRow).where(ExpertRow.digest == digest))
    if row is not None:
        row.state, row.problem = ExpertState.REFUSED, problem
        if row.adapter is not None and problem.type == ProblemType.WRONG_DIGEST.urn:
            owner = session.scalars(select(OwnerRow).where(OwnerRow.name == row.owner)).one()
            owner.adapter_refused = now(session)
    return row


def purge(session: Session, row: ExpertRow, *, retire: bool) -> tuple[list[str], list[int], list[str]]:
    """Purges a withdrawn expert's files.

    Returns the purged digests, the versions that contain it, and the names of those and their parts that `retire`
    retires.
    """
    if row.state is not ExpertState.WITHDRAWN:
        problem = f"the expert is {row.state.value}"
        raise RefusedError(ProblemType.CONFLICT, problem, where="digest", todo="first withdraw it")
    served = containing(session, row)
    retired = versions.retire(session, served) if retire else []
    purge_expert(session, row)
    return [row.digest], [version.number for version in served if version.part is None], retired
