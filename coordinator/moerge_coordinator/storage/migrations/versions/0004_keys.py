"""Owners' keys and signatures; when tokens were last used."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "owner_keys",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=False),
        sa.Column("public_key", sa.String(length=64), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.Column("revoked", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["owner"], ["owners.name"]),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("public_key"),
        sa.UniqueConstraint("fingerprint"),
    )
    op.create_index(
        "one_key_of_an_owner",
        "owner_keys",
        ["owner"],
        unique=True,
        sqlite_where=sa.text("revoked IS NULL"),
        postgresql_where=sa.text("revoked IS NULL"),
    )
    op.add_column("tokens", sa.Column("used", sa.DateTime(), nullable=True))
    for table in ("contributions", "trunk_contributions"):
        op.add_column(table, sa.Column("signature", sa.String(length=128), nullable=True))
        op.add_column(table, sa.Column("fingerprint", sa.String(length=64), nullable=True))
