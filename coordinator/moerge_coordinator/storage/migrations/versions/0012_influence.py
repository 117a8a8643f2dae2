"""The influence of owners on versions, effective ranks of contributions, reasons of overridden refusals."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("versions", sa.Column("influence", sa.JSON(), nullable=True))
    op.add_column("contributions", sa.Column("effective_rank", sa.Double(), nullable=True))
    op.add_column("alias_moves", sa.Column("override", sa.String(length=2000), nullable=True))
