"""Owners' decisions on the readers of their experts, and what they mean for a caller."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import public_log
from moerge_coordinator.domain.owners import own_name, require_own_domain
from moerge_coordinator.domain.tokens import ended
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import DomainRow, GrantRow, TokenRow, VersionRow, now, tell
from moerge_proto.grants import ALL, Decided, DomainReaders, Grant, ReaderOf, Usable, grant_content
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType

_NEVER = datetime.max
"""The end of a grant without one, to compare ends."""


@dataclass(frozen=True)
class Rules:
    """The owners' rules at one moment.

    Attributes:
        decided: domain -> reader -> the last decision; a domain without one has the federation's default.
        default: whether all readers may use an expert of such a domain.
    """

    decided: Mapping[str, Mapping[str, GrantRow]]
    default: bool
    when: datetime

    @classmethod
    def of(
        cls,
        session: Session,
        settings: Settings,
        domains: Collection[str] | None = None,
        names: Collection[str] | None = None,
    ) -> "Rules":
        """The rules of these domains, as far as they are about these names; None: of all."""
        query, ruled = select(GrantRow).order_by(GrantRow.number), select(GrantRow.domain).distinct()
        if domains is not None:
            these = GrantRow.domain.in_(domains)
            query, ruled = query.where(these), ruled.where(these)
        if names is not None:
            query = query.where(GrantRow.reader.in_((ALL, *names)))
        decided: dict[str, dict[str, GrantRow]] = {domain: {} for domain in session.scalars(ruled)}
        for row in session.scalars(query):
            decided[row.domain][row.reader] = row
        return cls(decided, settings.readers == "all", now(session))

    def valid(self, domain: str) -> dict[str, datetime | None]:
        """The names to which a domain is granted now, with the ends of the grants."""
        if domain not in self.decided:
            return {ALL: None} if self.default else {}
        rows = self.decided[domain].values()
        return {row.reader: row.until for row in rows if row.granted and (row.until is None or row.until > self.when)}

    def until(self, domain: str, names: Collection[str]) -> datetime | None:
        """The last end of the grants of a domain to these names, in the year 9999 if it has none; None: no grant."""
        valid = self.valid(domain)
        ends = [valid[name] or _NEVER.replace(tzinfo=self.when.tzinfo) for name in (ALL, *names) if name in valid]
        return max(ends, default=None)

    def allows(self, domain: str, names: Collection[str]) -> bool:
        return not self.valid(domain).keys().isdisjoint((ALL, *names))


def names_of(reader: Identity | TokenRow) -> tuple[str, ...]:
    """The names to which an owner may grant an expert so that this reader has it."""
    return (*filter(None, [reader.name]), *reader.groups)


def readers(session: Session) -> list[TokenRow]:
    """The valid tokens of readers."""
    rows = session.scalars(select(TokenRow).where(TokenRow.role == Role.READER).order_by(TokenRow.id))
    return [row for row in rows if ended(row, now(session)) is None]


def require_granted(session: Session, settings: Settings, caller: Identity, version: VersionRow) -> None:
    """Requires that a reader may use all experts of a version, or of a part of one."""
    if caller.role is not Role.READER:
        return
    names, domains = names_of(caller), version.lineage.domains
    rules = Rules.of(session, settings, domains, names)
    if closed := [domain for domain in domains if not rules.allows(domain, names)]:
        problem = f"experts of version {version.name} aren't granted to you: {', '.join(closed)}"
        todo = "run: moerge pull, which fetches the part of it that is; or ask these experts' owners"
        raise RefusedError(ProblemType.NOT_GRANTED, problem, where="number", todo=todo)


def decide(
    session: Session,
    settings: Settings,
    caller: Identity,
    domain: str,
    reader: str,
    until: datetime | None,
    *,
    granted: bool,
) -> Decided:
    """Grants a domain's experts to a reader, or revokes that. Idempotent."""
    require_own_domain(caller, domain)
    if until is not None and until <= now(session):
        problem = f"{until:%Y-%m-%d %H:%M} UTC is not in the future"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="until", todo="give a later time, or none")
    before = Rules.of(session, settings, [domain])
    last = before.decided.get(domain, {}).get(reader)
    if not granted and last is None and reader != ALL:
        _require_a_rule(before, domain, reader)
    if last is None or (last.granted, last.until) != (granted, until):
        last = GrantRow(domain=domain, owner=own_name(caller), reader=reader, granted=granted, until=until)
        session.add(last)
        session.flush()
        public_log.record(session, "grant", str(last.number), grant_content(last))
        tell(session, f"{domain} is {'granted to' if granted else 'no longer granted to'} {reader}")
    after = Rules.of(session, settings, [domain])
    groups = [name for token in readers(session) if token.name == reader for name in token.groups]
    still = [] if granted else [name for name in after.valid(domain) if name in (ALL, *groups)]
    return Decided(grant=message(Grant, last), readers=_people(session, after, domain), still=sorted(set(still)))


def _require_a_rule(rules: Rules, domain: str, reader: str) -> None:
    """Requires an owner's rule, which the revocation of one reader would otherwise make, and shut out all others."""
    if domain in rules.decided:
        return
    if rules.default:
        problem = f"{domain!r} is open to all readers, because you have granted it to none"
        todo = f"grant it to those who may use it; then others can't. To close it to all, revoke it from {ALL!r}"
    else:
        problem, todo = f"{domain!r} was never granted to {reader!r}", "run: moerge expert grants"
    raise RefusedError(ProblemType.CONFLICT, problem, where="reader", todo=todo)


def of_domain(session: Session, settings: Settings, domain: str) -> DomainReaders:
    """The readers of a domain's experts."""
    row = existing(session.get(DomainRow, domain), f"domain {domain!r}", "domain", "run: moerge expert list")
    rules = Rules.of(session, settings, [domain])
    return DomainReaders(
        domain=domain,
        owner=row.owner,
        own_rule=domain in rules.decided,
        readers=[ReaderOf(reader=name, until=end) for name, end in sorted(rules.valid(domain).items())],
        people=_people(session, rules, domain),
    )


def _people(session: Session, rules: Rules, domain: str) -> list[str]:
    """The names of valid readers' tokens that may use a domain's experts."""
    tokens = [token for token in readers(session) if rules.allows(domain, names_of(token))]
    return sorted({token.name or f"token {token.id}" for token in tokens})


def usable(session: Session, settings: Settings, caller: Identity) -> Sequence[Usable]:
    """The domains whose experts a reader or an operator may use."""
    rules, domains = Rules.of(session, settings), session.scalars(select(DomainRow.name).order_by(DomainRow.name))
    if caller.role is Role.OPERATOR:
        return [Usable(domain=domain, until=None) for domain in domains]
    found = [(domain, rules.until(domain, names_of(caller))) for domain in domains]
    return [
        Usable(domain=name, until=None if end.year == _NEVER.year else end) for name, end in found if end is not None
    ]
