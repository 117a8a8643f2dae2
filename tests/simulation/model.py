"""The oracle: a coordinator's state after each operation took effect once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Body = tuple[str, ...]
"""A body's domains, in order."""
SHARDS: dict[int, frozenset[int]] = {0: frozenset({0, 1}), 1: frozenset({1, 2}), 2: frozenset({3})}
"""The shards of each variant of a domain's contribution."""


class Part(NamedTuple):
    """A contribution."""

    body: Body
    domain: str
    variant: int


class Key(NamedTuple):
    """The inputs of a version."""

    body: Body
    domains: tuple[str, ...]
    parts: frozenset[Part]
    ridge_lambda: float
    withdrawn: tuple[str, ...]


@dataclass
class Made:
    """A version."""

    key: Key
    retired: bool = False
    withheld: bool = False


@dataclass
class Model:
    """Answers each operation with its result, or with the type of the problem that refuses it."""

    arrivals: list[str] = field(default_factory=list)
    ready: set[str] = field(default_factory=set)
    purged: set[str] = field(default_factory=set)
    body: Body | None = None
    retired: set[Body] = field(default_factory=set)
    bodies: set[Body] = field(default_factory=set)
    parts: dict[Part, str] = field(default_factory=dict)
    versions: list[Made] = field(default_factory=list)
    champion: list[int] = field(default_factory=list)

    def join(self, domain: str) -> str:
        if domain not in self.arrivals:
            self.arrivals.append(domain)
        self.ready.add(domain)
        self.purged.discard(domain)
        return "ready"

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

    def contribute(self, part: Part, supersedes: int | None = None) -> str:
        if self.parts.get(part) in ("active", "superseded"):
            return self.parts[part]
        if part.domain not in self.ready:
            return "invalid-contribution"
        if part.body != self.body:
            return "wrong-body"
        old = None if supersedes is None else part._replace(variant=supersedes)
        if old is not None and self.parts.get(old) != "active":
            return "conflict"
        taken = {
            shard
            for other, state in self.parts.items()
            if state == "active" and other != old and other[:2] == part[:2]
            for shard in SHARDS[other.variant]
        }
        if taken & SHARDS[part.variant]:
            return "duplicate-shard"
        if old is not None:
            self.parts[old] = "superseded"
        self.parts[part] = "active"
        return "active"

    def withdraw_contribution(self, part: Part) -> str:
        self.parts[part] = "withdrawn"
        return "withdrawn"

    def withdraw(self, domain: str, *, serve: bool) -> str:
        self.ready.discard(domain)
        for part in self.parts:
            if part.domain == domain:
                self.parts[part] = "withdrawn"
        self.retired |= {body for body in self.bodies if domain in body}
        if not serve:
            for made in self._containing(domain):
                made.withheld = True
        if self.body in self.retired and self.body is not None:
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
        return "purged"

    def solve(self, ridge_lambda: float) -> str:
        if self.body is None:
            return "not-found"
        parts = {part for part, state in self.parts.items() if state == "active" and part.body == self.body}
        domains = tuple(domain for domain in self.arrivals if any(part.domain == domain for part in parts))
        if not domains:
            return "not-ready"
        withdrawn = tuple(domain for domain in self.body if domain not in self.ready)
        key = Key(self.body, domains, frozenset(parts), ridge_lambda, withdrawn)
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
