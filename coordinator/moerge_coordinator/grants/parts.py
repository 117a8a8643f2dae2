"""Parts: a version's experts that the same readers may use, as a version of their own."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.bodies.head_kinds import HEADS
from moerge.models.families.registry import FAMILIES
from moerge.routers.ridge import SOLVER
from moerge_coordinator.domain import bodies
from moerge_coordinator.domain.ports import Comparison, Comparisons
from moerge_coordinator.domain.sums import contributions_in
from moerge_coordinator.domain.versions import find_served, named
from moerge_coordinator.domain.withdrawal import require_inputs
from moerge_coordinator.grants.rules import Rules, names_of, readers
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import CohortRow, ContributionRow, VersionRow
from moerge_proto.grants import VersionPart
from moerge_proto.owners import Identity
from moerge_proto.problems import ProblemType
from moerge_proto.recipes import SolveOptions
from moerge_proto.version_names import part_digest, version_name
from moerge_proto.versions import HeadLineage, Lineage


def granted(session: Session, rules: Rules, version: VersionRow) -> Callable[[Collection[str]], list[str]]:
    """Of a reader's names, the domains of a version whose experts it may use, in order.

    A sum of contributions counts all its experts or none: without the grant of one, none of them.
    """
    lineage, sums = version.lineage, list(_summed(session, version.lineage))  # read once for all readers

    def of(names: Collection[str]) -> list[str]:
        found = {domain for domain in lineage.domains if rules.allows(domain, names)}
        for together in sums:
            if not together <= found:
                found -= together
        return [domain for domain in lineage.domains if domain in found]

    return of


def _summed(session: Session, lineage: Lineage) -> Iterator[set[str]]:
    """The domains whose contributions count together, of each sum."""
    for digest in session.scalars(select(CohortRow.sum).where(CohortRow.sum.in_(lineage.contributions))):
        yield _domains(session, [str(digest)])


def _domains(session: Session, files: Sequence[str]) -> set[str]:
    """The domains whose contributions these files count."""
    counted = ContributionRow.digest.in_(list(contributions_in(session, files)))
    return set(session.scalars(select(ContributionRow.domain).where(counted)))


def part_lineage(session: Session, version: VersionRow, domains: Collection[str]) -> Lineage:
    """The lineage of the part of a version with the experts of these domains: that of a solve which names them.

    It has the version's contributions of these domains; routers and a solved head are solved from those alone.
    """
    whole = version.lineage
    kept = [(domain, expert) for domain, expert in zip(whole.domains, whole.experts, strict=True) if domain in domains]
    weights = whole.options.domain_weights
    if weights != "balanced":
        weights = {domain: weight for domain, weight in weights.items() if domain in domains}
    options = {"domain_weights": weights, "top_k": min(whole.options.top_k, len(kept))}

    def of_these(files: Sequence[str]) -> list[str]:
        return [digest for digest in files if _domains(session, [digest]) <= set(domains)]

    head = whole.head.model_copy(update={"contributions": of_these(whole.head.contributions)})
    if whole.head.contributions and not head.contributions:  # all others keep the seed's
        head = HeadLineage(method="seed", revision=HEADS["seed"].revision)
    changed = {
        "head": head,
        "experts": [expert for _, expert in kept],
        "domains": [domain for domain, _ in kept],
        "contributions": of_these(whole.contributions),
        "options": SolveOptions.model_validate(whole.options.model_dump() | options),
        "left_out": [],
        "chat_template": whole.chat_template if whole.chat_template in domains else None,
        "solver": SOLVER,
    }
    return whole.model_copy(update=changed)


def name_of(version: VersionRow, domains: Collection[str]) -> str:
    """The name of the part of a version with the experts of these domains; of all of them, the version's."""
    lineage = version.lineage
    if set(domains) >= set(lineage.domains):
        return version.name
    pairs = zip(lineage.domains, lineage.experts, strict=True)
    return version_name(version.number, part_digest([expert for domain, expert in pairs if domain in domains]))


def reader_lineage(session: Session, settings: Settings, version: VersionRow, reader: Identity) -> Lineage | None:
    """The lineage of the part of a version that a reader may use; None: all of the version.

    Raises:
        RefusedError: no expert of it is granted to the reader, or too few for a model of its class.
    """
    rules = Rules.of(session, settings, version.lineage.domains)
    if len(domains := granted(session, rules, version)(names_of(reader))) == len(version.lineage.domains):
        return None
    if not domains:
        problem = f"no expert of version {version.name} is granted to you"
        raise RefusedError(ProblemType.NOT_GRANTED, problem, where="number", todo="ask the experts' owners")
    if why := _few(session, version)(len(domains)):
        problem = f"of version {version.name} only {', '.join(domains)} is granted to you: {why}"
        raise RefusedError(ProblemType.NOT_GRANTED, problem, where="number", todo="ask the other experts' owners")
    return part_lineage(session, version, domains)


def require_makeable(session: Session, version: VersionRow, lineage: Lineage) -> None:
    """Requires that no input of a part was withdrawn since its version was solved."""
    try:
        require_inputs(session, lineage)
    except RefusedError as error:
        problem = f"your part of version {version.name} can't be made any more: {error.what}"
        todo = "pull the next version, which the operator solves without it"
        raise RefusedError(ProblemType.CONFLICT, problem, where="number", todo=todo) from error


def _few(session: Session, version: VersionRow) -> Callable[[int], str]:
    """Why a model of the version's class can't have so few experts; empty if it can."""
    return FAMILIES[bodies.find(session, version.lineage.body).family].host.few


def sets(session: Session, settings: Settings, version: VersionRow) -> dict[tuple[str, ...], list[str]]:
    """The domains of each part of a version that a valid reader's token may use -> the names of the tokens."""
    rules, result = Rules.of(session, settings, version.lineage.domains), dict[tuple[str, ...], list[str]]()
    few, granted_to = _few(session, version), granted(session, rules, version)
    for token in readers(session):
        domains = tuple(granted_to(names_of(token)))
        if domains and not few(len(domains)):
            result.setdefault(domains, []).append(token.name or f"token {token.id}")
    return result


def list_parts(session: Session, settings: Settings, version: VersionRow) -> list[VersionPart]:
    """The parts of a version that readers may use, and the version itself where one may use all of it."""
    found_sets = sets(session, settings, version)
    return [_part(session, version, domains, names) for domains, names in found_sets.items()]


def part_of(session: Session, settings: Settings, version: VersionRow, reader: Identity) -> VersionPart:
    """The part of a version that a reader may use and pull: the version itself, if that is all of it."""
    lineage = reader_lineage(session, settings, version, reader)
    part = _part(session, version, (lineage or version.lineage).domains, filter(None, [reader.name]))
    if lineage is None or version.retired is not None:
        find_served(session, version.number)
    elif not part.made:
        require_makeable(session, version, lineage)
    return part


def _part(session: Session, version: VersionRow, domains: Sequence[str], names: Iterable[str]) -> VersionPart:
    row = found(session, name_of(version, domains))
    return VersionPart(
        name=name_of(version, domains),
        domains=list(domains),
        left_out=[domain for domain in version.lineage.domains if domain not in domains],
        readers=sorted(set(names)),
        made=row is not None,
        bytes_written=None if row is None else row.bytes_written,
    )


def found(session: Session, name: str) -> VersionRow | None:
    """The unretired version, or part of one, of that name."""
    row = named(session, name)
    return None if row is None or row.retired is not None else row


def on_parts(comparisons: Comparisons) -> Comparison:
    """The comparison of the parts that readers have of the champion with those that they would have of a version."""

    def compare(
        session: Session, version: VersionRow, champion: VersionRow | None, settings: Settings
    ) -> tuple[list[str], list[str]]:
        falls = list[str]()
        if champion is None:
            return falls, []
        rules = Rules.of(session, settings)
        new_to, old_to = granted(session, rules, version), granted(session, rules, champion)
        every = map(names_of, readers(session))
        pairs = {(name_of(version, new_to(names)), name_of(champion, old_to(names))) for names in every}
        for new, old in sorted(pairs - {(version.name, champion.name)}):
            after, before = found(session, new), found(session, old)
            if after is None or before is None:
                continue
            without = ", ".join(domain for domain in version.lineage.domains if domain not in after.lineage.domains)
            title = f"part {new}, without {without}" if without else f"version {new}, compared with part {old}"
            for one in comparisons:
                lost, _ = one(session, after, before, settings)  # most have no scores: not worth a warning
                falls += [f"{title}: {fall}" for fall in lost]
        return falls, []

    return compare
