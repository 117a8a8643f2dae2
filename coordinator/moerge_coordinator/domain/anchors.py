"""The anchor: the seed's parts as an expert of versions under its body, whose contributions the coordinator makes.

It has the name `general` as owner and as domain. While it has a router contribution under a body, versions of that
body have it as their last expert.
"""

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import bodies, contributions
from moerge_coordinator.domain.contributions import Checked
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.seeds import digest_of, files_of
from moerge_coordinator.domain.withdrawal import withdraw_contribution
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import BodyRow, ContributionRow, DomainRow, ExpertRow, OwnerRow, tell
from moerge_proto.contributions import NewContribution
from moerge_proto.experts import ExpertState
from moerge_proto.options import ANCHOR
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import Kind


def seed_of(session: Session, digest: str | None = None) -> BodyRow:
    """The current body, which must be a seed's, and that of the digest, if one is given."""
    row = bodies.find(session, None)
    if row.experts:
        problem = "the current body is merged, and behind it the seed's MLPs don't answer as the seed does"
        todo = "first take the seed's body: moerge body merge --method seed"
        raise RefusedError(ProblemType.CONFLICT, problem, where="the anchor", todo=todo)
    if digest not in (None, row.digest):
        problem = f"made under body {digest}; the current one is {row.digest}"
        raise RefusedError(ProblemType.WRONG_BODY, problem, where="the anchor", todo="ask for the anchor again")
    return row


def add(session: Session, ports: Ports, seed: BodyRow, made: Mapping[Kind, str]) -> str | None:
    """Makes the anchor's contributions, kind -> digest of a blob, its active ones; returns that of the routers'.

    None if they must be made again because a file was removed meanwhile. Idempotent.
    """
    if not all(ports.blobs.has(digest) for digest in made.values()):
        return None
    expert = _register(session, seed)
    for row in _active(session):
        if row.expert == expert and row.digest not in made.values():
            withdraw_contribution(session, row)
    for digest in made.values():
        contributions.add(session, ports, NewContribution(sha256=digest), Checked())
    tell(session, f"body {seed.digest[:12]} has an anchor, {ANCHOR}")
    return made["router"]


def remove(session: Session) -> None:
    """Withdraws the anchor's contributions, so that later versions have no anchor. Idempotent."""
    for row in _active(session):
        withdraw_contribution(session, row)


def _active(session: Session) -> list[ContributionRow]:
    query = select(ContributionRow).where(ContributionRow.domain == ANCHOR, ContributionRow.active)
    return list(session.scalars(query))


def _register(session: Session, seed: BodyRow) -> str:
    """Adds the anchor's rows as an owner, a domain and a ready expert, whose digest it returns."""
    if session.get(DomainRow, ANCHOR) is None:
        session.add(OwnerRow(name=ANCHOR))
        session.flush()
        session.add(DomainRow(name=ANCHOR, owner=ANCHOR))
        session.flush()
    digest = digest_of(seed)
    row = session.scalar(select(ExpertRow).where(ExpertRow.digest == digest))
    row = row or ExpertRow(digest=digest, domain=ANCHOR, owner=ANCHOR, redistribute=True, fitted=False)
    row.parts_of, row.parts_body, row.license = seed.seed, seed.digest, seed.license
    row.family, row.files = seed.family, files_of(seed)
    row.state, row.withdrawn, row.purged = ExpertState.READY, None, None
    session.add(row)
    session.flush()
    return digest
