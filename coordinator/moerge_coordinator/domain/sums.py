"""Sums of contributions: the contributions of a cohort count together, as one file, or not at all."""

from collections.abc import Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import CohortRow, ContributionRow
from moerge_proto.problems import ProblemType
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import RouterManifest

ANEW = "a sum can't leave out one of them: contribute under another body (moerge coordinator seed)"


def counted(session: Session, chosen: Sequence[ContributionRow], options: SolveOptions) -> list[str]:
    """The digests of the files that count these router contributions: their own, and the sums of whole cohorts.

    A sum allows neither weights of its domains, nor a lambda from tuning splits.
    """
    digests, numbers = {row.digest for row in chosen}, {row.cohort for row in chosen if row.cohort is not None}
    if together := [row for row in chosen if not row.alone]:
        _require_fitting(sorted({row.domain for row in together}), options)
    files = [row.digest for row in chosen if row.alone]
    for cohort in session.scalars(select(CohortRow).where(CohortRow.number.in_(numbers)).order_by(CohortRow.number)):
        if cohort.sum is None:
            what, todo = f"the sum of cohort {cohort.number} is not known yet", "run: moerge coordinator unmask"
            raise RefusedError(ProblemType.NOT_READY, what, where="experts", todo=todo)
        for row in of_cohort(session, cohort):
            if row.digest not in digests:
                what = f"cohort {cohort.number} lacks contribution {row.digest} of {row.domain}"
                todo = f"leave out all its domains, or, as {ANEW}"
                raise RefusedError(
                    ProblemType.CONFLICT, f"{what}, which is withdrawn or left out", where="experts", todo=todo
                )
        files.append(cohort.sum)
    if loose := sorted({row.domain for row in together if row.cohort is None}):
        what = f"contributions of {', '.join(loose)} count only in a sum, and are in no cohort"
        todo = "run: moerge coordinator cohort; or leave these experts out"
        raise RefusedError(ProblemType.NOT_READY, what, where="experts", todo=todo)
    return sorted(files)


def _require_fitting(domains: Sequence[str], options: SolveOptions) -> None:
    what, weights = f"contributions of {', '.join(domains)} count as a sum", options.domain_weights
    if options.lambda_scale == "auto":
        what, todo = f"{what}, so there are no sums of tuning splits", "give `lambda_scale` relative"
        raise RefusedError(ProblemType.CONFLICT, what, where="options.lambda_scale", todo=todo)
    if weights == "balanced" or len({weights.get(domain, 1.0) for domain in domains}) > 1:
        what, todo = f"{what}, so their domains can't have weights of their own", "give `domain_weights` none"
        raise RefusedError(ProblemType.CONFLICT, what, where="options.domain_weights", todo=todo)


def of_cohort(session: Session, cohort: CohortRow) -> list[ContributionRow]:
    query = select(ContributionRow).where(ContributionRow.cohort == cohort.number)
    return list(session.scalars(query.order_by(ContributionRow.digest)))


def contributions_in(session: Session, digests: Sequence[str]) -> Iterator[str]:
    """The contributions that files count: of a sum its members, of another file itself."""
    cohorts = {row.sum: row for row in session.scalars(select(CohortRow).where(CohortRow.sum.in_(digests)))}
    for digest in digests:
        if digest in cohorts:
            yield from (row.digest for row in of_cohort(session, cohorts[digest]))
        else:
            yield digest


def require_open(session: Session, manifest: RouterManifest, digest: str) -> None:
    """Requires that no cohort has another contribution of the domain under the body: its sum would change."""
    row = ContributionRow
    query = select(row).where(row.body == manifest.body, row.domain == manifest.domain, row.cohort.is_not(None))
    if (found := session.scalar(query.where(row.digest != digest).limit(1))) is not None:
        what = f"contribution {found.digest} of {found.domain!r} is in the sum of cohort {found.cohort} under this body"
        raise RefusedError(ProblemType.CONFLICT, what, where="manifest.body", todo="wait for another body")
