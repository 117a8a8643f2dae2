"""The schema of the first release."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = None
DIGEST, NAME, WORD, TEXT, TIME = sa.String(64), sa.String(63), sa.String(16), sa.String(2000), sa.DateTime()


def _key(name: str = "number", kind: Any = sa.Integer) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True)


def _columns(kind: Any, *names: str, unique: bool = False) -> list[sa.Column[Any]]:
    """Columns of one type; those with a question mark may be null."""
    return [sa.Column(name.removesuffix("?"), kind, nullable=name.endswith("?"), unique=unique) for name in names]


def _reference(name: str, target: str, *, nullable: bool = False, **more: Any) -> sa.Column[Any]:
    kind = sa.Integer() if target.endswith(".number") else NAME if target.endswith(".name") else DIGEST
    return sa.Column(name, kind, sa.ForeignKey(target), nullable=nullable, **more)


def _unique_where(name: str, *columns: str, where: str) -> sa.Index:
    some = sa.text(where)
    return sa.Index(name, *columns, unique=True, sqlite_where=some, postgresql_where=some)


def upgrade() -> None:
    op.create_table(
        "alias_moves",
        _key(),
        *_columns(NAME, "alias"),
        *_columns(WORD, "kind"),
        *_columns(sa.String(100), "who"),
        *_columns(TEXT, "note", "override?"),
        *_columns(TIME, "created"),
        *_columns(sa.Integer, "version?", "previous?"),
    )
    op.create_table(
        "artifacts", _key("key", DIGEST), *_columns(DIGEST, "sha256", "maker"), *_columns(sa.BigInteger, "size")
    )
    op.create_table(
        "audit",
        _key(),
        *_columns(DIGEST, "request"),
        *_columns(WORD, "method", "role?"),
        *_columns(TEXT, "path"),
        *_columns(sa.Integer, "status", "token?"),
        *_columns(TIME, "created"),
        *_columns(NAME, "owner?", "name?"),
        *_columns(sa.String(64), "address?"),
        *_columns(sa.String(100), "problem?"),
    )
    op.create_table(
        "public_log",
        _key(),
        *_columns(WORD, "kind"),
        *_columns(DIGEST, "name", "digest", "previous"),
        *_columns(TIME, "created"),
        sa.UniqueConstraint("kind", "name"),
    )
    op.create_table(
        "notices",
        _key(),
        *_columns(DIGEST, "name", unique=True),
        *_columns(sa.String(32), "event"),
        *_columns(sa.JSON, "data"),
        *_columns(sa.Integer, "attempts"),
        *_columns(TIME, "due", "created"),
    )
    op.create_table(
        "owners",
        _key(),
        *_columns(NAME, "name", unique=True),
        *_columns(TIME, "created", "adapter_refused?"),
    )
    op.create_table(
        "bodies",
        _key(),
        *_columns(DIGEST, "digest", unique=True),
        *_columns(sa.String(32), "family"),
        *_columns(sa.Integer, "hidden_size", "layers", "tensors"),
        *_columns(sa.JSON, "config", "exponents", "files", "bounds"),
        *_columns(sa.String(1000), "source?"),
        *_columns(DIGEST, "license", "seed", "model"),
        *_columns(sa.Boolean, "current"),
        *_columns(TIME, "created"),
    )
    op.create_table(
        "versions",
        _key(),
        _reference("part_of", "versions.number", nullable=True),
        *_columns(WORD, "part?"),
        *_columns(DIGEST, "lineage_digest", unique=True),
        *_columns(DIGEST, "release", "commit?", "key?"),
        *_columns(
            sa.JSON, "lineage", "files", "signature?", "provenance?", "card?", "influence", "public_loss?", "tags"
        ),
        *_columns(sa.BigInteger, "bytes_total", "bytes_written"),
        *_columns(TEXT, "note"),
        *_columns(TIME, "created", "withheld?", "retired?"),
        sa.UniqueConstraint("part_of", "part"),
    )
    op.create_table(
        "aliases",
        _key(),
        *_columns(NAME, "name", unique=True),
        _reference("version", "versions.number"),
        *_columns(TIME, "moved"),
    )
    op.create_table("domains", _key("name", NAME), _reference("owner", "owners.name"))
    op.create_table(
        "holdings",
        _reference("owner", "owners.name", primary_key=True),
        _key("sha256", DIGEST),
        *_columns(sa.BigInteger, "size"),
        sa.Index("sizes_of_holdings", "owner", "size"),
    )
    op.create_table(
        "owner_keys",
        _key(),
        _reference("owner", "owners.name"),
        *_columns(DIGEST, "public_key", "fingerprint", unique=True),
        *_columns(TIME, "created", "revoked?"),
        _unique_where("one_key_of_an_owner", "owner", where="revoked IS NULL"),
    )
    op.create_table(
        "version_keys",
        _key(),
        *_columns(sa.String(1000), "public_key", unique=True),
        *_columns(DIGEST, "fingerprint", unique=True),
        *_columns(sa.JSON, "rotation?"),
        *_columns(TIME, "created", "revoked?"),
    )
    op.create_table(
        "tokens",
        _key("id"),
        *_columns(DIGEST, "hash", unique=True),
        *_columns(WORD, "role"),
        *_columns(NAME, "name?"),
        *_columns(sa.JSON, "groups"),
        *_columns(sa.String(200), "note"),
        *_columns(TIME, "created", "expires?", "revoked?", "used?"),
        _reference("owner", "owners.name", nullable=True),
    )
    op.create_table(
        "uploads",
        _key("id"),
        _reference("owner", "owners.name"),
        *_columns(DIGEST, "manifest", "sha256"),
        *_columns(sa.JSON, "request"),
        *_columns(sa.BigInteger, "size"),
        *_columns(TIME, "created", "touched"),
        sa.UniqueConstraint("owner", "manifest"),
        sa.Index("sizes_of_uploads", "owner", "size"),
        sa.Index("uploads_of_a_file", "owner", "sha256"),
    )
    op.create_table(
        "evaluations",
        _key(),
        _reference("version", "versions.number", index=True),
        _reference("owner", "owners.name", nullable=True),
        *_columns(DIGEST, "digest"),
        *_columns(sa.String(16), "kind"),
        *_columns(sa.String(203), "name"),
        *_columns(sa.Boolean, "active"),
        *_columns(sa.JSON, "score"),
        *_columns(TIME, "created"),
    )
    op.create_table(
        "experts",
        _key(),
        *_columns(DIGEST, "digest", unique=True),
        _reference("domain", "domains.name"),
        _reference("owner", "owners.name"),
        *_columns(DIGEST, "license", "parts_of", "parts_body"),
        *_columns(sa.Boolean, "redistribute", "fitted", "own_head"),
        *_columns(sa.String(32), "family"),
        *_columns(WORD, "state"),
        *_columns(sa.JSON, "files", "problem?", "adapter?"),
        *_columns(TIME, "created", "withdrawn?", "purged?"),
        *_columns(sa.String(128), "signature?"),
        *_columns(DIGEST, "fingerprint?"),
        _unique_where("one_expert_of_a_domain", "domain", "parts_body", where="withdrawn IS NULL"),
    )
    op.create_table(
        "progress",
        _key(),
        _reference("domain", "domains.name", unique=True),
        _reference("owner", "owners.name"),
        *_columns(WORD, "stage", "obstacle?"),
        *_columns(sa.BigInteger, "shards_done", "shards_total", "tokens_per_second", "seconds_left?"),
        *_columns(TIME, "heard"),
    )
    op.create_table(
        "cohorts",
        _key(),
        _reference("body", "bodies.digest"),
        *_columns(DIGEST, "sum?", unique=True),
        *_columns(TIME, "created"),
    )
    op.create_table(
        "contributions",
        _key(),
        *_columns(DIGEST, "digest", unique=True),
        *_columns(WORD, "kind", "split?"),
        _reference("owner", "owners.name"),
        _reference("domain", "domains.name"),
        _reference("expert", "experts.digest"),
        *_columns(sa.BigInteger, "tokens", "documents", "size"),
        *_columns(sa.Boolean, "active", "alone"),
        *_columns(sa.JSON, "warnings", "software"),
        *_columns(TIME, "created", "withdrawn?", "purged?"),
        _reference("body", "bodies.digest", nullable=True),
        _reference("cohort", "cohorts.number", nullable=True),
        *_columns(sa.Integer, "shards?"),
        *_columns(sa.Double, "effective_rank?"),
        *_columns(sa.String(128), "signature?"),
        *_columns(DIGEST, "fingerprint?"),
        _unique_where("one_of_a_kind", "expert", "kind", where="kind <> 'router' AND active"),
    )
    op.create_table(
        "seals",
        _reference("contribution", "contributions.digest", primary_key=True),
        *_columns(sa.JSON, "seals"),
    )
    op.create_table(
        "shards",
        _reference("body", "bodies.digest", primary_key=True),
        _reference("domain", "domains.name", primary_key=True),
        _key("shard", DIGEST),
        _reference("contribution", "contributions.digest"),
    )
    op.create_table(
        "grants",
        _key(),
        _reference("domain", "domains.name"),
        _reference("owner", "owners.name"),
        *_columns(NAME, "reader"),
        *_columns(sa.Boolean, "granted"),
        *_columns(TIME, "until?", "created"),
        sa.Index("grants_of_a_domain", "domain", "reader"),
    )
    op.create_table(
        "composed",
        _reference("part_of", "versions.number", primary_key=True),
        _key("key", DIGEST),
        sa.Column("sha256", DIGEST, nullable=False, index=True),
        *_columns(sa.BigInteger, "size"),
        *_columns(sa.LargeBinary, "header"),
        *_columns(sa.JSON, "segments"),
    )
    op.create_table(
        "usage",
        _key(),
        _reference("version", "versions.number"),
        *_columns(sa.String(100), "reporter"),
        *_columns(NAME, "reader?"),
        _reference("domain", "domains.name", index=True),
        *_columns(sa.JSON, "shares"),
        *_columns(TIME, "created"),
        sa.UniqueConstraint("version", "reporter", "domain"),
    )
    _append_only("audit", days=30)
    _append_only("grants")
    _append_only("public_log")


def _append_only(table: str, days: int | None = None) -> None:
    """Rows never change, and stay; after so many days, if given, they can be removed."""
    if op.get_bind().dialect.name == "sqlite":
        old = "" if days is None else f"WHEN OLD.created > datetime('now', '-{days} days') "
        for event, when in (("UPDATE", ""), ("DELETE", old)):
            op.execute(
                f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} {when}"
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
        return
    old = "false" if days is None else f"OLD.created < now() - interval '{days} days'"
    op.execute(
        f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF TG_OP = 'DELETE' AND {old} THEN RETURN OLD; END IF; "
        f"RAISE EXCEPTION '{table} is append-only'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {table}_append_only()"
    )
