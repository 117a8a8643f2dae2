"""Trunk methods and their options, trunk contributions, tuning splits."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("ALTER TABLE trunks RENAME COLUMN nonzero_gains TO bounds")
    op.add_column("trunks", sa.Column("options", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("trunks", sa.Column("contributions", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("trunks", sa.Column("tensors", sa.Integer(), nullable=False, server_default="0"))
    op.add_column(
        "contributions", sa.Column("split", sa.String(length=16), nullable=False, server_default="statistics")
    )
    op.create_table(
        "trunk_contributions",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=False),
        sa.Column("domain", sa.String(length=63), nullable=False),
        sa.Column("expert", sa.String(length=64), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("documents", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("software", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["owners.name"]),
        sa.ForeignKeyConstraint(["domain"], ["domains.name"]),
        sa.ForeignKeyConstraint(["expert"], ["experts.digest"]),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("digest"),
    )
