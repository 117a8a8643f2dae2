"""Contributions: the checks of a statistics file, and the transaction that accepts it (law 4)."""

from collections.abc import Mapping, Sequence

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.documents.shards import enough
from moerge.errors import ContributionError
from moerge.models.bounds import attention_size, input_bounds, input_exponents
from moerge.models.config import read_config
from moerge.models.families import FAMILIES, family_of
from moerge.statistics.describe import median_rank
from moerge.statistics.validate import validate, validate_trunk
from moerge_coordinator.domain.owner_keys import require_signed
from moerge_coordinator.domain.owners import require_own_domain
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.withdrawal import require_usable
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import ContributionRow, ExpertRow, ShardRow, TrunkRow, tell
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.experts import ExpertState
from moerge_proto.messages import Message
from moerge_proto.owners import Identity
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import (
    MAX_TOKENS,
    Manifest,
    RouterManifest,
    StatisticsFile,
    StatisticsFileError,
    TrunkManifest,
)

_AT_ONCE = 500  # parameters of one query


def require_sent(ports: Ports, owner: str, new: NewContribution) -> None:
    """Requires that a contribution is already active, or that it is signed and its file complete.

    Raises:
        RefusedError: a signature or the file is missing.
    """
    with ports.database.reading() as session:
        if find(session, owner, new.sha256) is not None:
            return
        require_signed(session, owner, new)
    ports.uploads.held(owner, new.sha256, "sha256")


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


def check(ports: Ports, caller: Identity, sha256: str) -> Checked:
    """Requires that a file has plausible sums that the caller may contribute.

    Raises:
        MoergeError: names the field of the manifest, or the matrix.
    """
    with _opened(ports, sha256) as file:
        manifest = file.manifest
        _require_plausible(manifest)
        with ports.database.reading() as session:
            expert = _ready_expert(session, caller, manifest)
            if isinstance(manifest, TrunkManifest):
                _check_trunk_sums(ports, file, manifest, expert)
                return Checked(effective_rank=median_rank(file))
            trunk = _require_current(session, manifest)
        if expert.fitted_to not in (None, trunk.digest):
            found = f"expert {expert.digest} is fitted to a different trunk, {expert.fitted_to}"
            raise ContributionError(found, where="manifest.expert", todo="fit the domain's expert to this trunk")
        _require_sizes(manifest, {"hidden_size": trunk.hidden_size, "layers": trunk.layers})
        normalised = FAMILIES[trunk.family].gain is not None
        warnings = validate(file, trunk.exponents, trunk.bounds, normalised=normalised)
        return Checked(warnings=warnings, effective_rank=median_rank(file))


def _require_plausible(manifest: Manifest) -> None:
    """Requires counts that `moerge.documents.shards.plan` can produce, and enough text for a trunk contribution."""
    tokens, most, least = manifest.tokens, manifest.settings.tokens_per_document, enough(manifest.hidden_size)
    if most is not None and tokens > manifest.documents * most:
        found = f"{tokens} tokens in {manifest.documents} documents; expected at most {most} per document"
        raise ContributionError(found, where="manifest.tokens", todo="compute the contribution again")
    if isinstance(manifest, TrunkManifest):
        if tokens < least:
            todo = f"give more text: a trunk contribution needs 64 x {manifest.hidden_size} tokens"
            raise ContributionError(f"{tokens} tokens; expected at least {least}", where="manifest.tokens", todo=todo)
    elif len(manifest.shards) > max(1, tokens // least):
        found = f"{len(manifest.shards)} shards of {tokens} tokens; expected at least {least} per shard, or one shard"
        raise ContributionError(found, where="manifest.shards", todo="compute the contribution again")


def _opened(ports: Ports, sha256: str) -> StatisticsFile:
    try:
        return StatisticsFile(ports.blobs.source(sha256))
    except StatisticsFileError as error:
        raise ContributionError(error.detail, where=error.field, todo="write it with this version of moerge") from error
    except FileNotFoundError as error:
        raise _gone(sha256) from error


def _gone(sha256: str) -> RefusedError:
    return RefusedError(ProblemType.NOT_READY, f"no complete upload {sha256}", where="sha256", todo="upload it again")


def _check_trunk_sums(ports: Ports, file: StatisticsFile, manifest: TrunkManifest, expert: ExpertRow) -> None:
    if expert.fitted_to is not None:
        found, todo = "the expert is fitted to a trunk, so it can't be merged", f"send it for {expert.trained}"
        raise ContributionError(found, where="manifest.expert", todo=todo)
    folder = ports.folders.expert(expert.digest)
    config, checkpoint = read_config(folder), ports.folders.weights(expert.digest)
    family = family_of(config)
    sizes = {"hidden_size": config.hidden_size, "layers": config.num_hidden_layers, "vocab_size": config.vocab_size}
    _require_sizes(manifest, {**sizes, "attention_size": attention_size(config)})
    validate_trunk(file, input_exponents(checkpoint, family, config), input_bounds(checkpoint, family, config))


def _ready_expert(session: Session, caller: Identity, manifest: Manifest) -> ExpertRow:
    """The manifest's expert, after checks that both belong to the caller."""
    if manifest.owner != caller.owner:
        raise RefusedError(ProblemType.FORBIDDEN, f"made for owner {manifest.owner!r}", where="manifest.owner")
    require_own_domain(caller, manifest.domain)
    expert = session.scalar(select(ExpertRow).where(ExpertRow.digest == manifest.expert))
    if expert is None or expert.domain != manifest.domain or expert.state is not ExpertState.READY:
        found = f"expert {manifest.expert} is not the ready expert of {manifest.domain!r}"
        raise ContributionError(found, where="manifest.expert", todo="register the expert first")
    return expert


def _require_sizes(manifest: Manifest, expected: Mapping[str, int]) -> None:
    for name, size in expected.items():
        if getattr(manifest, name) != size:
            found = f"expected {size}, found {getattr(manifest, name)}"
            raise ContributionError(found, where=f"manifest.{name}", todo="compute the contribution again")


def accept(ports: Ports, new: NewContribution, checked: Checked) -> Contribution:
    """The contribution of a checked file, active from now on (law 4).

    In one transaction: superseded contributions become inactive, no shard counts twice, and all inputs of the check
    still exist.

    Raises:
        RefusedError: names the field of the request or of the manifest.
    """
    with _opened(ports, new.sha256) as file:
        manifest = file.manifest
    with ports.database.transaction("accept contribution") as session:
        row = session.scalar(select(ContributionRow).where(ContributionRow.digest == new.sha256))
        if row is not None and row.withdrawn is None:
            return message(Contribution, row)  # a concurrent copy of the request
        if isinstance(manifest, RouterManifest):
            _require_current(session, manifest)
        require_usable(session, [manifest.expert], [])
        if (size := ports.blobs.size(new.sha256)) is None:
            raise _gone(new.sha256)
        signer = require_signed(session, manifest.owner, new)
        if isinstance(manifest, RouterManifest):
            for digest in dict.fromkeys(new.supersedes):
                _supersede(session, digest, manifest)
            _require_one_expert(session, manifest)
            _require_unclaimed(session, manifest)
            _require_room(session, manifest)
        else:
            _supersede_trunk_sums(session, new.supersedes, manifest)
        row = row or ContributionRow(digest=new.sha256)
        session.add(row)
        _describe(row, manifest)
        row.size, row.warnings, row.software = size, checked.warnings, new.software
        row.effective_rank = checked.effective_rank
        row.active, row.withdrawn, row.purged = True, None, None
        row.signature, row.fingerprint = new.signature, signer
        session.flush()
        if isinstance(manifest, RouterManifest):
            session.add_all(
                ShardRow(trunk=manifest.trunk, domain=manifest.domain, shard=shard, contribution=new.sha256)
                for shard in manifest.shards
            )
        found = f"{row.kind} contribution {row.digest[:12]} of {row.domain} has arrived from {row.owner}"
        tell(session, f"{found}: {row.tokens:,} tokens")
        return message(Contribution, row)


def _describe(row: ContributionRow, manifest: Manifest) -> None:
    row.kind, row.owner, row.domain, row.expert = manifest.kind, manifest.owner, manifest.domain, manifest.expert
    row.tokens, row.documents = manifest.tokens, manifest.documents
    if isinstance(manifest, RouterManifest):
        row.split, row.trunk, row.shards = manifest.split, manifest.trunk, len(manifest.shards)


def _require_current(session: Session, manifest: RouterManifest) -> TrunkRow:
    trunk = session.scalar(select(TrunkRow).where(TrunkRow.current))
    if trunk is None or manifest.trunk != trunk.digest:
        raise RefusedError(
            ProblemType.WRONG_TRUNK,
            f"made under trunk {manifest.trunk}; the current one is {trunk.digest if trunk else 'not merged yet'}",
            where="manifest.trunk",
            todo="contribute again under the current trunk",
        )
    return trunk


def _supersede(session: Session, digest: str, manifest: RouterManifest) -> None:
    row = session.scalar(select(ContributionRow).where(ContributionRow.digest == digest, ContributionRow.active))
    if row is None or (row.trunk, row.domain) != (manifest.trunk, manifest.domain):
        found = f"no active contribution {digest} of {manifest.domain!r} under this trunk"
        raise RefusedError(ProblemType.CONFLICT, found, where="supersedes", todo="run: moerge contribution list")
    row.active = False
    for shard in session.scalars(select(ShardRow).where(ShardRow.contribution == digest)):
        session.delete(shard)
    session.flush()


def _supersede_trunk_sums(session: Session, supersedes: Sequence[str], manifest: TrunkManifest) -> None:
    query = select(ContributionRow).where(ContributionRow.expert == manifest.expert, ContributionRow.kind == "trunk")
    active = session.scalar(query.where(ContributionRow.active))
    if list(supersedes) != ([active.digest] if active else []):
        found = f"the expert's active trunk contribution is {active.digest if active else 'none'}"
        todo = "to replace it, name it in supersedes"
        raise RefusedError(ProblemType.CONFLICT, found, where="supersedes", todo=todo)
    if active is not None:
        active.active = False
        session.flush()


def _require_one_expert(session: Session, manifest: RouterManifest) -> None:
    """Requires that the domain has no active contribution computed with other MLPs, fitted or not."""
    query = select(ContributionRow).where(
        ContributionRow.active,
        ContributionRow.trunk == manifest.trunk,
        ContributionRow.domain == manifest.domain,
        ContributionRow.split == manifest.split,
        ContributionRow.expert != manifest.expert,
    )
    for other in session.scalars(query.limit(1)):
        found = f"contribution {other.digest} of the domain's expert {other.expert} is active"
        todo = "to replace it, name it in supersedes"
        raise RefusedError(ProblemType.CONFLICT, found, where="supersedes", todo=todo)


def _require_room(session: Session, manifest: RouterManifest) -> None:
    """Requires that the integer sums over all contributions can't overflow."""
    query = select(ContributionRow).where(
        ContributionRow.active, ContributionRow.trunk == manifest.trunk, ContributionRow.split == manifest.split
    )
    rows = session.scalars(query).all()
    if (total := manifest.tokens + sum(row.tokens for row in rows)) > MAX_TOKENS:
        found = f"{total} tokens with all other contributions; expected at most {MAX_TOKENS}"
        if most := max(rows, key=lambda row: row.tokens, default=None):
            found += f". Contribution {most.digest} of owner {most.owner!r} has the most, {most.tokens}"
        todo = "send fewer tokens, or ask the operator to withdraw a contribution"
        raise RefusedError(ProblemType.CONFLICT, found, where="manifest.tokens", todo=todo)


def _require_unclaimed(session: Session, manifest: RouterManifest) -> None:
    """Requires that all shards are new."""
    query = select(ShardRow).where(ShardRow.trunk == manifest.trunk, ShardRow.domain == manifest.domain)
    for start in range(0, len(manifest.shards), _AT_ONCE):
        some = manifest.shards[start : start + _AT_ONCE]
        for taken in session.scalars(query.where(ShardRow.shard.in_(some)).limit(1)):
            raise RefusedError(
                ProblemType.DUPLICATE_SHARD,
                f"shard {taken.shard} is already in contribution {taken.contribution}",
                where="manifest.shards",
                todo="send only new shards, or name that contribution in supersedes",
            )
