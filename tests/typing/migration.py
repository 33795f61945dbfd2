"""What type checkers say to a migration whose `op` comes from this package."""

# pyright: strict
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import sqlalchemy as sa
from typing_extensions import assert_type

from alembic_ext import op


def upgrade() -> None:
    op.create_ticket_table("photos", start_above=("photos", "id"), pool="media")
    op.create_ticket_table(
        "shared", start_above=[("albums", "id"), ("photos", "id", ["sqlite://"])]
    )
    op.create_node_table()
    assert_type(op.next_tickets("photos", 10), list[int])
    op.add_column("photos", sa.Column("title", sa.String(50)))
    op.execute("SELECT 1")
    with op.batch_alter_table("photos") as batch:
        batch.drop_column("title")


def downgrade() -> None:
    op.drop_ticket_table("photos", force=True)


def mistakes() -> None:
    """Each is told: an ignored error that is none is an error itself."""
    op.create_ticket_table(7)  # type: ignore[arg-type]
    op.create_ticket_table("photos", layout="rows")  # type: ignore[arg-type]
    op.create_ticket_tables("photos")  # type: ignore[attr-defined]
