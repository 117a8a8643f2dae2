"""Router contributions: what a statistics file must be to count, and the one transaction in which it starts to."""

from collections.abc import Mapping

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.errors import ContributionError, MoergeError
from moerge.models.families import FAMILIES
from moerge.statistics.validate import validate
from moerge_coordinator.domain.lifecycle import require_usable, withdraw_contribution
from moerge_coordinator.domain.owner_keys import require_signed
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import DomainOwner, OperatorOrOwner, own_name, require_own_domain
from moerge_coordinator.rest.lists import After, Newest, visible_page, visible_row
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage.database import reading, transaction
from moerge_coordinator.storage.tables import ContributionRow, ExpertRow, ShardRow, TrunkRow
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.digests import Digest
from moerge_proto.experts import ExpertState
from moerge_proto.messages import Page
from moerge_proto.owners import Identity
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import Manifest, RouterManifest, StatisticsFile, StatisticsFileError

router = APIRouter(prefix="/contributions", tags=["contributions"])
_AT_ONCE = 500  # parameters of one query


@router.post("", status_code=201)
def contribute(request: Request, caller: DomainOwner, new: NewContribution) -> Contribution:
    """Takes an uploaded statistics file as a contribution. The same again changes nothing. Role: owner."""
    state = request.app.state
    owner = own_name(caller)
    with reading(state.engine) as session:
        row = session.scalar(select(ContributionRow).where(ContributionRow.digest == new.sha256))
        if row is not None and row.owner == owner and row.withdrawn is None:
            return views.contribution(row)
        require_signed(session, owner, new)
    size = state.uploads.held(owner, new.sha256, "sha256")
    try:
        with opened(request, new.sha256) as file:
            manifest = file.manifest
            if not isinstance(manifest, RouterManifest):
                raise _other_kind("/v1/trunk-contributions")
            trunk = _check_manifest(request, caller, manifest)
            normalised = FAMILIES[trunk.family].gain is not None
            warnings = validate(file, trunk.exponents, trunk.bounds, normalised=normalised)
        return _record(request, new, manifest, size, warnings)
    except MoergeError:
        state.uploads.discard(owner, [new.sha256])
        raise


def _other_kind(place: str) -> ContributionError:
    return ContributionError("a statistics file of the other kind", where="manifest.kind", todo=f"send it to {place}")


def opened(request: Request, sha256: str) -> StatisticsFile:
    """An uploaded statistics file.

    Raises:
        ContributionError: it isn't one.
    """
    try:
        return StatisticsFile(request.app.state.blobs.local(sha256))
    except StatisticsFileError as error:
        raise ContributionError(error.detail, where=error.field, todo="write it with this version of moerge") from error


def ready_expert(request: Request, caller: Identity, manifest: Manifest) -> ExpertRow:
    """The expert that the manifest names, once it is sure that both are the caller's own.

    Raises:
        RefusedError, ContributionError: they aren't, or it isn't ready.
    """
    if manifest.owner != caller.owner:
        raise RefusedError(ProblemType.FORBIDDEN, f"made for owner {manifest.owner!r}", where="manifest.owner")
    require_own_domain(caller, manifest.domain)
    with reading(request.app.state.engine) as session:
        expert = session.scalar(select(ExpertRow).where(ExpertRow.digest == manifest.expert))
    if expert is None or expert.domain != manifest.domain or expert.state != ExpertState.READY.value:
        found = f"expert {manifest.expert} is not the ready expert of {manifest.domain!r}"
        raise ContributionError(found, where="manifest.expert", todo="register the expert first")
    return expert


def require_sizes(manifest: Manifest, expected: Mapping[str, int]) -> None:
    """Requires that the manifest has these sizes.

    Raises:
        ContributionError: names the field.
    """
    for name, size in expected.items():
        if getattr(manifest, name) != size:
            found = f"expected {size}, found {getattr(manifest, name)}"
            raise ContributionError(found, where=f"manifest.{name}", todo="compute the contribution again")


def _check_manifest(request: Request, caller: Identity, manifest: RouterManifest) -> TrunkRow:
    """Requires that the manifest is the caller's own, and of the current trunk and a ready expert."""
    expert = ready_expert(request, caller, manifest)
    with reading(request.app.state.engine) as session:
        trunk = _require_current(session, manifest)
    if expert.fitted_to not in (None, trunk.digest):
        found = f"expert {expert.digest} is fitted to another trunk, {expert.fitted_to}"
        raise ContributionError(found, where="manifest.expert", todo="fit the domain's expert to this trunk")
    require_sizes(manifest, {"hidden_size": trunk.hidden_size, "layers": trunk.layers})
    return trunk


def _require_current(session: Session, manifest: RouterManifest) -> TrunkRow:
    trunk = session.scalar(select(TrunkRow).where(TrunkRow.current))
    if trunk is None or manifest.trunk != trunk.digest:
        raise RefusedError(
            ProblemType.WRONG_TRUNK,
            f"made under trunk {manifest.trunk}, but the current one is {trunk.digest if trunk else 'not merged yet'}",
            where="manifest.trunk",
            todo="sums of different trunks don't add up; contribute again under the current trunk",
        )
    return trunk


def require_there(request: Request, session: Session, sha256: str, expert: str) -> None:
    """Requires, within the transaction that adds a contribution's row, that its file and its expert are still there.

    Raises:
        RefusedError: they were let go of meanwhile.
    """
    require_usable(session, [expert], [])
    if not request.app.state.blobs.has(sha256):
        raise RefusedError(
            ProblemType.NOT_READY, f"no complete upload {sha256}", where="sha256", todo="upload it again"
        )


def _record(
    request: Request, new: NewContribution, manifest: RouterManifest, size: int, warnings: list[str]
) -> Contribution:
    with transaction(request.app.state.engine) as session:
        known = session.scalar(select(ContributionRow).where(ContributionRow.digest == new.sha256))
        if known is not None and known.withdrawn is None:  # the same request, sent twice at once
            return views.contribution(known)
        _require_current(session, manifest)
        require_there(request, session, new.sha256, manifest.expert)
        for digest in dict.fromkeys(new.supersedes):
            _supersede(session, digest, manifest)
        _require_alone(session, manifest)
        _claim_shards(session, new.sha256, manifest)
        signer = require_signed(session, manifest.owner, new)
        row = known
        if row is None:
            row = ContributionRow(
                digest=new.sha256,
                split=manifest.split,
                owner=manifest.owner,
                domain=manifest.domain,
                expert=manifest.expert,
                trunk=manifest.trunk,
                tokens=manifest.tokens,
                documents=manifest.documents,
                shards=len(manifest.shards),
                size=size,
                warnings=warnings,
                software=new.software,
            )
            session.add(row)
        row.active, row.withdrawn, row.purged = True, None, None
        row.signature, row.fingerprint = new.signature, signer
        session.flush()
        session.add_all(
            ShardRow(trunk=manifest.trunk, domain=manifest.domain, shard=shard, contribution=new.sha256)
            for shard in manifest.shards
        )
        return views.contribution(row)


def _supersede(session: Session, digest: str, manifest: RouterManifest) -> None:
    row = session.scalar(select(ContributionRow).where(ContributionRow.digest == digest, ContributionRow.active))
    if row is None or (row.trunk, row.domain) != (manifest.trunk, manifest.domain):
        found = f"no active contribution {digest} of {manifest.domain!r} under this trunk"
        raise RefusedError(ProblemType.CONFLICT, found, where="supersedes", todo="see GET /v1/contributions")
    row.active = False
    for shard in session.scalars(select(ShardRow).where(ShardRow.contribution == digest)):
        session.delete(shard)
    session.flush()


def _require_alone(session: Session, manifest: RouterManifest) -> None:
    """Requires that nothing of the domain's counts that was computed with other MLPs, fitted or not."""
    query = select(ContributionRow).where(
        ContributionRow.active,
        ContributionRow.trunk == manifest.trunk,
        ContributionRow.domain == manifest.domain,
        ContributionRow.split == manifest.split,
        ContributionRow.expert != manifest.expert,
    )
    for other in session.scalars(query.limit(1)):
        found = f"contribution {other.digest} counts, which is of another expert of the domain, {other.expert}"
        todo = "name it in supersedes, if this one is to take its place"
        raise RefusedError(ProblemType.CONFLICT, found, where="supersedes", todo=todo)


def _claim_shards(session: Session, digest: str, manifest: RouterManifest) -> None:
    query = select(ShardRow).where(ShardRow.trunk == manifest.trunk, ShardRow.domain == manifest.domain)
    for start in range(0, len(manifest.shards), _AT_ONCE):
        some = manifest.shards[start : start + _AT_ONCE]
        for taken in session.scalars(query.where(ShardRow.shard.in_(some)).limit(1)):
            raise RefusedError(
                ProblemType.DUPLICATE_SHARD,
                f"shard {taken.shard} counts already, in contribution {taken.contribution}",
                where="manifest.shards",
                todo="send only new shards, or name the contributions that this one supersedes",
            )


@router.get("")
def list_contributions(
    request: Request, caller: OperatorOrOwner, after: After = 0, newest: Newest = False
) -> Page[Contribution]:
    """Lists contributions; an owner sees its own. Role: operator or owner."""
    return visible_page(request, caller, ContributionRow, after, views.contribution, newest=newest)


@router.post("/{digest}/withdraw")
def withdraw(request: Request, caller: OperatorOrOwner, digest: Digest) -> Contribution:
    """Takes a contribution out of every later version (law 5). The same again changes nothing.

    Role: operator or owner.
    """
    with transaction(request.app.state.engine) as session:
        row = visible_row(session, caller, ContributionRow, digest)
        withdraw_contribution(session, row)
        return views.contribution(row)
