"""Versions: the lineage of a requested version, its number, access to its files, and retirement."""

from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.models.families.registry import FAMILIES
from moerge.routers.ridge import SOLVER
from moerge_coordinator.domain import bodies, contributors, heads, public_log, sums
from moerge_coordinator.domain.withdrawal import require_inputs
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.storage.composed import composed
from moerge_coordinator.storage.messages import versions
from moerge_coordinator.storage.references import drop_artifacts
from moerge_coordinator.storage.tables import (
    PARTS,
    AliasRow,
    BodyRow,
    ContributionRow,
    ExpertRow,
    VersionRow,
    notify,
    now,
    tell,
)
from moerge_proto.digests import digest_of
from moerge_proto.experts import ExpertState
from moerge_proto.problems import ProblemType
from moerge_proto.recipes import SolveOptions
from moerge_proto.version_names import part_digest
from moerge_proto.versions import Lineage, NewVersion, VersionChange


def find(session: Session, name: int | str, where: str = "number") -> VersionRow:
    """The version of that number, or the part of that name, as `3+0123456789abcdef`."""
    return existing(named(session, name), f"version {name}", where, "run: moerge version list")


def named(session: Session, name: int | str) -> VersionRow | None:
    """As `find`, without a refusal."""
    number, _, part = str(name).partition("+")
    is_it = VersionRow.part_of == int(number) if part else VersionRow.number == int(number)
    query = select(VersionRow).where(is_it, VersionRow.part == part if part else VersionRow.part.is_(None))
    return session.scalar(query)


def find_served(session: Session, name: int | str, where: str = "number") -> VersionRow:
    """The version of that name, refused if it is retired or withheld."""
    return require_served(find(session, name, where))


def require_served(row: VersionRow) -> VersionRow:
    """The version, refused if it is retired or withheld."""
    if row.retired is not None:
        raise RefusedError(ProblemType.GONE, f"version {row.name} is retired", todo="use another version")
    if row.withheld is not None:
        problem = f"version {row.name} is withheld: it contains a withdrawn expert"
        raise RefusedError(ProblemType.GONE, problem, todo="use another version, or wait for the next one")
    return row


def find_whole(session: Session, part_of: int) -> VersionRow:
    """The version that a part is made of; refused if it is retired, because then its parts are too."""
    row = find(session, part_of)
    return row if row.retired is None else require_served(row)


def lineage_of(session: Session, new: NewVersion, is_tied: Callable[[BodyRow], bool] = lambda body: False) -> Lineage:
    """The lineage of the requested version, from the present contributions, for routers and head.

    Without a method, a seed's head is tied if `is_tied` says that it is the seed's embedding.
    """
    body = bodies.find(session, new.body)
    left_out = _left_out(session, new, body)
    query = select(ContributionRow).where(ContributionRow.body == body.digest, ContributionRow.active)
    parts, domains = list(session.scalars(query)), _domains(session)
    contributed = {part.expert for part in parts if part.split == "statistics"}
    experts = new.experts or [digest for digest in domains if digest in contributed]
    _require_contributed(experts, contributed, domains, body)
    names = [domains[digest] for digest in experts]
    _require_options(new.options, names, body.family)
    if new.chat_template is not None and new.chat_template not in names:
        what = f"no expert of {new.chat_template}; the version's domains are {', '.join(names)}"
        raise RefusedError(ProblemType.INVALID_REQUEST, what, where="chat_template", todo="name one of them")
    splits = ("statistics", "tuning") if new.options.lambda_scale == "auto" else ("statistics",)
    chosen = [part for part in parts if part.expert in experts and part.split in splits]
    head = heads.lineage_of(session, new.head, experts)
    return Lineage(
        body=body.digest,
        seed=body.seed,
        head=head,
        experts=experts,
        domains=names,
        contributions=sums.counted(session, chosen, new.options),
        options=new.options,
        tied=new.tied or (new.head is None and head.method == "seed" and is_tied(body)),
        left_out=left_out,
        chat_template=new.chat_template,
        solver=SOLVER,
    )


def _domains(session: Session) -> dict[str, str]:
    """Expert -> its domain, in order of arrival."""
    return {row.digest: row.domain for row in session.scalars(select(ExpertRow).order_by(ExpertRow.number))}


def _left_out(session: Session, new: NewVersion, body: BodyRow) -> list[str]:
    """The domains missing from a `partial` version; none if the operator names the experts."""
    missing = [] if new.experts is not None else contributors.of_body(session, body).missing
    if missing and not new.partial:
        problem = f"domains with a ready expert have not contributed: {', '.join(missing)}"
        todo = "wait for them (moerge version solve --wait), or solve without them (`partial`)"
        raise RefusedError(ProblemType.NOT_READY, problem, where="partial", todo=todo)
    return missing


def _require_contributed(
    experts: Sequence[str], contributed: set[str], domains: Mapping[str, str], body: BodyRow
) -> None:
    for digest in experts:
        if digest not in contributed:
            problem = f"expert {digest} has no contribution under body {body.digest}"
            other = next((item for item in contributed if digest in domains and domains[item] == domains[digest]), "")
            todo = f"name the domain's contributed expert: {other}" if other else "first wait for its owner's worker"
            raise RefusedError(ProblemType.NOT_READY, problem, where="experts", todo=todo)
    if not experts:
        problem = "no expert has contributed yet; a version needs at least one"
        todo = "ask the owners to start their workers; see: moerge contribution list"
        raise RefusedError(ProblemType.NOT_READY, problem, where="experts", todo=todo)
    if len(set(experts)) < len(experts):
        raise RefusedError(ProblemType.NOT_READY, "an expert is named twice", where="experts", todo="name each once")


def _require_options(options: SolveOptions, domains: Sequence[str], family: str) -> None:
    weights = options.domain_weights
    if weights != "balanced" and (unknown := sorted(weights.keys() - set(domains))):
        what = f"{', '.join(unknown)}; the version's domains are {', '.join(domains)}"
        todo = "name domains of the version"
        raise RefusedError(ProblemType.INVALID_REQUEST, what, where="options.domain_weights", todo=todo)
    if options.top_k > len(domains):
        what, todo = f"{options.top_k} of {len(domains)} experts", f"use at most {len(domains)}"
        raise RefusedError(ProblemType.INVALID_REQUEST, what, where="options.top_k", todo=todo)
    if why := FAMILIES[family].host.few(len(domains)):
        raise RefusedError(ProblemType.INVALID_REQUEST, why, where="experts", todo="wait for another expert")
    if why := FAMILIES[family].host.refusal(options.top_k):
        raise RefusedError(ProblemType.INVALID_REQUEST, why, where="options.top_k", todo="use 1")


def published(session: Session, lineage: Lineage, part_of: int | None = None) -> VersionRow | None:
    """The version of a lineage, or the part of version `part_of` of it, if it is published."""
    query = select(VersionRow)
    if part_of is not None:  # by its experts, because another build's solver is in the lineage
        part = part_digest(lineage.experts)
        return session.scalar(query.where(VersionRow.part_of == part_of, VersionRow.part == part))
    digest = lineage_digest(lineage.model_dump(mode="json"), None)
    return session.scalar(query.where(VersionRow.lineage_digest == digest))


def next_number(session: Session, part_of: int | None = None) -> int:
    """The number of the next version's row, or of the next part's."""
    numbers = select(func.max(VersionRow.number))
    if part_of is not None:
        return (session.scalar(numbers.where(VersionRow.number >= PARTS)) or PARTS) + 1
    return (session.scalar(numbers.where(VersionRow.number < PARTS)) or 0) + 1


def lineage_digest(lineage: JsonValue, part_of: int | None) -> str:
    """The digest of a version's lineage, or of that of a part of version `part_of`."""
    return digest_of(lineage if part_of is None else {"part_of": part_of, "lineage": lineage})


def publish(session: Session, blobs: Blobs, new: VersionRow) -> bool:
    """Publishes a version; False if it must be made again because a file was removed meanwhile."""
    require_inputs(session, new.lineage)
    if new.part_of is not None:
        find_whole(session, new.part_of)
    missing = [file for file in (*new.files, *new.attestations) if not blobs.has(file.sha256)]
    if any(composed(session, new, file.sha256) is None for file in missing):
        return False
    new.lineage_digest = lineage_digest(new.lineage.model_dump(mode="json"), new.part_of)
    new.bytes_total = sum(file.size for file in new.files)
    new.bytes_written = sum(file.size for file in new.files if file.new)
    session.add(new)
    public_log.record_version(session, new.name, new.files)
    tell(session, f"version {new.name} is solved{'' if new.key else ', unsigned'}: {', '.join(new.lineage.domains)}")
    if new.part is None:
        notify(session, "version.solved", version=new.number)
    return True


def change(row: VersionRow, asked: VersionChange) -> None:
    """Sets a version's note or tags, the only variable parts."""
    if asked.note is not None:
        row.note = asked.note
    if asked.tags is not None:
        row.tags = sorted(set(asked.tags))


def retire(session: Session, rows: Sequence[VersionRow]) -> list[str]:
    """Retires versions without aliases, with their parts, and returns the names of all.

    Their files are removed; their rows stay, so numbers are never reused.
    """
    for row in rows:
        alias = session.scalar(select(AliasRow.name).where(AliasRow.version == row.number).order_by(AliasRow.number))
        if alias is not None:
            problem = f"the alias {alias!r} points to version {row.number}"
            todo = f"first move it: moerge version promote N --alias {alias}"
            raise RefusedError(ProblemType.CONFLICT, problem, where="version", todo=todo)
    parts = session.scalars(select(VersionRow).where(VersionRow.part_of.in_([row.number for row in rows])))
    every = {row.number: row for row in (*rows, *parts)}.values()
    for row in every:
        if row.retired is None:
            row.retired = now(session)
            tell(session, f"version {row.name} is retired")
            row.lineage_digest = digest_of({"retired": row.name, "lineage": row.lineage.model_dump(mode="json")})
    session.flush()
    drop_artifacts(session)
    return [row.name for row in every]


def file_digest(row: VersionRow, name: str) -> str:
    digest = next((file.sha256 for file in row.files if file.name == name), None)
    return existing(digest, f"file {name!r} in version {row.name}")


def require_member(session: Session, owner: str, row: VersionRow, todo: str) -> None:
    """Requires that the owner has a ready expert in a version."""
    own = select(ExpertRow.digest).where(ExpertRow.owner == owner, ExpertRow.state == ExpertState.READY)
    if not set(session.scalars(own)) & set(row.lineage.experts):
        problem = f"version {row.name} has no ready expert of yours"
        raise RefusedError(ProblemType.FORBIDDEN, problem, where="number", todo=todo)


def require_shared(session: Session, owner: str, row: VersionRow) -> None:
    """Requires that an owner may download a version: its own ready expert is in the version, all others in it allow
    redistribution, and none is withdrawn.
    """
    require_member(session, owner, row, "ask the operator for a reader's token")
    contains = [*row.lineage.experts, *versions(session)(row).contains_withdrawn]
    experts = list(session.scalars(select(ExpertRow).where(ExpertRow.digest.in_(contains)).order_by(ExpertRow.number)))
    if gone := [expert.domain for expert in experts if expert.withdrawn is not None]:
        problem = f"version {row.name} contains withdrawn experts: {', '.join(gone)}"
        raise RefusedError(ProblemType.FORBIDDEN, problem, where="number", todo="wait for a version without them")
    if kept := [expert.domain for expert in experts if expert.owner != owner and not expert.redistribute]:
        problem = f"domains of version {row.name} don't allow redistribution: {', '.join(kept)}"
        todo = "ask their owners to set `redistribute = true` in their policies"
        raise RefusedError(ProblemType.FORBIDDEN, problem, where="number", todo=todo)
