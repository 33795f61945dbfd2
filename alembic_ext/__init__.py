"""Ticket tables in Alembic's migrations: created, moved and checked on every ticket server.

Every operation is there twice: as ``op.create_ticket_table(...)``, which Alembic makes and no type
checker knows, and as a typed function of this package.
"""

from __future__ import annotations

# First: it imports this package, when it looks for its plugins.
import alembic  # noqa: F401  # pyright: ignore[reportUnusedImport]

from . import plugin
from .facade import (
    convert_ticket_table,
    create_node_table,
    create_shard_id_function,
    create_ticket_table,
    drop_shard_id_function,
    drop_ticket_table,
    move_ticket_table,
    next_tickets,
    raise_ticket_table,
    rename_ticket_table,
)

__all__ = [
    "convert_ticket_table",
    "create_node_table",
    "create_shard_id_function",
    "create_ticket_table",
    "drop_shard_id_function",
    "drop_ticket_table",
    "move_ticket_table",
    "next_tickets",
    "raise_ticket_table",
    "rename_ticket_table",
]

plugin.register()
