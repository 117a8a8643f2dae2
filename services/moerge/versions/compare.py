"""The differences between two versions: experts, contributions, options, files and scores."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from moerge_proto.digests import Digest
from moerge_proto.evaluations import VersionTable
from moerge_proto.messages import Message
from moerge_proto.normalised import average
from moerge_proto.versions import Lineage, Version


class FileChange(Message):
    """A file's `change` from one version to another: same, changed, new or gone; `size`: bytes in the later one."""

    name: str
    change: Literal["same", "changed", "new", "gone"]
    size: int


class Comparison(Message):
    """The differences between the versions `before` and `after`.

    Experts are compared by domain: `experts_added` are of domains that only `after` has, `experts_removed` of domains
    that only `before` has, and `experts_replaced`, those of `after` whose domain has other MLPs in `before`. `options`:
    name of each solve option that differs -> its two values. `fetch`: the bytes that a holder of `before` lacks.
    """

    before: int
    after: int
    same_body: bool
    experts_added: list[Digest]
    experts_removed: list[Digest]
    experts_replaced: list[Digest]
    contributions_added: list[Digest]
    contributions_removed: list[Digest]
    options: dict[str, tuple[JsonValue, JsonValue]]
    files: list[FileChange]
    fetch: int


@dataclass(frozen=True)
class DomainChanges:
    """Domains that only the new version has, that only the old one has, and whose MLPs differ."""

    added: list[str]
    removed: list[str]
    replaced: list[str]


def domain_changes(old: Lineage, new: Lineage) -> DomainChanges:
    """The change of experts, by domain."""
    before, after = (dict(zip(item.domains, item.experts, strict=True)) for item in (old, new))
    return DomainChanges(
        added=[domain for domain in after if domain not in before],
        removed=[domain for domain in before if domain not in after],
        replaced=[domain for domain in after if domain in before and after[domain] != before[domain]],
    )


@dataclass(frozen=True)
class ScoreChange:
    """A normalised score on two versions. `points` is None if a score is unknown or the domains differ."""

    name: str
    before: float | None
    after: float | None
    points: float | None
    is_average: bool = False

    @classmethod
    def of(cls, name: str, before: float | None, after: float | None, *, is_average: bool = False) -> "ScoreChange":
        points = None if before is None or after is None else after - before
        return cls(name, before, after, points, is_average)


def score_changes(old: VersionTable, new: VersionTable) -> list[ScoreChange]:
    """A row for each domain, then the averages; only those over the same domains have a difference in points."""
    before, after = _scores(old), _scores(new)
    domains = list(dict.fromkeys([*old.owned, *new.owned]))
    rows = [ScoreChange.of(domain, before.get(domain), after.get(domain)) for domain in domains]
    if set(old.owned) == set(new.owned):
        whole = ScoreChange.of(average_name(new), old.average, new.average, is_average=True)
        if whole.points is not None:
            return [*rows, whole]
    else:
        name = f"average of all its domains ({len(old.owned)}, {len(new.owned)})"
        whole = ScoreChange(name, old.average, new.average, None, is_average=True)
    shared = common_change(old, new)
    return [*rows, whole] if shared is None else [*rows, whole, shared]


def common_change(old: VersionTable, new: VersionTable) -> ScoreChange | None:
    """The averages over the domains with a score on both versions; None if there are none."""
    domains = common_domains([old, new])
    if not domains:
        return None
    both = [domain for domain in old.owned if domain in new.owned]
    words = "that both have" if len(domains) == len(both) else "with a score on both"
    name = f"average of the {len(domains)} {words}"
    return ScoreChange.of(name, average_over(old, domains), average_over(new, domains), is_average=True)


def average_name(table: VersionTable) -> str:
    count = len(table.owned)
    return f"average of its {count} domain{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class Averages:
    """Averages of several versions over their own domains, and over the common ones; `names` are short, of the two.

    `over_common` is empty if the versions have the same domains, or none in common.
    """

    names: tuple[str, str]
    over_own: list[float | None]
    over_common: list[float | None]


def averages(tables: Sequence[VersionTable | None]) -> Averages:
    """The averages of versions, None for one without evaluations; common domains are those of all complete tables."""
    whole = [table for table in tables if table is not None and len(table.scores) == len(table.owned)]
    over_own = [None if table is None else table.average for table in tables]
    scored = [table for table in tables if table is not None and table.average is not None]
    if len({frozenset(table.owned) for table in scored}) < 2:
        return Averages((average_name(scored[0]) if scored else "average", ""), over_own, [])
    domains = common_domains(whole)
    over = [None if table is None else average_over(table, domains) for table in tables] if domains else []
    return Averages(("own average", f"average of {len(domains)}"), over_own, over)


def common_domains(tables: Sequence[VersionTable]) -> list[str]:
    """The domains with a score in each of the tables, in the first one's order."""
    result = [_scores(table) for table in tables]
    return [domain for domain in result[0] if all(domain in item for item in result)] if result else []


def average_over(table: VersionTable, domains: Collection[str]) -> float | None:
    """The average of the normalised scores of these domains; None if the table lacks one."""
    return average(map(_scores(table).get, domains))


def _scores(table: VersionTable) -> dict[str, float]:
    return {score.domain: score.normalised for score in table.scores}


def compare(before: Version, after: Version) -> Comparison:
    """The change from one version to another, in lineage and files."""
    old, new = before.lineage, after.lineage
    changes, there = domain_changes(old, new), {file.sha256 for file in before.files}
    options, earlier = (
        item.options.model_dump(mode="json")
        | {"head": item.head.method, "tied": item.tied, "chat_template": item.chat_template}
        for item in (new, old)
    )
    return Comparison(
        before=before.number,
        after=after.number,
        same_body=old.body == new.body,
        experts_added=_experts(new, changes.added),
        experts_removed=_experts(old, changes.removed),
        experts_replaced=_experts(new, changes.replaced),
        contributions_added=[digest for digest in new.contributions if digest not in old.contributions],
        contributions_removed=[digest for digest in old.contributions if digest not in new.contributions],
        options={name: (earlier[name], value) for name, value in options.items() if earlier[name] != value},
        files=_files(before, after),
        fetch=sum({file.sha256: file.size for file in after.files if file.sha256 not in there}.values()),
    )


def lost_domains(before: Version, after: Version) -> list[str]:
    """The domains that consumers lose from one version to another; withdrawn ones don't count."""
    there = zip(before.lineage.domains, before.lineage.experts, strict=True)
    kept = {*after.lineage.domains}
    return [domain for domain, expert in there if domain not in kept and expert not in before.contains_withdrawn]


def _experts(lineage: Lineage, domains: Collection[str]) -> list[str]:
    return [digest for digest, domain in zip(lineage.experts, lineage.domains, strict=True) if domain in domains]


def _files(before: Version, after: Version) -> list[FileChange]:
    old, changes = {file.name: file.sha256 for file in before.files}, []
    for file in after.files:
        known = old.pop(file.name, None)
        change = "new" if known is None else "same" if known == file.sha256 else "changed"
        changes.append(FileChange.model_validate({"name": file.name, "change": change, "size": file.size}))
    return changes + [FileChange(name=name, change="gone", size=0) for name in old]
