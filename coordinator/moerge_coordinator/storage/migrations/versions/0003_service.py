"""Withdrawal, aliases, rounds, tokens that end, the audit log, limits on uploads."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_TIMES = (
    ("tokens", "expires"),
    ("tokens", "revoked"),
    ("experts", "withdrawn"),
    ("experts", "purged"),
    ("trunks", "retired"),
    ("contributions", "withdrawn"),
    ("contributions", "purged"),
    ("trunk_contributions", "withdrawn"),
    ("trunk_contributions", "purged"),
    ("versions", "withheld"),
    ("versions", "retired"),
)
_NAMES = {"uq": "uq_%(table_name)s_%(column_0_name)s"}


def upgrade() -> None:
    for table, column in _TIMES:
        op.add_column(table, sa.Column(column, sa.DateTime(), nullable=True))
    op.add_column("tokens", sa.Column("note", sa.String(length=200), nullable=False, server_default=""))
    op.add_column("experts", sa.Column("source", sa.String(length=1000), nullable=True))
    op.add_column("uploads", sa.Column("size", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("uploads", sa.Column("touched", sa.DateTime(), nullable=False, server_default="2000-01-01 00:00:00"))
    op.execute("UPDATE uploads SET touched = created")
    op.add_column("versions", sa.Column("note", sa.String(length=2000), nullable=False, server_default=""))
    op.add_column("versions", sa.Column("tags", sa.JSON(), nullable=False, server_default="[]"))
    _several_experts_of_a_domain_in_time()
    op.create_table(
        "aliases",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("moved", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["version"], ["versions.number"]),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "alias_moves",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("alias", sa.String(length=63), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("previous", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("who", sa.String(length=100), nullable=False),
        sa.Column("note", sa.String(length=2000), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_table(
        "rounds",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("trunk", sa.String(length=64), nullable=True),
        sa.Column("domains", sa.JSON(), nullable=False),
        sa.Column("minimum", sa.Integer(), nullable=False),
        sa.Column("deadline", sa.DateTime(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["trunk"], ["trunks.digest"]),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("request", sa.String(length=64), nullable=False),
        sa.Column("token", sa.Integer(), nullable=True),
        sa.Column("role", sa.String(length=16), nullable=True),
        sa.Column("owner", sa.String(length=63), nullable=True),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("path", sa.String(length=2000), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("problem", sa.String(length=100), nullable=True),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    _append_only("audit")


def _several_experts_of_a_domain_in_time() -> None:
    """A withdrawn expert makes room for another of its domain."""
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table("experts", naming_convention=_NAMES) as batch:
            batch.drop_constraint("uq_experts_domain", type_="unique")
    else:
        op.drop_constraint("experts_domain_key", "experts", type_="unique")
    op.create_index(
        "one_expert_of_a_domain",
        "experts",
        ["domain"],
        unique=True,
        sqlite_where=sa.text("withdrawn IS NULL"),
        postgresql_where=sa.text("withdrawn IS NULL"),
    )


def _append_only(table: str) -> None:
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
