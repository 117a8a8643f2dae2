"""Cohorts: masked contributions whose keepers have answered with the sums of their masks, once and whole."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import BinaryIO

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.errors import ContributionError
from moerge.models.families.registry import FAMILIES
from moerge.statistics.cohort import Cohort, CohortFiles
from moerge.statistics.validate import validate, validate_means
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import BodyRow, CohortRow, ContributionRow, KeyRow, tell
from moerge_proto.contributions import NewContribution
from moerge_proto.masks import MaskedPart, MasksRequest, Seals, facts_of
from moerge_proto.options import SolveOptions
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import Manifest, RouterManifest, StatisticsFile
from moerge_proto.versions import Lineage

Fetch = Callable[[str, MasksRequest, BinaryIO], str]
"""(address of a keeper, request, file) -> SHA-256 of its answer, which is in the file."""
ANEW = "a sum can't leave out one of them: contribute under another body (moerge coordinator seed, or body merge)"


def sealed(session: Session, manifest: Manifest, new: NewContribution, signer: str | None) -> Seals | None:
    """The seals of a masked contribution; None: it is not masked.

    They must be for its keepers, and signed by the owner's key. No cohort may have another contribution of the domain
    under the body, because its sum would change.
    """
    if not isinstance(manifest, RouterManifest):
        _require_fitting(new, [])
        return None
    row = ContributionRow
    query = select(row).where(row.body == manifest.body, row.domain == manifest.domain, row.cohort.is_not(None))
    if (found := session.scalar(query.where(row.digest != new.sha256).limit(1))) is not None:
        what = f"contribution {found.digest} of {found.domain!r} is in the sum of cohort {found.cohort} under this body"
        raise RefusedError(ProblemType.CONFLICT, what, where="manifest.body", todo="wait for another body")
    _require_fitting(new, manifest.keepers)
    if new.masks is None:
        return None
    key = session.scalar(select(KeyRow.public_key).where(KeyRow.fingerprint == signer))
    part = MaskedPart.model_validate({**facts_of(manifest), "contribution": new.sha256, "seals": new.masks})
    if key is None or not part.is_genuine(key):
        what, todo = "not signed by the owner's active key", "make a key (moerge worker init), and run the worker again"
        raise RefusedError(ProblemType.FORBIDDEN, what, where="masks.signature", todo=todo)
    return new.masks


def _require_fitting(new: NewContribution, keepers: list[str]) -> None:
    found = [] if new.masks is None else sorted(new.masks.sealed)
    if found != keepers:
        what = f"expected seeds for {len(keepers)} keepers of the contribution, found others for {len(found)}"
        raise RefusedError(ProblemType.INVALID_REQUEST, what, where="masks", todo="run the worker again")


def require_whole(session: Session, chosen: Sequence[ContributionRow], options: SolveOptions) -> None:
    """Requires that the masked ones among a version's contributions are whole cohorts, and a new one of enough owners.

    Their sum allows neither weights of its domains, nor a lambda from tuning splits.
    """
    masked = [row for row in chosen if row.seals is not None]
    if not masked:
        return
    domains = sorted({row.domain for row in masked})
    if options.lambda_scale == "auto":
        what = f"contributions of {', '.join(domains)} are masked, so there are no sums of tuning splits"
        raise RefusedError(
            ProblemType.CONFLICT, what, where="options.lambda_scale", todo="give `lambda_scale` relative"
        )
    weights = options.domain_weights
    if weights == "balanced" or len({weights.get(domain, 1.0) for domain in domains}) > 1:
        what = f"contributions of {', '.join(domains)} are masked, so their domains can't have weights of their own"
        raise RefusedError(
            ProblemType.CONFLICT, what, where="options.domain_weights", todo="give `domain_weights` none"
        )
    digests = {row.digest for row in chosen}
    for number in sorted({row.cohort for row in masked if row.cohort is not None}):
        for row in session.scalars(select(ContributionRow).where(ContributionRow.cohort == number)):
            if row.digest not in digests:
                what = (
                    f"cohort {number} lacks contribution {row.digest} of {row.domain}, which is withdrawn or left out"
                )
                raise RefusedError(
                    ProblemType.CONFLICT, what, where="experts", todo=f"leave out all its domains, or, as {ANEW}"
                )
    if new := [row for row in masked if row.cohort is None]:
        _require_enough(new)


def _require_enough(rows: Sequence[ContributionRow]) -> None:
    seals = {row.domain: row.seals for row in rows if row.seals is not None}
    owners = sorted({row.owner for row in rows})
    least, domain = max((item.owners, domain) for domain, item in seals.items())
    if len(owners) < least:
        what = f"masked contributions of {len(owners)} owners, {', '.join(owners)}; {domain} asks for at least {least}"
        todo = "wait for more owners, or leave these experts out"
        raise RefusedError(ProblemType.NOT_READY, what, where="experts", todo=todo)
    if len({tuple(sorted(item.sealed)) for item in seals.values()}) > 1:
        what = f"masked contributions of {', '.join(seals)} name different keepers"
        raise RefusedError(
            ProblemType.CONFLICT, what, where="experts", todo="ask their owners to name the same keepers"
        )


def unmask(ports: Ports, lineage: Lineage, fetch: Fetch) -> None:
    """Makes the masked contributions without a cohort into one: asks its keepers, and checks the sum. Idempotent.

    Raises:
        ContributionError: the sum isn't one of honest contributions; nobody can tell whose is wrong.
        MoergeError: a keeper refuses or doesn't answer, or the settings have no address of it.
    """
    with ports.database.reading() as session:
        rows = [row for row in _masked(session, lineage) if row.cohort is None]
        if not rows:
            return
        _require_enough(rows)
        body = session.scalars(select(BodyRow).where(BodyRow.digest == lineage.body)).one()
    blobs = ports.blobs
    with ExitStack() as stack:
        files = [stack.enter_context(StatisticsFile(blobs.source(row.digest))) for row in rows]
        Cohort(files)  # before a keeper is asked
        request = MasksRequest(parts=[_part(row, file.manifest) for row, file in zip(rows, files, strict=True)])
        urls = {key: _address(ports.settings.keepers, key) for part in request.parts for key in part.seals.sealed}
        answers = {key: blobs.put("masks", partial(fetch, url, request)).sha256 for key, url in sorted(urls.items())}
        found = CohortFiles((), [blobs.source(answer) for answer in answers.values()])
        _require_plausible(found.opened(stack, files), body)
    with ports.database.transaction("add cohort") as session:
        named = ContributionRow.digest.in_([row.digest for row in rows])
        members = list(session.scalars(select(ContributionRow).where(named)))
        if all(row.cohort is not None for row in members):
            return  # a concurrent copy of the step
        made = CohortRow(body=body.digest, answers=answers)
        session.add(made)
        session.flush()
        for row in members:
            row.cohort = made.number
        tell(session, f"cohort {made.number} is unmasked, as a sum: {', '.join(request.domains)}")


def _require_plausible(cohort: Cohort, body: BodyRow) -> None:
    """Checks the sum like one contribution. Of a domain only the sum of its features is known."""
    todo = f"leave out the expert whose part is wrong; {ANEW}"
    for domain in cohort.domains:
        with _telling(cohort, [domain], todo):
            validate_means(cohort, domain, body.exponents, body.bounds)
    with _telling(cohort, cohort.domains, f"nobody can tell whose part is wrong; {ANEW}"):
        validate(cohort, body.exponents, body.bounds, normalised=FAMILIES[body.family].gain is not None)


@contextmanager
def _telling(cohort: Cohort, domains: Sequence[str], todo: str) -> Iterator[None]:
    """Names the owners whose parts may be wrong."""
    try:
        yield
    except ContributionError as error:
        owners = sorted({file.manifest.owner for file in cohort.members if file.manifest.domain in domains})
        wrong = f"the part of {' or '.join(owners)} is wrong, or a keeper's answer"
        what = f"the sum of {cohort.name}: {error.what}; {wrong}"
        raise ContributionError(what, where=error.where, todo=todo) from error


def _masked(session: Session, lineage: Lineage) -> list[ContributionRow]:
    row = ContributionRow
    query = select(row).where(row.digest.in_(lineage.contributions), row.seals.is_not(None))
    return list(session.scalars(query.order_by(row.digest)))


def _part(row: ContributionRow, manifest: Manifest) -> MaskedPart:
    if not isinstance(manifest, RouterManifest):
        raise ValueError("only router contributions are masked")
    return MaskedPart.model_validate({**facts_of(manifest), "contribution": row.digest, "seals": row.seals})


def _address(keepers: Mapping[str, str], key: str) -> str:
    if key not in keepers:
        what = f"no address of the keeper with the key {key}"
        todo = "add it to the table [keepers] of coordinator.toml, and start the coordinator again"
        raise RefusedError(ProblemType.NOT_READY, what, where="keepers", todo=todo)
    return keepers[key]


def sources(database: Database, blobs: Blobs, lineage: Lineage) -> list[CohortFiles]:
    """The cohorts of a lineage."""
    members: dict[int, list[str]] = {}
    with database.reading() as session:
        for row in _masked(session, lineage):
            if row.cohort is not None:
                members.setdefault(row.cohort, []).append(row.digest)
        cohorts = list(
            session.scalars(select(CohortRow).where(CohortRow.number.in_(members)).order_by(CohortRow.number))
        )
    return [
        CohortFiles(members[row.number], [blobs.source(answer) for answer in row.answers.values()]) for row in cohorts
    ]
