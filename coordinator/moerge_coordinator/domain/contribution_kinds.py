"""Rules of each kind of contribution: its check, what it replaces, and what it counts for."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from moerge.documents.pool import require_pool, require_public
from moerge.documents.shards import enough
from moerge.errors import ContributionError
from moerge.models.bounds import head_bounds, head_exponents
from moerge.models.families.family import mlp_layers
from moerge.models.families.registry import FAMILIES
from moerge.statistics.validate import validate, validate_grams
from moerge_coordinator.domain import sums
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.folders import Folders
from moerge_coordinator.storage.tables import BodyRow, ContributionRow, ExpertRow, ShardRow
from moerge_proto.contributions import Kind, NewContribution
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import (
    MAX_TOKENS,
    HeadManifest,
    Manifest,
    RouterManifest,
    StatisticsFile,
)

M = TypeVar("M", bound=Manifest)
_AT_ONCE = 500  # parameters of one query


class Rule(Generic[M]):
    """The coordinator's rule of a kind of contribution. Checks raise errors that name the field of the manifest."""

    kind: Kind

    def require_plausible(self, manifest: M) -> None:
        """Requires counts that `moerge.documents.shards.plan` can produce, and enough text."""
        raise NotImplementedError

    def require_current(self, session: Session, manifest: M) -> BodyRow | None:
        """The body that it is made under, which must be the current one; None: it is made under no body."""
        return None

    def check(
        self, folders: Folders, file: StatisticsFile, manifest: M, expert: ExpertRow, body: BodyRow | None
    ) -> list[str]:
        """Checks the sums against the expert and the body; returns warnings."""
        raise NotImplementedError

    def require_beside(self, session: Session, manifest: M, new: NewContribution) -> None:
        """Requires what comes beside the file."""
        if new.masks is not None:
            what, todo = "the contribution has no masks, so it needs no seals", "run the worker again"
            raise RefusedError(ProblemType.INVALID_REQUEST, what, where="masks", todo=todo)

    def replace(self, session: Session, new: NewContribution, manifest: M) -> None:
        """Makes superseded contributions inactive, and requires that the new one counts nothing twice."""
        raise NotImplementedError

    def describe(self, row: ContributionRow, manifest: M) -> None:
        """Sets the columns that only this kind has."""

    def claim(self, session: Session, new: NewContribution, manifest: M) -> None:
        """Records what an accepted contribution counts."""


class RouterRule(Rule[RouterManifest]):
    """Router contributions: many of an expert under the current body, each shard once (law 4)."""

    kind = "router"

    def require_plausible(self, manifest: RouterManifest) -> None:
        require_pool(manifest.settings.before)
        count, tokens, least = len(manifest.shards), manifest.tokens, enough(manifest.hidden_size)
        if count > max(1, tokens // least):
            what = f"{count} shards of {tokens} tokens; expected at least {least} per shard, or one shard"
            raise ContributionError(what, where="manifest.shards", todo="compute the contribution again")

    def require_current(self, session: Session, manifest: RouterManifest) -> BodyRow:
        body = session.scalar(select(BodyRow).where(BodyRow.current))
        if body is None or manifest.body != body.digest:
            what = f"made under body {manifest.body}; the current one is {body.digest if body else 'none yet'}"
            todo = "contribute again under the current body"
            raise RefusedError(ProblemType.WRONG_BODY, what, where="manifest.body", todo=todo)
        return body

    def check(
        self, folders: Folders, file: StatisticsFile, manifest: RouterManifest, expert: ExpertRow, body: BodyRow | None
    ) -> list[str]:
        if body is None:
            raise ValueError("a router contribution is checked under a body")
        if expert.parts_body != body.digest:
            what = f"expert {expert.digest} has parts for a different body, {expert.parts_body}"
            raise ContributionError(what, where="manifest.expert", todo="register the domain's parts for this body")
        _require_sizes(manifest, {"hidden_size": body.hidden_size, "layers": body.layers})
        require_public(manifest.settings.privacy)
        return self.validate(file, body)

    def validate(self, file: StatisticsFile, body: BodyRow) -> list[str]:
        """Checks the numbers; returns warnings."""
        return validate(file, body.exponents, body.bounds, normalised=FAMILIES[body.family].gain is not None)

    def replace(self, session: Session, new: NewContribution, manifest: RouterManifest) -> None:
        sums.require_open(session, manifest, new.sha256)
        for digest in dict.fromkeys(new.supersedes):
            _supersede(session, digest, manifest)
        _require_unclaimed(session, manifest)
        _require_room(session, manifest)

    def describe(self, row: ContributionRow, manifest: RouterManifest) -> None:
        row.split, row.body, row.shards = manifest.split, manifest.body, len(manifest.shards)

    def claim(self, session: Session, new: NewContribution, manifest: RouterManifest) -> None:
        where = {"body": manifest.body, "domain": manifest.domain, "contribution": new.sha256}
        session.add_all(ShardRow(shard=shard, **where) for shard in manifest.shards)


class HeadRule(Rule[HeadManifest]):
    """Head contributions, of an expert alone: one each. Versions with a head solved from a withdrawn one stay."""

    kind = "head"

    def require_plausible(self, manifest: HeadManifest) -> None:
        tokens, least = manifest.tokens, enough(manifest.hidden_size)
        if tokens < least:
            todo = f"give more text: a {manifest.kind} contribution needs 64 x {manifest.hidden_size} tokens"
            raise ContributionError(f"{tokens} tokens; expected at least {least}", where="manifest.tokens", todo=todo)

    def replace(self, session: Session, new: NewContribution, manifest: HeadManifest) -> None:
        row = ContributionRow
        query = select(row).where(row.active, row.expert == manifest.expert, row.kind == manifest.kind)
        active = session.scalar(query)
        if new.supersedes != ([active.digest] if active else []):
            what = f"the expert's active {manifest.kind} contribution is {active.digest if active else 'none'}"
            todo = "to replace it, name it in supersedes"
            raise RefusedError(ProblemType.CONFLICT, what, where="supersedes", todo=todo)
        if active is not None:
            active.active = False
            session.flush()

    def check(
        self, folders: Folders, file: StatisticsFile, manifest: HeadManifest, expert: ExpertRow, body: BodyRow | None
    ) -> list[str]:
        files = folders.expert(expert.digest)
        config = files.config
        _require_sizes(manifest, {"hidden_size": config.hidden_size, "layers": len(mlp_layers(config))})
        validate_grams(file, head_exponents(files), head_bounds(files))
        return []


RULES: Mapping[str, Rule[Any]] = {"router": RouterRule(), "head": HeadRule()}


def _require_sizes(manifest: Manifest, expected: Mapping[str, int | Sequence[int]]) -> None:
    for name, size in expected.items():
        if getattr(manifest, name) != size:
            what = f"expected {size}, found {getattr(manifest, name)}"
            raise ContributionError(what, where=f"manifest.{name}", todo="compute the contribution again")


def _supersede(session: Session, digest: str, manifest: RouterManifest) -> None:
    row = session.scalar(select(ContributionRow).where(ContributionRow.digest == digest, ContributionRow.active))
    if row is None or (row.body, row.domain) != (manifest.body, manifest.domain):
        problem = f"no active contribution {digest} of {manifest.domain!r} under this body"
        raise RefusedError(ProblemType.CONFLICT, problem, where="supersedes", todo="run: moerge contribution list")
    row.active = False
    for shard in session.scalars(select(ShardRow).where(ShardRow.contribution == digest)):
        session.delete(shard)
    session.flush()


def _alike(manifest: RouterManifest) -> Select[ContributionRow]:
    """The active contributions under the same body, of the same split."""
    row = ContributionRow
    return select(row).where(row.active, row.body == manifest.body, row.split == manifest.split)


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
    query = select(ShardRow).where(ShardRow.body == manifest.body, ShardRow.domain == manifest.domain)
    for start in range(0, len(manifest.shards), _AT_ONCE):
        some = manifest.shards[start : start + _AT_ONCE]
        for taken in session.scalars(query.where(ShardRow.shard.in_(some)).limit(1)):
            what = f"shard {taken.shard} is already in contribution {taken.contribution}"
            todo = "send only new shards, or name that contribution in supersedes"
            raise RefusedError(ProblemType.DUPLICATE_SHARD, what, where="manifest.shards", todo=todo)
