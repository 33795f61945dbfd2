"""Photos, and their ids."""

from __future__ import annotations

import sqlalchemy as sa

from alembic_ext import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_ticket_table("photos")
    op.create_table(
        "photos",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("title", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    op.drop_table("photos")
    op.drop_ticket_table("photos")
