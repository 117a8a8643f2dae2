"""Adapters that experts' weights are made from."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("experts", sa.Column("adapter", sa.JSON(), nullable=True))
