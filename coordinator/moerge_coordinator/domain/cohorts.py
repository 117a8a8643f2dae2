"""Cohorts: masked contributions that count together, once their keepers have answered with the sums of their masks."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.errors import ContributionError, MoergeError
from moerge.models.families.registry import FAMILIES
from moerge.statistics.cohort import Cohort, CohortFiles
from moerge.statistics.validate import validate, validate_means
from moerge.versions.file_plans import copied_bytes
from moerge_coordinator.domain import bodies
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import BodyRow, CohortRow, ContributionRow, KeyRow, tell
from moerge_proto.contributions import NewContribution
from moerge_proto.masks import MAX_PARTS, MaskedPart, MasksRequest, MaskSums, Seals, facts_of
from moerge_proto.options import SolveOptions
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import Manifest, RouterManifest, StatisticsFile
from moerge_proto.versions import Lineage

ANEW = "a sum can't leave out one of them: contribute under another body (moerge coordinator seed)"


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
    """Requires that the masked ones among a version's contributions are whole cohorts, whose sums are known.

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
        if not session.scalars(select(CohortRow).where(CohortRow.number == number)).one().answers:
            what, todo = f"cohort {number} waits for its keepers' answers", "bring them: moerge coordinator unmask"
            raise RefusedError(ProblemType.NOT_READY, what, where="experts", todo=todo)
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
        what = f"masked contributions of {', '.join(sorted({row.domain for row in new}))} are in no cohort"
        todo = "ask their keepers: moerge coordinator cohort; or leave these experts out"
        raise RefusedError(ProblemType.NOT_READY, what, where="experts", todo=todo)


def _require_enough(rows: Sequence[ContributionRow]) -> None:
    seals = {row.domain: row.seals for row in rows if row.seals is not None}
    owners = sorted({row.owner for row in rows})
    least, domain = max((item.owners, domain) for domain, item in seals.items())
    if len(owners) < least:
        what = f"masked contributions of {len(owners)} owners, {', '.join(owners)}; {domain} asks for at least {least}"
        todo = "wait for more owners, or leave these experts out"
        raise RefusedError(ProblemType.NOT_READY, what, where="experts", todo=todo)
    if len(rows) > MAX_PARTS:
        what = f"{len(rows)} masked contributions; a cohort has at most {MAX_PARTS}"
        raise RefusedError(ProblemType.CONFLICT, what, where="experts", todo="make cohorts of fewer domains")
    if len({tuple(sorted(item.sealed)) for item in seals.values()}) > 1:
        what = f"masked contributions of {', '.join(seals)} name different keepers"
        raise RefusedError(
            ProblemType.CONFLICT, what, where="experts", todo="ask their owners to name the same keepers"
        )


def dissolve(database: Database) -> None:
    """Dissolves the cohort that waits, if there is one. Keepers that have answered it refuse others of its domains."""
    with database.transaction("dissolve cohort") as session:
        if (made := _waiting(session, bodies.find(session, None))) is not None:
            for row in _members(session, made):
                row.cohort = None
            session.flush()
            session.delete(made)


def ask(database: Database, blobs: Blobs, domains: Collection[str] = ()) -> MasksRequest:
    """Makes the masked contributions without a cohort into one, which waits for its keepers' answers; their request.

    From now on its contributions stay as they are. If a cohort waits already, its request is given again.

    Args:
        domains: only these; default: all.

    Raises:
        RefusedError: there are too few owners, or they name different keepers.
        ContributionError: the sums can't be added.
    """
    with database.transaction("ask keepers") as session:
        body = bodies.find(session, None)
        if (made := _waiting(session, body)) is None:
            rows = [row for row in _alone(session, body) if not domains or row.domain in domains]
            if not rows:
                what, todo = "no masked contribution is without a cohort", "wait for more: moerge contribution list"
                raise RefusedError(ProblemType.NOT_READY, what, where="[masks]", todo=todo)
            _require_enough(rows)
            made = CohortRow(body=body.digest, answers={})
            session.add(made)
            session.flush()
            for row in rows:
                row.cohort = made.number
            names = ", ".join(sorted({row.domain for row in rows}))
            tell(session, f"cohort {made.number} waits for its keepers: {names}")
        with ExitStack() as stack:
            return _request(blobs, _members(session, made), stack)[0]


def unmask(database: Database, blobs: Blobs, answers: Sequence[Path]) -> int:
    """Makes the sum of the cohort that waits known: adds up its keepers' answers, and checks the sum; its number.

    Raises:
        ContributionError: the sum isn't one of honest contributions.
        MoergeError: an answer is missing, or is no keeper's answer to this request.
    """
    with database.reading() as session:
        body = bodies.find(session, None)
        made = existing(_waiting(session, body), "cohort that waits", todo="run: moerge coordinator cohort")
        rows = _members(session, made)
    for row in rows:
        if not row.active:
            what = f"contribution {row.digest} of {row.domain} was withdrawn from cohort {made.number}"
            todo = "make another cohort: moerge coordinator cohort --anew; keepers that have answered may refuse it"
            raise RefusedError(ProblemType.CONFLICT, what, where="ANSWERS", todo=todo)
    with ExitStack() as stack:
        request, files = _request(blobs, rows, stack)
        given = _by_keeper(request, answers)
        stack.enter_context(blobs.holding())
        kept = {
            keeper: blobs.put("masks", partial(copied_bytes, path)).sha256 for keeper, path in sorted(given.items())
        }
        found = CohortFiles((), [blobs.source(digest) for digest in kept.values()])
        _require_plausible(found.opened(stack, files), body)
        with database.transaction("unmask cohort") as session:
            cohort = session.get(CohortRow, made.number)
            if cohort is None or [row.digest for row in _members(session, cohort)] != [row.digest for row in rows]:
                what, todo = f"cohort {made.number} was dissolved meanwhile", "run: moerge coordinator cohort"
                raise RefusedError(ProblemType.CONFLICT, what, where="ANSWERS", todo=todo)
            cohort.answers = kept
            tell(session, f"cohort {made.number} is unmasked, as a sum: {', '.join(request.domains)}")
    return made.number


def _waiting(session: Session, body: BodyRow) -> CohortRow | None:
    """The cohort under a body whose keepers haven't answered."""
    every = session.scalars(select(CohortRow).where(CohortRow.body == body.digest))
    return next((row for row in every if not row.answers), None)


def _alone(session: Session, body: BodyRow) -> list[ContributionRow]:
    """The active masked contributions under a body that are in no cohort."""
    row = ContributionRow
    query = select(row).where(row.body == body.digest, row.active, row.seals.is_not(None), row.cohort.is_(None))
    return list(session.scalars(query))


def _members(session: Session, cohort: CohortRow) -> list[ContributionRow]:
    query = select(ContributionRow).where(ContributionRow.cohort == cohort.number)
    return list(session.scalars(query.order_by(ContributionRow.digest)))


def _request(
    blobs: Blobs, rows: Sequence[ContributionRow], stack: ExitStack
) -> tuple[MasksRequest, list[StatisticsFile]]:
    """The request for a cohort's masks, and its opened files."""
    files = [stack.enter_context(StatisticsFile(blobs.source(row.digest))) for row in rows]
    Cohort(files)  # can be added
    return MasksRequest(parts=[_part(row, file.manifest) for row, file in zip(rows, files, strict=True)]), files


def _by_keeper(request: MasksRequest, answers: Sequence[Path]) -> dict[str, Path]:
    """The answers to a request, by keeper's key; all of its keepers must have answered."""
    found, first = dict[str, Path](), request.parts[0]
    for path in answers:
        todo = "name the files that the keepers made of this request: moerge keeper answer"
        try:
            with MaskSums(path, first.hidden_size, first.layers, request.domains) as sums:
                keeper, of = sums.keeper, sums.request
        except ValueError as error:
            raise MoergeError(f"not an answer to this request: {error}", where=str(path), todo=todo) from error
        if of != request.digest or keeper not in request.keepers:
            what = f"an answer of keeper {keeper[:12]} to request {of[:12]}; expected one to {request.digest[:12]}"
            raise MoergeError(what, where=str(path), todo=todo)
        found[keeper] = path
    if missing := sorted(request.keepers - found.keys()):
        what = f"no answer of {len(missing)} of {len(request.keepers)} keepers: {', '.join(missing)}"
        raise MoergeError(what, where="ANSWERS", todo="name the answers of all keepers")
    return found


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


def _part(row: ContributionRow, manifest: Manifest) -> MaskedPart:
    if not isinstance(manifest, RouterManifest):
        raise ValueError("only router contributions are masked")
    return MaskedPart.model_validate({**facts_of(manifest), "contribution": row.digest, "seals": row.seals})


def sources(database: Database, blobs: Blobs, lineage: Lineage) -> list[CohortFiles]:
    """The cohorts of a lineage."""
    row, members = ContributionRow, dict[int, list[str]]()
    with database.reading() as session:
        named = select(row).where(row.digest.in_(lineage.contributions), row.cohort.is_not(None))
        for item in session.scalars(named.order_by(row.digest)):
            members.setdefault(item.cohort or 0, []).append(item.digest)
        cohorts = session.scalars(select(CohortRow).where(CohortRow.number.in_(members)).order_by(CohortRow.number))
        answers = {cohort.number: list(cohort.answers.values()) for cohort in cohorts}
    return [CohortFiles(members[number], list(map(blobs.source, digests))) for number, digests in answers.items()]
