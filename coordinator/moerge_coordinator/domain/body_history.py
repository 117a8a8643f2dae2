"""The scores of a body's versions, and the expected gain of a remerge."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import JSON, select, type_coerce
from sqlalchemy.orm import Session

from moerge.trunk.remerge_estimate import WORTH, estimate, gainers, is_outnumbered
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import BodyRow, EvaluationRow, ExpertRow, VersionRow
from moerge_proto.bodies import Body, NewBody
from moerge_proto.experts import ExpertState
from moerge_proto.history import BodyHistory, BodyVersion, DomainMove, Remerge
from moerge_proto.normalised import average, normalised
from moerge_proto.options import ANCHOR
from moerge_proto.versions import HeadLineage

_MOST_VERSIONS = 100


@dataclass(frozen=True)
class Evaluated:
    """A version: domain -> expert in slot order, without an anchor; domain -> (normalised, oracle's) of evaluations.

    Parts are represented by their dense expert. `registered`: domain -> the expert or parts themselves; `fitted`:
    domains with MLPs fitted to the body.
    """

    number: int
    body: str
    experts: Mapping[str, str]
    scores: Mapping[str, tuple[float, float]]
    head: HeadLineage
    registered: Mapping[str, str]
    fitted: Collection[str] = ()

    @property
    def missing(self) -> list[str]:
        return [domain for domain in self.experts if domain not in self.scores]

    @property
    def average(self) -> float | None:
        return average(self.scores[domain][0] if domain in self.scores else None for domain in self.experts)

    def newcomers(self, body: Body) -> list[str]:
        """The domains without an expert in `body`; none for a seed's body, which contains no expert."""
        inside = body.contains or self.experts.values()
        return [domain for domain, expert in self.experts.items() if expert not in inside]


def body_history(session: Session, row: BodyRow) -> BodyHistory:
    """The history of a body, from the existing evaluations."""
    rows = session.scalars(select(BodyRow).where(BodyRow.method == row.method).order_by(BodyRow.number))
    body = message(Body, row)
    kin = [item for item in (message(Body, other) for other in rows) if item.options.base == body.options.base]
    others = [item.digest for item in kin if item.digest != body.digest]
    versions = [*_evaluated(session, [body.digest]), *_evaluated(session, others)]
    ready = set(session.scalars(select(ExpertRow.digest).where(ExpertRow.state == ExpertState.READY)))
    return history_of(body, kin, sorted(versions, key=lambda item: item.number), ready)


def own_part(history: BodyHistory, domains: Collection[str]) -> BodyHistory:
    """The part of a history for the owner of these domains: their scores, and the averages."""
    versions = []
    for version in history.versions:
        scores = [score for score in version.scores if score.domain in domains]
        versions.append(version.model_copy(update={"scores": scores, "behind": None}))
    return history.model_copy(update={"versions": versions, "remerge": None, "before": None})


def _evaluated(session: Session, bodies: Sequence[str]) -> list[Evaluated]:
    """The newest versions of any of `bodies`."""
    row, lineage, sums = EvaluationRow, type_coerce(VersionRow.lineage, JSON), type_coerce(EvaluationRow.sums, JSON)
    body = lineage["body"].as_string()
    columns = VersionRow.number, body, lineage["head"], lineage["domains"], lineage["experts"]
    query = select(*columns).where(body.in_(bodies))
    versions = session.execute(query.order_by(VersionRow.number.desc()).limit(_MOST_VERSIONS)).all()
    nlls = [sums[name]["nll"].as_float() for name in ("dense", "version", "oracle")]
    reported = select(row.version, row.domain, *nlls, sums["version"]["tokens"].as_float())
    reported = reported.where(row.active, row.version.in_([number for number, *_ in versions]))
    scores = defaultdict[int, dict[str, tuple[float, float]]](dict)
    for number, domain, dense, version, oracle, tokens in session.execute(reported):
        scores[number][domain] = normalised(dense, version, tokens), normalised(dense, oracle, tokens)
    rows = {row.digest: row for row in session.scalars(select(ExpertRow))}
    return [
        Evaluated(
            number,
            body,
            {domain: rows[digest].dense for domain, digest in zip(domains, experts, strict=True) if domain != ANCHOR},
            scores[number],
            HeadLineage.model_validate(head),
            dict(zip(domains, experts, strict=True)),
            {rows[digest].domain for digest in experts if rows[digest].fitted},
        )
        for number, body, head, domains, experts in versions
    ]


def history_of(body: Body, kin: Sequence[Body], versions: Sequence[Evaluated], ready: Collection[str]) -> BodyHistory:
    """The history of `body`; `ready` are the experts available for a merge.

    `kin` are the bodies merged by the same method, including it, in order of arrival, and `versions` theirs, by number.
    """
    solved = [version for version in versions if version.body == body.digest]
    lines, last = [], dict[str, float]()
    for item in solved:
        lines.append(_line(body, item, last))
        last |= {item.experts[domain]: score for domain, (score, _) in item.scores.items()}
    place, remerge = kin.index(body), None
    usable = [item for item in solved if set(item.experts.values()) <= set(ready)]
    if usable and usable[-1].newcomers(body):
        remerge = _remerge(body, usable[-1], versions, kin[place + 1 :])
    before = _before(body, kin[:place], versions)
    return BodyHistory(body=body.digest, versions=lines, remerge=remerge, before=before)


def _line(body: Body, version: Evaluated, last: Mapping[str, float]) -> BodyVersion:
    newcomers, scores = version.newcomers(body), version.scores
    moves = [
        DomainMove(
            domain=domain,
            newcomer=domain in newcomers,
            normalised=scores[domain][0],
            normalised_oracle=scores[domain][1],
            moved=scores[domain][0] - last[expert] if expert in last else None,
        )
        for domain, expert in version.experts.items()
        if domain in scores
    ]
    members = _mean(move.normalised for move in moves if not move.newcomer)
    late = _mean(move.normalised for move in moves if move.newcomer)
    return BodyVersion(
        version=version.number,
        newcomers=newcomers,
        scores=moves,
        average=version.average,
        missing=version.missing,
        behind=None if version.missing or members is None or late is None else members - late,
    )


def _remerge(body: Body, version: Evaluated, versions: Sequence[Evaluated], later: Sequence[Body]) -> Remerge:
    """The gain of merging `body` again with the newcomers of `version`; a body of `later` may be the result."""
    experts, newcomers = set(version.experts.values()), version.newcomers(body)
    late = gainers(newcomers, version.fitted, version.head.method)
    missing, oracles = _oracles(version, versions)
    members = _mean(oracle for domain, oracle in oracles.items() if domain not in newcomers)
    behind = _mean(oracle for domain, oracle in oracles.items() if domain in late)
    fall, expected, is_open = None, None, body.current and body.retired is None
    outnumbered = is_outnumbered(len(body.contains), len(newcomers), len(late))
    if not late and not outnumbered:
        fall, expected = 0.0, 0.0
    elif not outnumbered and members is not None and behind is not None:
        fall, expected = estimate(members, behind, len(body.contains), len(late), len(experts))
    done = {other.digest for other in later if experts | set(body.contains) <= set(other.contains)}
    start, end = _best(versions, {body.digest}, experts), _best(versions, done, experts)
    merged = [*body.experts, *(version.experts[domain] for domain in newcomers)]
    return Remerge(
        body=body.digest,
        version=(start or version).number,
        newcomers=newcomers,
        fitted=[domain for domain in newcomers if domain not in late],
        missing=missing,
        members_oracle=members,
        newcomers_oracle=behind,
        fall=fall,
        expected=expected,
        outnumbered=outnumbered,
        recommended=is_open and not done and (outnumbered or (expected is not None and expected >= WORTH)),
        merge=NewBody.model_validate({"method": body.method, "options": body.options, "experts": merged}),
        after=None if end is None else end.number,
        real=_gain(start, end),
    )


def _oracles(version: Evaluated, versions: Iterable[Evaluated]) -> tuple[list[str], dict[str, float]]:
    """The domains of `version` without an oracle's score; if none, domain -> score.

    An oracle's score doesn't depend on routers, so the newest one counts of any version with the same body, head and
    experts.
    """
    scores, parts = dict[str, float](), (version.body, version.head, version.registered)
    for other in versions:
        if (other.body, other.head, other.registered) == parts:
            scores |= {domain: oracle for domain, (_, oracle) in other.scores.items()}
    missing = [domain for domain in version.experts if domain not in scores]
    return missing, {} if missing else scores


def _gain(start: Evaluated | None, end: Evaluated | None) -> float | None:
    """The difference of two versions' averages, if both exist."""
    if start is None or end is None or start.average is None or end.average is None:
        return None
    return end.average - start.average


def _best(versions: Sequence[Evaluated], bodies: Collection[str], experts: Collection[str]) -> Evaluated | None:
    """Of the versions with these experts under any of `bodies`: the newest evaluated by all domains, or the newest."""
    newest = [other for other in reversed(versions) if other.body in bodies and set(other.experts.values()) == experts]
    return next((other for other in newest if not other.missing), newest[0] if newest else None)


def _before(body: Body, earlier: Sequence[Body], versions: Sequence[Evaluated]) -> Remerge | None:
    """The expected gain of the remerge that made `body`: of the newest earlier one whose newcomers it contains."""
    for other in reversed(earlier):
        if not set(other.contains) < set(body.contains):
            continue
        for item in reversed([version for version in versions if version.body == other.digest]):
            if item.newcomers(other) and set(item.experts.values()) <= set(body.contains):
                return _remerge(other, item, versions, [body])
    return None


def _mean(values: Iterable[float]) -> float | None:
    result = list(values)
    return average(result) if result else None
