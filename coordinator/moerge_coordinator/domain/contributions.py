"""Contributions: the checks of a statistics file, and the transaction that accepts it (law 4)."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.errors import ContributionError
from moerge.statistics.describe import median_rank
from moerge_coordinator.domain.contribution_kinds import Rule
from moerge_coordinator.domain.owner_keys import require_signed
from moerge_coordinator.domain.owners import require_own_domain
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.withdrawal import require_usable
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import ContributionRow, ExpertRow, notify, tell
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.experts import ExpertState
from moerge_proto.messages import Message
from moerge_proto.owners import Identity
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import Manifest, StatisticsFile, StatisticsFileError


def require_sent(ports: Ports, owner: str, new: NewContribution) -> None:
    """Requires that a contribution is already active, or that its file is complete, and all inputs known."""
    with ports.database.reading() as session:
        if find(session, owner, new.sha256) is not None:
            return
        _require_own(session, owner, new.supersedes)
    ports.uploads.held(owner, new.sha256, "sha256")


def _require_own(session: Session, owner: str, supersedes: Sequence[str]) -> None:
    """Requires active contributions of the owner, before a workflow keeps their names."""
    query = select(ContributionRow.digest).where(ContributionRow.owner == owner, ContributionRow.active)
    if foreign := set(supersedes).difference(session.scalars(query) if supersedes else ()):
        problem = f"no active contribution {min(foreign)} of {owner!r}"
        raise RefusedError(ProblemType.CONFLICT, problem, where="supersedes", todo="run: moerge contribution list")


def find(session: Session, owner: str, digest: str) -> Contribution | None:
    """The owner's contribution of that digest, unless it was withdrawn."""
    row = session.scalar(select(ContributionRow).where(ContributionRow.digest == digest))
    if row is None or row.owner != owner or row.withdrawn is not None:
        return None
    return message(Contribution, row)


class Checked(Message):
    """The findings of a check, stored with the contribution."""

    warnings: list[str] = Field(default_factory=list)
    effective_rank: float | None = None


def check(ports: Ports, caller: Identity, new: NewContribution) -> Checked:
    """Requires signed and plausible sums that the caller may contribute; a refusal may name the matrix."""
    with _opened(ports, new.sha256) as file:
        manifest = file.manifest
        rule = _rule(ports, manifest)
        _require_plausible(manifest)
        rule.require_plausible(manifest)
        with ports.database.reading() as session:
            expert = _ready_expert(session, caller, manifest)
            require_signed(session, manifest, new)
            body = rule.require_current(session, manifest)
        warnings = rule.check(ports.folders, file, manifest, expert, body)
        return Checked(warnings=warnings, effective_rank=median_rank(file))


def _rule(ports: Ports, manifest: Manifest) -> Rule[Any]:
    kind = "masked" if manifest.is_masked else manifest.kind
    if (rule := ports.rules.get(kind)) is None:
        expected = f"expected one of: {', '.join(ports.rules)}"
        raise ContributionError(f"a {kind} contribution; {expected}", where="manifest.kind", todo="send another kind")
    return rule


def _require_plausible(manifest: Manifest) -> None:
    tokens, most = manifest.tokens, manifest.settings.tokens_per_document
    if most is not None and tokens > manifest.documents * most:
        what = f"{tokens} tokens in {manifest.documents} documents; expected at most {most} per document"
        raise ContributionError(what, where="manifest.tokens", todo="compute the contribution again")


def _opened(ports: Ports, sha256: str) -> StatisticsFile:
    try:
        return StatisticsFile(ports.blobs.source(sha256))
    except StatisticsFileError as error:
        raise ContributionError(error.detail, where=error.field, todo="write it with this version of moerge") from error
    except FileNotFoundError as error:
        raise _gone(sha256) from error


def _gone(sha256: str) -> RefusedError:
    return RefusedError(ProblemType.NOT_READY, f"no complete upload {sha256}", where="sha256", todo="upload it again")


def _ready_expert(session: Session, caller: Identity, manifest: Manifest) -> ExpertRow:
    """The manifest's expert, after checks that both belong to the caller."""
    if manifest.owner != caller.owner:
        raise RefusedError(ProblemType.FORBIDDEN, f"made for owner {manifest.owner!r}", where="manifest.owner")
    require_own_domain(caller, manifest.domain)
    expert = session.scalar(select(ExpertRow).where(ExpertRow.digest == manifest.expert))
    if expert is None or expert.domain != manifest.domain or expert.state is not ExpertState.READY:
        problem = f"expert {manifest.expert} is not the ready expert of {manifest.domain!r}"
        raise ContributionError(problem, where="manifest.expert", todo="register the expert first")
    return expert


def accept(ports: Ports, new: NewContribution, checked: Checked) -> Contribution:
    """The contribution of a checked file, active from now on (law 4).

    In one transaction: superseded contributions become inactive, no shard counts twice, and all inputs of the check
    still exist.
    """
    with ports.database.transaction("accept contribution") as session:
        return add(session, ports, new, checked)


def add(session: Session, ports: Ports, new: NewContribution, checked: Checked) -> Contribution:
    """The same in a transaction."""
    with _opened(ports, new.sha256) as file:
        manifest = file.manifest
    rule = _rule(ports, manifest)
    row = session.scalar(select(ContributionRow).where(ContributionRow.digest == new.sha256))
    if row is not None and row.withdrawn is None:
        return message(Contribution, row)  # a concurrent copy of the request
    rule.require_current(session, manifest)
    require_usable(session, [manifest.expert], [])
    if (size := ports.blobs.size(new.sha256)) is None:
        raise _gone(new.sha256)
    signer = require_signed(session, manifest, new)
    rule.require_beside(session, manifest, new)
    rule.replace(session, new, manifest)
    row = row or ContributionRow(digest=new.sha256)
    session.add(row)
    row.kind, row.owner, row.domain, row.expert = rule.kind, manifest.owner, manifest.domain, manifest.expert
    row.tokens, row.documents = manifest.tokens, manifest.documents
    rule.describe(row, manifest)
    row.size, row.warnings, row.software = size, checked.warnings, new.software
    row.effective_rank = checked.effective_rank
    row.active, row.withdrawn, row.purged = True, None, None
    row.signature, row.fingerprint = new.signature, signer
    session.flush()
    rule.claim(session, new, manifest)
    arrival = f"{row.kind} contribution {row.digest[:12]} of {row.domain} has arrived from {row.owner}"
    tell(session, f"{arrival}: {row.tokens:,} tokens")
    notify(session, "contribution.arrived", contribution=row.digest)
    return message(Contribution, row)
