"""The revision of a trunk's method. Trunks so far were merged by revision 1."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("trunks", sa.Column("revision", sa.Integer(), nullable=False, server_default="1"))
