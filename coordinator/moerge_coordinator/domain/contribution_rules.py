"""Rules of each kind of contribution: its check, what it replaces and counts for, and what its withdrawal retires."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from moerge.documents.shards import enough
from moerge.errors import ContributionError
from moerge.models.bounds import attention_size, input_bounds, input_exponents
from moerge.models.families import FAMILIES
from moerge.statistics.validate import validate, validate_trunk
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import ContributionRow, ExpertRow, ShardRow, TrunkRow
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import MAX_TOKENS, Kind, RouterManifest, StatisticsFile, TrunkManifest

M = TypeVar("M", RouterManifest, TrunkManifest)
_AT_ONCE = 500  # parameters of one query


class Rule(Generic[M]):
    """The coordinator's rule of a kind of contribution. Checks raise errors that name the field of the manifest."""

    def require_plausible(self, manifest: M) -> None:
        """Requires counts that `moerge.documents.shards.plan` can produce, and enough text."""
        raise NotImplementedError

    def require_current(self, session: Session, manifest: M) -> TrunkRow | None:
        """The trunk that it is made under, which must be the current one; None: it is made under no trunk."""
        return None

    def check(
        self, ports: Ports, file: StatisticsFile, manifest: M, expert: ExpertRow, trunk: TrunkRow | None
    ) -> list[str]:
        """Checks the sums against the expert and the trunk; returns warnings."""
        raise NotImplementedError

    def replace(self, session: Session, supersedes: Sequence[str], manifest: M) -> None:
        """Makes superseded contributions inactive, and requires that the new one counts nothing twice."""
        raise NotImplementedError

    def describe(self, row: ContributionRow, manifest: M) -> None:
        """Sets the columns that only this kind has."""

    def claim(self, session: Session, row: ContributionRow, manifest: M) -> None:
        """Records what an accepted contribution counts."""

    def counted(self, trunk: str | None) -> Sequence[ColumnElement[bool]]:
        """The conditions under which an active contribution counts for a round or a version on that trunk."""
        return ()

    def trunk_of_round(self, session: Session) -> str | None:
        """The trunk that a new round is about; None: about no trunk."""
        return None

    def withdrawn(self, session: Session, row: ContributionRow, when: datetime) -> None:
        """Retires what was made from a withdrawn contribution."""


class RouterRule(Rule[RouterManifest]):
    """Router contributions: many of an expert under the current trunk, each shard once (law 4)."""

    def require_plausible(self, manifest: RouterManifest) -> None:
        count, tokens, least = len(manifest.shards), manifest.tokens, enough(manifest.hidden_size)
        if count > max(1, tokens // least):
            what = f"{count} shards of {tokens} tokens; expected at least {least} per shard, or one shard"
            raise ContributionError(what, where="manifest.shards", todo="compute the contribution again")

    def require_current(self, session: Session, manifest: RouterManifest) -> TrunkRow:
        trunk = session.scalar(select(TrunkRow).where(TrunkRow.current))
        if trunk is None or manifest.trunk != trunk.digest:
            what = (
                f"made under trunk {manifest.trunk}; the current one is {trunk.digest if trunk else 'not merged yet'}"
            )
            todo = "contribute again under the current trunk"
            raise RefusedError(ProblemType.WRONG_TRUNK, what, where="manifest.trunk", todo=todo)
        return trunk

    def check(
        self, ports: Ports, file: StatisticsFile, manifest: RouterManifest, expert: ExpertRow, trunk: TrunkRow | None
    ) -> list[str]:
        if trunk is None:
            raise ValueError("a router contribution is checked under a trunk")
        if expert.fitted_to not in (None, trunk.digest):
            what = f"expert {expert.digest} is fitted to a different trunk, {expert.fitted_to}"
            raise ContributionError(what, where="manifest.expert", todo="fit the domain's expert to this trunk")
        _require_sizes(manifest, {"hidden_size": trunk.hidden_size, "layers": trunk.layers})
        return validate(file, trunk.exponents, trunk.bounds, normalised=FAMILIES[trunk.family].gain is not None)

    def replace(self, session: Session, supersedes: Sequence[str], manifest: RouterManifest) -> None:
        for digest in dict.fromkeys(supersedes):
            _supersede(session, digest, manifest)
        _require_one_expert(session, manifest)
        _require_unclaimed(session, manifest)
        _require_room(session, manifest)

    def describe(self, row: ContributionRow, manifest: RouterManifest) -> None:
        row.split, row.trunk, row.shards = manifest.split, manifest.trunk, len(manifest.shards)

    def claim(self, session: Session, row: ContributionRow, manifest: RouterManifest) -> None:
        where = {"trunk": manifest.trunk, "domain": manifest.domain, "contribution": row.digest}
        session.add_all(ShardRow(shard=shard, **where) for shard in manifest.shards)

    def counted(self, trunk: str | None) -> Sequence[ColumnElement[bool]]:
        return ContributionRow.trunk == trunk, ContributionRow.split == "statistics"

    def trunk_of_round(self, session: Session) -> str:
        trunk = session.scalar(select(TrunkRow.digest).where(TrunkRow.current))
        if trunk is None:
            raise RefusedError(ProblemType.NOT_READY, "no trunk yet", where="kind", todo="first merge one")
        return trunk


class TrunkRule(Rule[TrunkManifest]):
    """Trunk contributions: one of each trained expert, for every trunk."""

    def require_plausible(self, manifest: TrunkManifest) -> None:
        tokens, least = manifest.tokens, enough(manifest.hidden_size)
        if tokens < least:
            todo = f"give more text: a trunk contribution needs 64 x {manifest.hidden_size} tokens"
            raise ContributionError(f"{tokens} tokens; expected at least {least}", where="manifest.tokens", todo=todo)

    def check(
        self, ports: Ports, file: StatisticsFile, manifest: TrunkManifest, expert: ExpertRow, trunk: TrunkRow | None
    ) -> list[str]:
        if expert.fitted_to is not None:
            what, todo = "the expert is fitted to a trunk, so it can't be merged", f"send it for {expert.trained}"
            raise ContributionError(what, where="manifest.expert", todo=todo)
        files = ports.folders.expert(expert.digest)
        config = files.config
        sizes = {"hidden_size": config.hidden_size, "layers": config.num_hidden_layers, "vocab_size": config.vocab_size}
        _require_sizes(manifest, {**sizes, "attention_size": attention_size(config)})
        validate_trunk(file, input_exponents(files), input_bounds(files))
        return []

    def replace(self, session: Session, supersedes: Sequence[str], manifest: TrunkManifest) -> None:
        row = ContributionRow
        query = select(row).where(row.active, row.expert == manifest.expert, row.kind == manifest.kind)
        active = session.scalar(query)
        if list(supersedes) != ([active.digest] if active else []):
            what = f"the expert's active trunk contribution is {active.digest if active else 'none'}"
            todo = "to replace it, name it in supersedes"
            raise RefusedError(ProblemType.CONFLICT, what, where="supersedes", todo=todo)
        if active is not None:
            active.active = False
            session.flush()

    def withdrawn(self, session: Session, row: ContributionRow, when: datetime) -> None:
        for trunk in session.scalars(select(TrunkRow)):
            if row.digest in trunk.contributions:
                trunk.retired = trunk.retired or when


RULES: dict[Kind, Rule[Any]] = {"router": RouterRule(), "trunk": TrunkRule()}


def _require_sizes(manifest: RouterManifest | TrunkManifest, expected: Mapping[str, int]) -> None:
    for name, size in expected.items():
        if getattr(manifest, name) != size:
            what = f"expected {size}, found {getattr(manifest, name)}"
            raise ContributionError(what, where=f"manifest.{name}", todo="compute the contribution again")


def _supersede(session: Session, digest: str, manifest: RouterManifest) -> None:
    row = session.scalar(select(ContributionRow).where(ContributionRow.digest == digest, ContributionRow.active))
    if row is None or (row.trunk, row.domain) != (manifest.trunk, manifest.domain):
        problem = f"no active contribution {digest} of {manifest.domain!r} under this trunk"
        raise RefusedError(ProblemType.CONFLICT, problem, where="supersedes", todo="run: moerge contribution list")
    row.active = False
    for shard in session.scalars(select(ShardRow).where(ShardRow.contribution == digest)):
        session.delete(shard)
    session.flush()


def _alike(manifest: RouterManifest) -> Select[ContributionRow]:
    """The active contributions under the same trunk, of the same split."""
    row = ContributionRow
    return select(row).where(row.active, row.trunk == manifest.trunk, row.split == manifest.split)


def _require_one_expert(session: Session, manifest: RouterManifest) -> None:
    """Requires that the domain has no active contribution computed with other MLPs, fitted or not."""
    query = _alike(manifest).where(ContributionRow.domain == manifest.domain)
    for other in session.scalars(query.where(ContributionRow.expert != manifest.expert).limit(1)):
        problem = f"contribution {other.digest} of the domain's expert {other.expert} is active"
        todo = "to replace it, name it in supersedes"
        raise RefusedError(ProblemType.CONFLICT, problem, where="supersedes", todo=todo)


def _require_room(session: Session, manifest: RouterManifest) -> None:
    """Requires that the integer sums over all contributions can't overflow."""
    rows = session.scalars(_alike(manifest)).all()
    if (total := manifest.tokens + sum(row.tokens for row in rows)) > MAX_TOKENS:
        problem = f"{total} tokens with all other contributions; expected at most {MAX_TOKENS}"
        if most := max(rows, key=lambda row: row.tokens, default=None):
            problem += f". Contribution {most.digest} of owner {most.owner!r} has the most, {most.tokens}"
        todo = "send fewer tokens, or ask the operator to withdraw a contribution"
        raise RefusedError(ProblemType.CONFLICT, problem, where="manifest.tokens", todo=todo)


def _require_unclaimed(session: Session, manifest: RouterManifest) -> None:
    """Requires that all shards are new."""
    query = select(ShardRow).where(ShardRow.trunk == manifest.trunk, ShardRow.domain == manifest.domain)
    for start in range(0, len(manifest.shards), _AT_ONCE):
        some = manifest.shards[start : start + _AT_ONCE]
        for taken in session.scalars(query.where(ShardRow.shard.in_(some)).limit(1)):
            what = f"shard {taken.shard} is already in contribution {taken.contribution}"
            todo = "send only new shards, or name that contribution in supersedes"
            raise RefusedError(ProblemType.DUPLICATE_SHARD, what, where="manifest.shards", todo=todo)
