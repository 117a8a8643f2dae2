"""Uploads are found by their file, and an owner's bytes are summed from indexes."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("uploads", sa.Column("sha256", sa.String(length=64), nullable=False, server_default=""))
    op.execute("UPDATE uploads SET sha256 = request ->> 'sha256' WHERE request ->> 'sha256' IS NOT NULL")
    op.create_index("uploads_of_a_file", "uploads", ["owner", "sha256"])
    op.create_index("sizes_of_uploads", "uploads", ["owner", "size"])
    op.create_index("sizes_of_holdings", "holdings", ["owner", "size"])
