"""The last reported progress of each domain's worker."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "progress",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("domain", sa.String(length=63), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("shards_done", sa.BigInteger(), nullable=False),
        sa.Column("shards_total", sa.BigInteger(), nullable=False),
        sa.Column("tokens_per_second", sa.BigInteger(), nullable=False),
        sa.Column("seconds_left", sa.BigInteger(), nullable=True),
        sa.Column("heard", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["domain"], ["domains.name"]),
        sa.ForeignKeyConstraint(["owner"], ["owners.name"]),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("domain"),
    )
