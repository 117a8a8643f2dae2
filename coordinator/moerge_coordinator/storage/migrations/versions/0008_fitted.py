"""Experts whose MLPs are fitted to a trunk."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("experts", sa.Column("fitted_from", sa.String(length=64)))
    op.add_column("experts", sa.Column("fitted_to", sa.String(length=64)))
    op.drop_index("one_expert_of_a_domain", table_name="experts")
    for name, columns, where in (
        ("one_expert_of_a_domain", ["domain"], "withdrawn IS NULL AND fitted_to IS NULL"),
        ("one_fitted_to_a_trunk", ["fitted_from", "fitted_to"], "withdrawn IS NULL"),
    ):
        some = sa.text(where)
        op.create_index(name, "experts", columns, unique=True, sqlite_where=some, postgresql_where=some)
