"""Cohorts of masked contributions, and their sums, once their keepers have answered with the sums of the masks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.errors import ContributionError, MoergeError
from moerge.masks.files import sum_manifest, write_sum
from moerge.models.families.registry import FAMILIES
from moerge.statistics.validate import validate, validate_means
from moerge_coordinator.domain import bodies
from moerge_coordinator.domain.sums import ANEW, of_cohort
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import BodyRow, CohortRow, ContributionRow, SealsRow, tell
from moerge_proto.masks import MaskedPart, MasksRequest, MaskSums, facts_of
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import MAX_SUMMED, RouterManifest, StatisticsFile, Sums


def _require_enough(session: Session, rows: Sequence[ContributionRow]) -> None:
    seals = {row.domain: session.get_one(SealsRow, row.digest).seals for row in rows}
    owners = sorted({row.owner for row in rows})
    least, domain = max((item.owners, domain) for domain, item in seals.items())
    if len(owners) < least:
        what = f"masked contributions of {len(owners)} owners, {', '.join(owners)}; {domain} asks for at least {least}"
        todo = "wait for more owners, or leave these experts out"
        raise RefusedError(ProblemType.NOT_READY, what, where="experts", todo=todo)
    if len(rows) > MAX_SUMMED:
        what = f"{len(rows)} masked contributions; a cohort has at most {MAX_SUMMED}"
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
            for row in of_cohort(session, made):
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
            _require_enough(session, rows)
            made = CohortRow(body=body.digest)
            session.add(made)
            session.flush()
            for row in rows:
                row.cohort = made.number
            names = ", ".join(sorted({row.domain for row in rows}))
            tell(session, f"cohort {made.number} waits for its keepers: {names}")
        with ExitStack() as stack:
            files = _opened(blobs, of_cohort(session, made), stack)
            sum_manifest(files)  # can be added
            return _request(session, files)


def unmask(database: Database, blobs: Blobs, answers: Sequence[Path]) -> int:
    """Makes the sum of the cohort that waits known: subtracts its keepers' answers, and checks the sum; its number.

    The answers aren't kept: the keepers give the same ones again.

    Raises:
        ContributionError: the sum isn't one of honest contributions.
        MoergeError: an answer is missing, or is no keeper's answer to this request.
    """
    with ExitStack() as stack:
        with database.reading() as session:
            body = bodies.find(session, None)
            made = existing(_waiting(session, body), "cohort that waits", todo="run: moerge coordinator cohort")
            rows = of_cohort(session, made)
            for row in rows:
                if not row.active:
                    what = f"contribution {row.digest} of {row.domain} was withdrawn from cohort {made.number}"
                    todo = "make another: moerge coordinator cohort --anew; keepers that have answered may refuse it"
                    raise RefusedError(ProblemType.CONFLICT, what, where="ANSWERS", todo=todo)
            stack.enter_context(blobs.holding())
            files = _opened(blobs, rows, stack)
            request = _request(session, files)
        given = _by_keeper(request, answers, stack)
        summed = blobs.put("sum", lambda out: write_sum(out, files, given)).sha256
        with Sums(blobs.source(summed)) as file:
            _require_plausible(file, body)
        with database.transaction("unmask cohort") as session:
            cohort = session.get(CohortRow, made.number)
            same = cohort is not None and [row.digest for row in of_cohort(session, cohort)] == list(files)
            if cohort is None or not same or not blobs.has(summed):
                what, todo = f"cohort {made.number} was changed meanwhile", "run: moerge coordinator cohort"
                raise RefusedError(ProblemType.CONFLICT, what, where="ANSWERS", todo=todo)
            cohort.sum = summed
            tell(session, f"cohort {made.number} is unmasked, as a sum: {', '.join(request.domains)}")
    return made.number


def _waiting(session: Session, body: BodyRow) -> CohortRow | None:
    """The cohort under a body whose keepers haven't answered."""
    every = session.scalars(select(CohortRow).where(CohortRow.body == body.digest))
    return next((row for row in every if row.sum is None), None)


def _alone(session: Session, body: BodyRow) -> list[ContributionRow]:
    """The active masked contributions under a body that are in no cohort."""
    row = ContributionRow
    query = select(row).where(row.body == body.digest, row.active, ~row.alone, row.cohort.is_(None))
    return list(session.scalars(query))


def _opened(blobs: Blobs, rows: Sequence[ContributionRow], stack: ExitStack) -> dict[str, StatisticsFile]:
    return {row.digest: stack.enter_context(StatisticsFile(blobs.source(row.digest))) for row in rows}


def _request(session: Session, files: Mapping[str, StatisticsFile]) -> MasksRequest:
    """The request for a cohort's masks."""
    return MasksRequest(parts=[_part(session, digest, file) for digest, file in files.items()])


def _part(session: Session, digest: str, file: StatisticsFile) -> MaskedPart:
    if not isinstance(file.manifest, RouterManifest):
        raise ValueError("only router contributions are masked")
    seals = session.get_one(SealsRow, digest).seals
    return MaskedPart.model_validate({**facts_of(file.manifest), "contribution": digest, "seals": seals})


def _by_keeper(request: MasksRequest, answers: Sequence[Path], stack: ExitStack) -> list[MaskSums]:
    """The answers to a request, one of each keeper; all of its keepers must have answered."""
    found, first = dict[str, MaskSums](), request.parts[0]
    for path in answers:
        todo = "name the files that the keepers made of this request: moerge keeper answer"
        try:
            sums = stack.enter_context(MaskSums(path, first.hidden_size, first.layers, request.domains))
        except ValueError as error:
            raise MoergeError(f"not an answer to this request: {error}", where=str(path), todo=todo) from error
        if sums.request != request.digest or sums.keeper not in request.keepers:
            what = f"an answer of keeper {sums.keeper[:12]} to request {sums.request[:12]}"
            raise MoergeError(f"{what}; expected one to {request.digest[:12]}", where=str(path), todo=todo)
        found[sums.keeper] = sums
    if missing := sorted(request.keepers - found.keys()):
        what = f"no answer of {len(missing)} of {len(request.keepers)} keepers: {', '.join(missing)}"
        raise MoergeError(what, where="ANSWERS", todo="name the answers of all keepers")
    return list(found.values())


def _require_plausible(file: Sums, body: BodyRow) -> None:
    """Checks the sum like one contribution. Of a domain only the sum of its features is known."""
    todo = f"leave out the expert whose part is wrong; {ANEW}"
    for domain in file.domains:
        with _telling(file, [domain], todo):
            validate_means(file, domain, body.exponents, body.bounds)
    with _telling(file, list(file.domains), f"nobody can tell whose part is wrong; {ANEW}"):
        validate(file, body.exponents, body.bounds, normalised=FAMILIES[body.family].gain is not None)


@contextmanager
def _telling(file: Sums, domains: Sequence[str], todo: str) -> Iterator[None]:
    """Names the owners whose parts may be wrong."""
    try:
        yield
    except ContributionError as error:
        owners = sorted({file.domains[domain].owner for domain in domains})
        wrong = f"the part of {' or '.join(owners)} is wrong, or a keeper's answer"
        what = f"the sum of the cohort of {', '.join(file.domains)}: {error.what}; {wrong}"
        raise ContributionError(what, where=error.where, todo=todo) from error
