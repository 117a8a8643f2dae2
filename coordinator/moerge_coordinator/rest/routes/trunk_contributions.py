"""Trunk contributions: what an owner's expert reads outside its MLPs, sent once for every trunk it is merged into."""

from fastapi import APIRouter, Request
from sqlalchemy import select

from moerge.errors import ContributionError, MoergeError
from moerge.models.bounds import attention_size, input_bounds, input_exponents
from moerge.models.config import read_config
from moerge.models.families import family_of
from moerge.models.reader import Checkpoint
from moerge.statistics.validate import validate_trunk
from moerge_coordinator.domain.lifecycle import withdraw_trunk_contribution
from moerge_coordinator.domain.owner_keys import require_signed
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.rest.auth import DomainOwner, OperatorOrOwner, own_name
from moerge_coordinator.rest.lists import After, visible_page, visible_row
from moerge_coordinator.rest.routes.contributions import opened, ready_expert, require_sizes, require_there
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage.database import reading, transaction
from moerge_coordinator.storage.tables import TrunkContributionRow
from moerge_proto.contributions import NewContribution, TrunkContribution
from moerge_proto.digests import Digest
from moerge_proto.messages import Page
from moerge_proto.owners import Identity
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import StatisticsFile, TrunkManifest

router = APIRouter(prefix="/trunk-contributions", tags=["contributions"])


@router.post("", status_code=201)
def contribute(request: Request, caller: DomainOwner, new: NewContribution) -> TrunkContribution:
    """Takes an uploaded statistics file as an expert's trunk contribution.

    The same again changes nothing. Role: owner.
    """
    state = request.app.state
    owner = own_name(caller)
    with reading(state.engine) as session:
        row = session.scalar(select(TrunkContributionRow).where(TrunkContributionRow.digest == new.sha256))
        if row is not None and row.owner == owner and row.withdrawn is None:
            return views.trunk_contribution(row)
        require_signed(session, owner, new)
    size = state.uploads.held(owner, new.sha256, "sha256")
    try:
        with opened(request, new.sha256) as file:
            manifest = _checked(request, caller, file)
        return _record(request, new, manifest, size)
    except MoergeError:
        state.uploads.discard(owner, [new.sha256])
        raise


def _checked(request: Request, caller: Identity, file: StatisticsFile) -> TrunkManifest:
    """Requires that the file is of the caller's own ready expert, and possible with that expert's weights."""
    manifest = file.manifest
    if not isinstance(manifest, TrunkManifest):
        found, todo = "a statistics file of the other kind", "send it to /v1/contributions"
        raise ContributionError(found, where="manifest.kind", todo=todo)
    expert = ready_expert(request, caller, manifest)
    if expert.fitted_to is not None:
        found, todo = "the expert is fitted to a trunk, so it isn't merged into one", f"send it for {expert.trained}"
        raise ContributionError(found, where="manifest.expert", todo=todo)
    folder = request.app.state.workflows.expert_folder(expert.digest)
    config, checkpoint = read_config(folder), Checkpoint(folder)
    family = family_of(config)
    sizes = {"hidden_size": config.hidden_size, "layers": config.num_hidden_layers, "vocab_size": config.vocab_size}
    require_sizes(manifest, {**sizes, "attention_size": attention_size(config)})
    validate_trunk(file, input_exponents(checkpoint, family, config), input_bounds(checkpoint, family, config))
    return manifest


def _record(request: Request, new: NewContribution, manifest: TrunkManifest, size: int) -> TrunkContribution:
    with transaction(request.app.state.engine) as session:
        query = select(TrunkContributionRow).where(TrunkContributionRow.expert == manifest.expert)
        active = session.scalar(query.where(TrunkContributionRow.active))
        if active is not None and active.digest == new.sha256:  # the same request, sent twice at once
            return views.trunk_contribution(active)
        require_there(request, session, new.sha256, manifest.expert)
        if new.supersedes != ([active.digest] if active else []):
            found = f"the expert's active trunk contribution is {active.digest if active else 'none'}"
            todo = "name it in supersedes, if this one is to take its place"
            raise RefusedError(ProblemType.CONFLICT, found, where="supersedes", todo=todo)
        signer = require_signed(session, manifest.owner, new)
        if active is not None:
            active.active = False
        row = session.scalar(select(TrunkContributionRow).where(TrunkContributionRow.digest == new.sha256))
        if row is None:
            row = TrunkContributionRow(
                digest=new.sha256,
                owner=manifest.owner,
                domain=manifest.domain,
                expert=manifest.expert,
                tokens=manifest.tokens,
                documents=manifest.documents,
                size=size,
                software=new.software,
            )
            session.add(row)
        row.active, row.withdrawn, row.purged = True, None, None
        row.signature, row.fingerprint = new.signature, signer
        session.flush()
        return views.trunk_contribution(row)


@router.get("")
def list_trunk_contributions(request: Request, caller: OperatorOrOwner, after: After = 0) -> Page[TrunkContribution]:
    """Lists trunk contributions; an owner sees its own. Role: operator or owner."""
    return visible_page(request, caller, TrunkContributionRow, after, views.trunk_contribution)


@router.post("/{digest}/withdraw")
def withdraw(request: Request, caller: OperatorOrOwner, digest: Digest) -> TrunkContribution:
    """Takes a trunk contribution out of every later trunk; those solved from it are retired, the current one replaced.

    The same again changes nothing. Role: operator or owner.
    """
    state = request.app.state
    with transaction(state.engine) as session:
        row = visible_row(session, caller, TrunkContributionRow, digest)
        withdraw_trunk_contribution(session, row)
        view = views.trunk_contribution(row)
    state.workflows.start_remerge()
    return view
