"""Contributions of both kinds in one table. Trunk contributions are numbered after the router contributions."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
_SHARED = "digest, owner, domain, expert, tokens, documents, size, active, software, signature, fingerprint, created"


def upgrade() -> None:
    op.add_column("contributions", sa.Column("kind", sa.String(length=16), nullable=False, server_default="router"))
    with op.batch_alter_table("contributions") as batch:
        batch.alter_column("split", existing_type=sa.String(length=16), nullable=True, server_default=None)
        batch.alter_column("trunk", existing_type=sa.String(length=64), nullable=True)
        batch.alter_column("shards", existing_type=sa.Integer(), nullable=True)
        batch.alter_column("kind", existing_type=sa.String(length=16), server_default=None)
    columns = f"{_SHARED}, withdrawn, purged"
    op.execute(
        f"INSERT INTO contributions (number, kind, warnings, {columns}) "  # noqa: S608  # no value from outside
        "SELECT (SELECT COALESCE(MAX(number), 0) FROM contributions) + ROW_NUMBER() OVER (ORDER BY number), "
        f"'trunk', '[]', {columns} FROM trunk_contributions"
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "SELECT setval(pg_get_serial_sequence('contributions', 'number'), "
            "(SELECT COALESCE(MAX(number), 0) + 1 FROM contributions), false)"
        )
    op.drop_table("trunk_contributions")
    where = sa.text("kind = 'trunk' AND active")
    op.create_index(
        "one_trunk_contribution_of_an_expert",
        "contributions",
        ["expert"],
        unique=True,
        sqlite_where=where,
        postgresql_where=where,
    )
