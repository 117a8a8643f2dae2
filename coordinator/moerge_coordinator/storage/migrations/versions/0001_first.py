"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("maker", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "owners",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "trunks",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("experts", sa.JSON(), nullable=False),
        sa.Column("family", sa.String(length=32), nullable=False),
        sa.Column("hidden_size", sa.Integer(), nullable=False),
        sa.Column("layers", sa.Integer(), nullable=False),
        sa.Column("exponents", sa.JSON(), nullable=False),
        sa.Column("nonzero_gains", sa.JSON(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("current", sa.Boolean(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "versions",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("lineage_digest", sa.String(length=64), nullable=False),
        sa.Column("lineage", sa.JSON(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("bytes_total", sa.BigInteger(), nullable=False),
        sa.Column("bytes_written", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("lineage_digest"),
    )
    op.create_table(
        "domains",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["owners.name"]),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "holdings",
        sa.Column("owner", sa.String(length=63), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["owners.name"]),
        sa.PrimaryKeyConstraint("owner", "sha256"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=True),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["owners.name"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash"),
    )
    op.create_table(
        "uploads",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=False),
        sa.Column("manifest", sa.String(length=64), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["owners.name"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner", "manifest"),
    )
    op.create_table(
        "experts",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("domain", sa.String(length=63), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=False),
        sa.Column("license", sa.String(length=64), nullable=False),
        sa.Column("family", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("problem", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["domain"], ["domains.name"]),
        sa.ForeignKeyConstraint(["owner"], ["owners.name"]),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("digest"),
        sa.UniqueConstraint("domain"),
    )
    op.create_table(
        "contributions",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=False),
        sa.Column("domain", sa.String(length=63), nullable=False),
        sa.Column("expert", sa.String(length=64), nullable=False),
        sa.Column("trunk", sa.String(length=64), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("documents", sa.BigInteger(), nullable=False),
        sa.Column("shards", sa.Integer(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("software", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["domain"], ["domains.name"]),
        sa.ForeignKeyConstraint(["expert"], ["experts.digest"]),
        sa.ForeignKeyConstraint(["owner"], ["owners.name"]),
        sa.ForeignKeyConstraint(["trunk"], ["trunks.digest"]),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "shards",
        sa.Column("trunk", sa.String(length=64), nullable=False),
        sa.Column("domain", sa.String(length=63), nullable=False),
        sa.Column("shard", sa.String(length=64), nullable=False),
        sa.Column("contribution", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["contribution"], ["contributions.digest"]),
        sa.ForeignKeyConstraint(["domain"], ["domains.name"]),
        sa.ForeignKeyConstraint(["trunk"], ["trunks.digest"]),
        sa.PrimaryKeyConstraint("trunk", "domain", "shard"),
    )
