"""Withdrawing, retiring and remerging, on rows (law 5, docs/design.md)."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.trunk.methods.registry import METHODS
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage import tables
from moerge_coordinator.storage.references import drop_artifacts
from moerge_coordinator.storage.tables import (
    AliasRow,
    ContributionRow,
    ExpertRow,
    HoldingRow,
    ShardRow,
    TrunkContributionRow,
    TrunkRow,
    VersionRow,
)
from moerge_proto.digests import digest_of
from moerge_proto.experts import ExpertState
from moerge_proto.problems import ProblemType
from moerge_proto.trunks import TrunkLineage
from moerge_proto.versions import Lineage


def fitted_from(session: Session, expert: str) -> list[ExpertRow]:
    """The experts whose MLPs are fitted from this one's, withdrawn ones too."""
    return list(session.scalars(select(ExpertRow).where(ExpertRow.fitted_from == expert).order_by(ExpertRow.number)))


def containing(session: Session, expert: str) -> tuple[list[TrunkRow], list[VersionRow]]:
    """The trunks, and the versions that are not retired, that contain an expert's parameters or MLPs fitted from it."""
    experts = {expert, *(row.digest for row in fitted_from(session, expert))}
    trunks = [row for row in session.scalars(select(TrunkRow)) if expert in views.trunk(row).contains]
    names = {row.digest for row in trunks}
    query = select(VersionRow).where(VersionRow.retired.is_(None)).order_by(VersionRow.number)
    versions = [
        row
        for row in session.scalars(query)
        if not experts.isdisjoint(row.lineage["experts"]) or row.lineage["trunk"] in names
    ]
    return trunks, versions


def withdraw_expert(session: Session, row: ExpertRow, *, serve: bool) -> tuple[list[TrunkRow], list[VersionRow]]:
    """Withdraws an expert with all that it contributed, and those fitted from it; again, it changes nothing.

    Returns what still contains it.
    """
    when = tables.now()
    for fitted in fitted_from(session, row.digest):
        withdraw_expert(session, fitted, serve=serve)
    if row.withdrawn is None:
        row.state, row.withdrawn = ExpertState.WITHDRAWN.value, when
        if row.fitted_from is not None:
            _let_count_again(session, row)
        for part in session.scalars(select(ContributionRow).where(ContributionRow.expert == row.digest)):
            withdraw_contribution(session, part)
        for own in session.scalars(select(TrunkContributionRow).where(TrunkContributionRow.expert == row.digest)):
            own.active, own.withdrawn = False, own.withdrawn or when
    trunks, versions = containing(session, row.digest)
    for trunk in trunks:
        trunk.retired = trunk.retired or when
    if not serve:
        for version in versions:
            version.withheld = version.withheld or when
    session.flush()
    return trunks, versions


def _let_count_again(session: Session, fitted: ExpertRow) -> None:
    """Lets what a fitted expert's contributions took the place of be sent again."""
    query = select(ContributionRow).where(
        ContributionRow.expert == fitted.fitted_from, ContributionRow.trunk == fitted.fitted_to
    )
    for part in session.scalars(query.where(ContributionRow.active.is_(False))):
        part.withdrawn = part.withdrawn or tables.now()


def withdraw_contribution(session: Session, row: ContributionRow) -> None:
    """Takes a router contribution out of every later version, and gives its shards free."""
    row.active, row.withdrawn = False, row.withdrawn or tables.now()
    for shard in session.scalars(select(ShardRow).where(ShardRow.contribution == row.digest)):
        session.delete(shard)
    session.flush()


def withdraw_trunk_contribution(session: Session, row: TrunkContributionRow) -> None:
    """Takes a trunk contribution out of every later trunk, and retires those that were solved from it."""
    when = tables.now()
    row.active, row.withdrawn = False, row.withdrawn or when
    for trunk in session.scalars(select(TrunkRow)):
        if row.digest in trunk.contributions:
            trunk.retired = trunk.retired or when
    session.flush()


def remerge(session: Session, newcomer: str | None = None) -> TrunkLineage | None:
    """What to merge in the current trunk's place: the same without what is withdrawn, and with a newcomer.

    None if there is no trunk, or it is not retired and nobody comes, or nothing is left that it could be merged from.
    """
    row = session.scalar(select(TrunkRow).where(TrunkRow.current))
    if row is None or (newcomer is None and row.retired is None):
        return None
    made = TrunkLineage.model_validate(views.trunk_lineage(row))
    method = METHODS[made.method]
    ready = dict(
        session.execute(select(ExpertRow.digest, ExpertRow.domain).where(ExpertRow.state == ExpertState.READY.value))
        .tuples()
        .all()
    )
    if made.options.base is not None and made.options.base not in ready:
        return None
    own = select(TrunkContributionRow).where(TrunkContributionRow.active)
    contributed = {part.expert: part.digest for part in session.scalars(own)}
    experts = list(dict.fromkeys([*made.experts, *([newcomer] if newcomer and not method.base_only else [])]))
    experts = [each for each in experts if each in ready and (not method.solved or each in contributed)]
    weights = {name: weight for name, weight in made.options.weights.items() if name in map(ready.get, experts)}
    if not experts or (weights.keys() >= {ready[each] for each in experts} and not any(weights.values())):
        return None
    return TrunkLineage(
        method=made.method,
        options=made.options.model_copy(update={"weights": weights}),
        experts=experts,
        contributions=[contributed[each] for each in experts] if method.solved else [],
        revision=method.revision,
    )


def require_usable(session: Session, experts: Sequence[str | None], contributions: Sequence[str]) -> None:
    """Requires that nothing of it was withdrawn meanwhile.

    Raises:
        RefusedError: something was.
    """
    for kind, where, digests in (
        (ExpertRow, "experts", experts),
        (ContributionRow, "contributions", contributions),
        (TrunkContributionRow, "contributions", contributions),
    ):
        query = select(kind.digest).where(kind.withdrawn.is_not(None))
        gone = set(session.scalars(query)) & set(digests)
        if gone:
            found = f"{sorted(gone)[0]} was withdrawn meanwhile"
            raise RefusedError(ProblemType.CONFLICT, found, where=where, todo="ask again without it")


def withdrawn_in(session: Session, trunk: str) -> list[str]:
    """The withdrawn experts whose parameters a trunk contains."""
    row = session.scalars(select(TrunkRow).where(TrunkRow.digest == trunk)).one()
    gone = set(session.scalars(select(ExpertRow.digest).where(ExpertRow.withdrawn.is_not(None))))
    return [digest for digest in views.trunk(row).contains if digest in gone]


def require_told(session: Session, lineage: Lineage) -> None:
    """Requires that a lineage tells every withdrawn expert that its trunk contains.

    Raises:
        RefusedError: one was withdrawn meanwhile.
    """
    if withdrawn_in(session, lineage.trunk) != lineage.withdrawn:
        found = "an expert that the trunk contains was withdrawn meanwhile"
        raise RefusedError(ProblemType.CONFLICT, found, where="trunk", todo="ask again")


def retire_versions(session: Session, rows: Sequence[VersionRow]) -> None:
    """Retires versions: their rows stay, so that numbers are never used again; their files go.

    Raises:
        RefusedError: an alias points to one of them.
    """
    for row in rows:
        alias = session.scalar(select(AliasRow.name).where(AliasRow.version == row.number).order_by(AliasRow.number))
        if alias is not None:
            found = f"the alias {alias!r} points to version {row.number}"
            todo = f"move it first: moerge version promote N --alias {alias}"
            raise RefusedError(ProblemType.CONFLICT, found, where="version", todo=todo)
    for row in rows:
        if row.retired is None:
            row.retired = tables.now()
            row.lineage_digest = digest_of({"retired": row.number, "lineage": row.lineage})
    session.flush()
    drop_artifacts(session)


def purge_expert(session: Session, row: ExpertRow) -> list[str]:
    """Lets go of a withdrawn expert's files and of all statistics that were sent for it. Returns what was purged.

    So it goes with experts that are fitted from it, or, holding its parameters too, to a trunk that contains it.
    """
    when = tables.now()
    done = [row.digest]
    if row.fitted_from is None:
        trunks = {trunk.digest for trunk in containing(session, row.digest)[0]}
        query = select(ExpertRow).where((ExpertRow.fitted_from == row.digest) | ExpertRow.fitted_to.in_(trunks))
        for fitted in session.scalars(query.where(ExpertRow.state != ExpertState.REFUSED.value)).all():
            withdraw_expert(session, fitted, serve=True)
            done += purge_expert(session, fitted)
    row.purged = row.purged or when
    digests = {file["sha256"] for file in row.files}
    parts = [
        *session.scalars(select(ContributionRow).where(ContributionRow.expert == row.digest)),
        *session.scalars(select(TrunkContributionRow).where(TrunkContributionRow.expert == row.digest)),
    ]
    for part in parts:
        part.purged = part.purged or when
        digests.add(part.digest)
    others = select(ExpertRow).where(ExpertRow.owner == row.owner, ExpertRow.purged.is_(None))
    kept = {file["sha256"] for other in session.scalars(others) for file in other.files}
    for digest in digests - kept:
        if (holding := session.get(HoldingRow, (row.owner, digest))) is not None:
            session.delete(holding)
    session.flush()
    drop_artifacts(session)
    return done
