"""The oracle: a coordinator's state after each operation took effect once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from moerge_proto.bodies import HeadMethod

Body = tuple[str, ...]
"""A body's domains, in order."""
SEED: Body = ()
"""The registered seed's body."""
SHARDS: dict[int, frozenset[int]] = {0: frozenset({0, 1}), 1: frozenset({1, 2}), 2: frozenset({3})}
"""The shards of each variant of a domain's contribution."""


class Sent(NamedTuple):
    """A router contribution; under the seed's body, of the domain's parts."""

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
    withdrawn: tuple[str, ...]


@dataclass
class Made:
    """A version."""

    key: Key
    retired: bool = False
    withheld: bool = False


@dataclass
class Model:
    """Answers each operation with its result, or with the type of the problem that refuses it.

    Attributes:
        arrivals: domains of whole experts, of which some are `ready` or `purged`.
        part_arrivals: likewise of experts' parts for the seed's body, with `ready_parts` and `purged_parts`.
        heads: domain -> state of the head contribution of its parts.
    """

    arrivals: list[str] = field(default_factory=list)
    ready: set[str] = field(default_factory=set)
    purged: set[str] = field(default_factory=set)
    part_arrivals: list[str] = field(default_factory=list)
    ready_parts: set[str] = field(default_factory=set)
    purged_parts: set[str] = field(default_factory=set)
    body: Body = SEED
    retired: set[Body] = field(default_factory=set)
    bodies: set[Body] = field(default_factory=lambda: {SEED})
    sent: dict[Sent, str] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    versions: list[Made] = field(default_factory=list)
    champion: list[int] = field(default_factory=list)

    def join(self, domain: str) -> str:
        if domain not in self.arrivals:
            self.arrivals.append(domain)
        self.ready.add(domain)
        self.purged.discard(domain)
        return "ready"

    def join_parts(self, domain: str) -> str:
        if domain not in self.part_arrivals:
            self.part_arrivals.append(domain)
        self.ready_parts.add(domain)
        self.purged_parts.discard(domain)
        return "ready"

    def _ready_under(self, body: Body) -> set[str]:
        return self.ready_parts if body == SEED else self.ready

    def seed(self) -> str:
        self._current(SEED)
        return "merged"

    def merge(self) -> str:
        experts = tuple(domain for domain in self.arrivals if domain in self.ready)
        if not experts:
            return "not-ready"
        self._current(experts)
        return "merged"

    def _current(self, body: Body) -> None:
        self.body = body
        self.bodies.add(body)
        self.retired.discard(body)

    def contribute(self, item: Sent, supersedes: int | None = None) -> str:
        if self.sent.get(item) in ("active", "superseded"):
            return self.sent[item]
        if item.domain not in self._ready_under(item.body):
            return "invalid-contribution"
        if item.body != self.body:
            return "wrong-body"
        old = None if supersedes is None else item._replace(variant=supersedes)
        if old is not None and self.sent.get(old) != "active":
            return "conflict"
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
        if domain not in self.ready_parts:
            return self.heads[domain] if self.heads.get(domain) == "active" else "invalid-contribution"
        self.heads[domain] = "active"
        return "active"

    def withdraw_contribution(self, item: Sent) -> str:
        self.sent[item] = "withdrawn"
        return "withdrawn"

    def withdraw_parts(self, domain: str, *, serve: bool) -> str:
        """The seed's body stays; nobody is asked again."""
        self.ready_parts.discard(domain)
        for item in self.sent:
            if (item.body, item.domain) == (SEED, domain):
                self.sent[item] = "withdrawn"
        if domain in self.heads:
            self.heads[domain] = "withdrawn"
        if not serve:
            for made in self._containing(domain):
                made.withheld = made.withheld or made.key.body == SEED
        return "withdrawn"

    def withdraw(self, domain: str, *, serve: bool) -> str:
        self.withdraw_parts(domain, serve=serve)
        self.ready.discard(domain)
        for item in self.sent:
            if item.domain == domain:
                self.sent[item] = "withdrawn"
        self.retired |= {body for body in self.bodies if domain in body}
        if not serve:
            for made in self._containing(domain):
                made.withheld = True
        if self.body in self.retired:
            left = tuple(item for item in self.body if item in self.ready)
            if left:
                self._current(left)
        return "withdrawn"

    def _containing(self, domain: str) -> list[Made]:
        live = (made for made in self.versions if not made.retired)
        return [made for made in live if domain in made.key.domains or domain in made.key.body]

    def purge(self, domain: str, *, retire: bool) -> str:
        if domain in self.ready:
            return "conflict"
        containing = self._containing(domain)
        if retire:
            if any(self.versions.index(made) + 1 == self._pointed() for made in containing):
                return "conflict"
            for made in containing:
                made.retired = True
        self.purged.add(domain)
        if domain in self.part_arrivals:
            self.withdraw_parts(domain, serve=True)
            self.purged_parts.add(domain)
        return "purged"

    def solve(self, ridge_lambda: float, head: HeadMethod | None) -> str:
        sent = {item for item, state in self.sent.items() if state == "active" and item.body == self.body}
        arrivals = self.part_arrivals if self.body == SEED else self.arrivals
        domains = tuple(domain for domain in arrivals if any(item.domain == domain for item in sent))
        if not domains:
            return "not-ready"
        if head == "seed" and self.body != SEED:
            return "invalid-request"
        complete = self.body == SEED and all(self.heads.get(domain) == "active" for domain in domains)
        withdrawn = tuple(domain for domain in self.body if domain not in self.ready)
        made_head = head or ("regmean" if complete else "average")
        key = Key(self.body, domains, frozenset(sent), ridge_lambda, made_head, withdrawn)
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
