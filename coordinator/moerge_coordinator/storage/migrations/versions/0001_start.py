"""The schema of the first release."""

from functools import partial

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
_required = partial(sa.Column, nullable=False)


def _unique_where(name: str, *columns: str, where: str) -> sa.Index:
    """An index of the rows that meet a condition."""
    some = sa.text(where)
    return sa.Index(name, *columns, unique=True, sqlite_where=some, postgresql_where=some)


def upgrade() -> None:
    op.create_table(
        "alias_moves",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("alias", sa.String(63)),
        sa.Column("version", sa.Integer),
        sa.Column("previous", sa.Integer),
        _required("kind", sa.String(16)),
        _required("who", sa.String(100)),
        _required("note", sa.String(2000)),
        sa.Column("override", sa.String(2000)),
        _required("created", sa.DateTime),
    )
    op.create_table(
        "artifacts",
        sa.Column("key", sa.String(64), primary_key=True),
        _required("sha256", sa.String(64)),
        _required("size", sa.BigInteger),
        _required("maker", sa.String(64)),
    )
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("request", sa.String(64)),
        sa.Column("token", sa.Integer),
        sa.Column("role", sa.String(16)),
        sa.Column("owner", sa.String(63)),
        _required("method", sa.String(16)),
        _required("path", sa.String(2000)),
        _required("status", sa.Integer),
        sa.Column("problem", sa.String(100)),
        _required("created", sa.DateTime),
    )
    op.create_table(
        "owners",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("name", sa.String(63), unique=True),
        _required("created", sa.DateTime),
    )
    op.create_table(
        "trunks",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("digest", sa.String(64), unique=True),
        _required("method", sa.String(32)),
        _required("revision", sa.Integer),
        _required("options", sa.JSON),
        _required("experts", sa.JSON),
        _required("contributions", sa.JSON),
        _required("family", sa.String(32)),
        _required("hidden_size", sa.Integer),
        _required("layers", sa.Integer),
        _required("exponents", sa.JSON),
        _required("bounds", sa.JSON),
        _required("tensors", sa.Integer),
        _required("files", sa.JSON),
        _required("current", sa.Boolean),
        _required("created", sa.DateTime),
        sa.Column("retired", sa.DateTime),
    )
    op.create_table(
        "versions",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("lineage_digest", sa.String(64), unique=True),
        _required("lineage", sa.JSON),
        _required("files", sa.JSON),
        _required("bytes_total", sa.BigInteger),
        _required("bytes_written", sa.BigInteger),
        _required("influence", sa.JSON),
        _required("note", sa.String(2000)),
        _required("tags", sa.JSON),
        _required("created", sa.DateTime),
        sa.Column("withheld", sa.DateTime),
        sa.Column("retired", sa.DateTime),
    )
    op.create_table(
        "aliases",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("name", sa.String(63), unique=True),
        _required("version", sa.Integer, sa.ForeignKey("versions.number")),
        _required("moved", sa.DateTime),
    )
    op.create_table(
        "domains",
        sa.Column("name", sa.String(63), primary_key=True),
        _required("owner", sa.String(63), sa.ForeignKey("owners.name")),
    )
    op.create_table(
        "holdings",
        sa.Column("owner", sa.String(63), sa.ForeignKey("owners.name"), primary_key=True),
        sa.Column("sha256", sa.String(64), primary_key=True),
        _required("size", sa.BigInteger),
        sa.Index("sizes_of_holdings", "owner", "size"),
    )
    op.create_table(
        "owner_keys",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("owner", sa.String(63), sa.ForeignKey("owners.name")),
        _required("public_key", sa.String(64), unique=True),
        _required("fingerprint", sa.String(64), unique=True),
        _required("created", sa.DateTime),
        sa.Column("revoked", sa.DateTime),
        _unique_where("one_key_of_an_owner", "owner", where="revoked IS NULL"),
    )
    op.create_table(
        "rounds",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("name", sa.String(63), unique=True),
        _required("kind", sa.String(16)),
        sa.Column("trunk", sa.String(64), sa.ForeignKey("trunks.digest")),
        _required("domains", sa.JSON),
        _required("minimum", sa.Integer),
        _required("deadline", sa.DateTime),
        _required("created", sa.DateTime),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Integer, primary_key=True),
        _required("hash", sa.String(64), unique=True),
        _required("role", sa.String(16)),
        sa.Column("owner", sa.String(63), sa.ForeignKey("owners.name")),
        _required("note", sa.String(200)),
        _required("created", sa.DateTime),
        sa.Column("expires", sa.DateTime),
        sa.Column("revoked", sa.DateTime),
        sa.Column("used", sa.DateTime),
    )
    op.create_table(
        "uploads",
        sa.Column("id", sa.Integer, primary_key=True),
        _required("owner", sa.String(63), sa.ForeignKey("owners.name")),
        _required("manifest", sa.String(64)),
        _required("request", sa.JSON),
        _required("sha256", sa.String(64)),
        _required("size", sa.BigInteger),
        _required("created", sa.DateTime),
        _required("touched", sa.DateTime),
        sa.UniqueConstraint("owner", "manifest"),
        sa.Index("sizes_of_uploads", "owner", "size"),
        sa.Index("uploads_of_a_file", "owner", "sha256"),
    )
    op.create_table(
        "evaluations",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("digest", sa.String(64)),
        _required("version", sa.Integer, sa.ForeignKey("versions.number")),
        _required("owner", sa.String(63), sa.ForeignKey("owners.name")),
        _required("domain", sa.String(63), sa.ForeignKey("domains.name")),
        _required("active", sa.Boolean),
        _required("sums", sa.JSON),
        _required("created", sa.DateTime),
        sa.UniqueConstraint("version", "digest"),
    )
    op.create_table(
        "experts",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("digest", sa.String(64), unique=True),
        _required("domain", sa.String(63), sa.ForeignKey("domains.name")),
        _required("owner", sa.String(63), sa.ForeignKey("owners.name")),
        _required("license", sa.String(64)),
        _required("redistribute", sa.Boolean),
        _required("family", sa.String(32)),
        _required("state", sa.String(16)),
        sa.Column("problem", sa.JSON),
        _required("files", sa.JSON),
        sa.Column("source", sa.String(1000)),
        sa.Column("adapter", sa.JSON),
        sa.Column("fitted_from", sa.String(64)),
        sa.Column("fitted_to", sa.String(64)),
        _required("created", sa.DateTime),
        sa.Column("withdrawn", sa.DateTime),
        sa.Column("purged", sa.DateTime),
        _unique_where("one_expert_of_a_domain", "domain", where="withdrawn IS NULL AND fitted_to IS NULL"),
        _unique_where("one_fitted_to_a_trunk", "fitted_from", "fitted_to", where="withdrawn IS NULL"),
    )
    op.create_table(
        "progress",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("domain", sa.String(63), sa.ForeignKey("domains.name"), unique=True),
        _required("owner", sa.String(63), sa.ForeignKey("owners.name")),
        _required("stage", sa.String(16)),
        _required("shards_done", sa.BigInteger),
        _required("shards_total", sa.BigInteger),
        _required("tokens_per_second", sa.BigInteger),
        sa.Column("seconds_left", sa.BigInteger),
        sa.Column("obstacle", sa.String(16)),
        _required("heard", sa.DateTime),
    )
    op.create_table(
        "contributions",
        sa.Column("number", sa.Integer, primary_key=True),
        _required("digest", sa.String(64), unique=True),
        _required("kind", sa.String(16)),
        sa.Column("split", sa.String(16)),
        _required("owner", sa.String(63), sa.ForeignKey("owners.name")),
        _required("domain", sa.String(63), sa.ForeignKey("domains.name")),
        _required("expert", sa.String(64), sa.ForeignKey("experts.digest")),
        sa.Column("trunk", sa.String(64), sa.ForeignKey("trunks.digest")),
        _required("tokens", sa.BigInteger),
        _required("documents", sa.BigInteger),
        sa.Column("shards", sa.Integer),
        sa.Column("effective_rank", sa.Double),
        _required("size", sa.BigInteger),
        _required("active", sa.Boolean),
        _required("warnings", sa.JSON),
        _required("software", sa.JSON),
        sa.Column("signature", sa.String(128)),
        sa.Column("fingerprint", sa.String(64)),
        _required("created", sa.DateTime),
        sa.Column("withdrawn", sa.DateTime),
        sa.Column("purged", sa.DateTime),
        _unique_where("one_trunk_contribution_of_an_expert", "expert", where="kind = 'trunk' AND active"),
    )
    op.create_table(
        "shards",
        sa.Column("trunk", sa.String(64), sa.ForeignKey("trunks.digest"), primary_key=True),
        sa.Column("domain", sa.String(63), sa.ForeignKey("domains.name"), primary_key=True),
        sa.Column("shard", sa.String(64), primary_key=True),
        _required("contribution", sa.String(64), sa.ForeignKey("contributions.digest")),
    )
    _append_only("audit")


def _append_only(table: str) -> None:
    """Make the database refuse changes and removals of a table's rows."""
    if op.get_bind().dialect.name == "sqlite":
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
        return
    op.execute(
        f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{table} is append-only'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {table}_append_only()"
    )
