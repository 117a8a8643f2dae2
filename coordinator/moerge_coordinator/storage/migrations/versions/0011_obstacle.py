"""The reported obstacle of a domain's worker."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("progress", sa.Column("obstacle", sa.String(length=16), nullable=True))
