"""Evaluations, and whether owners allow them of their experts."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("experts", sa.Column("redistribute", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "evaluations",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=False),
        sa.Column("domain", sa.String(length=63), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("sums", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["version"], ["versions.number"]),
        sa.ForeignKeyConstraint(["owner"], ["owners.name"]),
        sa.ForeignKeyConstraint(["domain"], ["domains.name"]),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("version", "digest"),
    )
