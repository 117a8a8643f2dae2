"""The oracle: a coordinator's state after each operation took effect once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from moerge_proto.bodies import HeadMethod
from moerge_proto.grants import ALL

Body = int
"""The body of the first registered seed, or of the second."""
BODIES: tuple[Body, ...] = (0, 1)
Place = tuple[Body, str]
"""A domain's parts for a body."""
SHARDS: dict[int, frozenset[int]] = {0: frozenset({0, 1}), 1: frozenset({1, 2}), 2: frozenset({3})}
"""The shards of each variant of a domain's contribution."""


READERS = ("anna", "ben")
FOR_EVER, REVOKED = math.inf, -math.inf
"""The end of a grant without one, and that of a revoked grant."""


class Sent(NamedTuple):
    """A router contribution of a domain's parts."""

    body: Body
    domain: str
    variant: int


class Key(NamedTuple):
    """The inputs of a version."""

    body: Body
    domains: tuple[str, ...]
    sent: frozenset[Sent]
    ridge_lambda: float
    head: HeadMethod

    def part(self, domains: tuple[str, ...]) -> "Key":
        """The inputs of the part with these domains."""
        sent = frozenset(item for item in self.sent if item.domain in domains)
        return self._replace(domains=domains, sent=sent)


class Decision(NamedTuple):
    """An owner's decision. `end`: of the grant, in hours of the coordinator's clock since the schedule's start."""

    domain: str
    reader: str
    end: float


@dataclass
class Made:
    """A version, or a part of one. A version's parts are retired with it."""

    key: Key
    retired: bool = False
    withheld: bool = False
    parts: dict[tuple[str, ...], "Made"] = field(default_factory=dict)


@dataclass
class Model:
    """Answers each operation with its result, or with the type of the problem that refuses it.

    Attributes:
        arrivals: registered parts, of which some are `ready` or `purged`.
        heads: domain -> state of the head contribution of its parts for the first body, which serves both.
    """

    arrivals: list[Place] = field(default_factory=list)
    ready: set[Place] = field(default_factory=set)
    purged: set[Place] = field(default_factory=set)
    body: Body = 0
    sent: dict[Sent, str] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    versions: list[Made] = field(default_factory=list)
    champion: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    ahead: float = 0.0

    def join(self, domain: str) -> str:
        place = self.body, domain
        if place not in self.arrivals:
            self.arrivals.append(place)
        self.ready.add(place)
        self.purged.discard(place)
        return "ready"

    def seed(self, body: Body) -> None:
        self.body = body

    def contribute(self, item: Sent, supersedes: int | None = None) -> str:
        if self.sent.get(item) in ("active", "superseded"):
            return self.sent[item]
        old = None if supersedes is None else item._replace(variant=supersedes)
        if old is not None and self.sent.get(old) != "active":
            return "conflict"
        if item[:2] not in self.ready:
            return "invalid-contribution"
        if item.body != self.body:
            return "wrong-body"
        taken = {
            shard
            for other, state in self.sent.items()
            if state == "active" and other != old and other[:2] == item[:2]
            for shard in SHARDS[other.variant]
        }
        if taken & SHARDS[item.variant]:
            return "duplicate-shard"
        if old is not None:
            self.sent[old] = "superseded"
        self.sent[item] = "active"
        return "active"

    def contribute_head(self, domain: str) -> str:
        if (0, domain) not in self.ready:
            return self.heads[domain] if self.heads.get(domain) == "active" else "invalid-contribution"
        self.heads[domain] = "active"
        return "active"

    def withdraw_contribution(self, item: Sent) -> str:
        self.sent[item] = "withdrawn"
        return "withdrawn"

    def withdraw(self, place: Place, *, serve: bool) -> str:
        self.ready.discard(place)
        for item in self.sent:
            if item[:2] == place:
                self.sent[item] = "withdrawn"
        if place[0] == 0 and place[1] in self.heads:
            self.heads[place[1]] = "withdrawn"
        if not serve:
            for made in self._containing(place):
                made.withheld = True
                for domains, part in made.parts.items():
                    part.withheld |= place[1] in domains
        return "withdrawn"

    def _containing(self, place: Place) -> list[Made]:
        return [made for made in self.versions if not made.retired and made.key.body == place[0]
                and place[1] in made.key.domains]  # fmt: skip

    def purge(self, place: Place, *, retire: bool) -> str:
        if place in self.ready:
            return "conflict"
        containing = self._containing(place)
        if retire:
            if any(self.versions.index(made) + 1 == self._pointed() for made in containing):
                return "conflict"
            for made in containing:
                made.retired = True
        self.purged.add(place)
        return "purged"

    def solve(self, ridge_lambda: float, head: HeadMethod | None) -> str:
        sent = {item for item, state in self.sent.items() if state == "active" and item.body == self.body}
        domains = tuple(domain for body, domain in self.arrivals if any(item[:2] == (body, domain) for item in sent))
        if not domains:
            return "not-ready"
        complete = all(self.heads.get(domain) == "active" for domain in domains)
        key = Key(self.body, domains, frozenset(sent), ridge_lambda, head or ("regmean" if complete else "average"))
        for number, made in enumerate(self.versions, start=1):
            if made.key == key and not made.retired:
                return str(number)
        self.versions.append(Made(key))
        return str(len(self.versions))

    def _pointed(self) -> int | None:
        return self.champion[-1] if self.champion else None

    def promote(self, number: int) -> str:
        made = self.versions[number - 1]
        if made.retired or made.withheld:
            return "gone"
        if self._pointed() != number:
            self.champion.append(number)
        return str(number)

    def roll_back(self) -> str:
        stack = self.champion[:-1]
        while stack and (self.versions[stack[-1] - 1].retired or self.versions[stack[-1] - 1].withheld):
            stack.pop()
        if not stack:
            return "conflict"
        self.champion = stack
        return str(stack[-1])

    def retire(self, number: int) -> str:
        if self._pointed() == number:
            return "conflict"
        self.versions[number - 1].retired = True
        return "retired"

    def served(self) -> Sequence[int]:
        return [n for n, made in enumerate(self.versions, start=1) if not made.retired and not made.withheld]

    def _last(self, domain: str) -> dict[str, float]:
        """Reader -> the end in the last decision on it."""
        return {decision.reader: decision.end for decision in self.decisions if decision.domain == domain}

    def allows(self, domain: str, reader: str) -> bool:
        last = self._last(domain)
        return not last or any(last.get(name, REVOKED) > self.ahead for name in (ALL, reader))

    def decide(self, domain: str, reader: str, end: float) -> str:
        """The names of the readers who may use the domain's experts after the decision."""
        last = self._last(domain)
        if end == REVOKED and not last and reader != ALL:
            return "conflict"
        if last.get(reader) != end:
            self.decisions.append(Decision(domain, reader, end))
        return " ".join(name for name in READERS if self.allows(domain, name))

    def granted(self, number: int, reader: str) -> tuple[str, ...]:
        """The domains of a version that a reader may use."""
        return tuple(domain for domain in self.versions[number - 1].key.domains if self.allows(domain, reader))

    def part(self, number: int, reader: str) -> str:
        """A reader's pull of a version; the part is made, unless it is there."""
        made, domains = self.versions[number - 1], self.granted(number, reader)
        if made.retired:
            return "gone"
        if domains == made.key.domains:
            return "gone" if made.withheld else "pulled"
        if not domains:
            return "not-granted"
        part = made.parts.get(domains)
        if part is None and not self._usable(made.key.part(domains)):
            return "conflict"
        if part is None:
            part = made.parts[domains] = Made(made.key.part(domains))
        return "gone" if part.withheld else "pulled"

    def _usable(self, key: Key) -> bool:
        """Tell whether none of the inputs is withdrawn."""
        heads = key.domains if key.head == "regmean" else ()
        return (
            all((key.body, domain) in self.ready for domain in key.domains)
            and all(self.sent[item] != "withdrawn" for item in key.sent)
            and all(self.heads[domain] != "withdrawn" for domain in heads)
        )
