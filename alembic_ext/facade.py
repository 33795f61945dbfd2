"""The operations as typed functions, for use in migration files beside ``op``."""

from __future__ import annotations

from alembic import op

from .ops import (
    ConvertTicketTableOp,
    CreateTicketTableOp,
    DropTicketTableOp,
    LayoutName,
    MoveTicketTableOp,
    NextTicketsOp,
    RaiseTicketTableOp,
    RenameTicketTableOp,
    StartAbove,
)
from .time_sorted_ops import CreateNodeTableOp, CreateShardIdFunctionOp, DropShardIdFunctionOp

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


def create_ticket_table(
    name: str,
    *,
    start: int | None = None,
    start_above: StartAbove | None = None,
    layout: LayoutName | None = None,
    bits: int = 64,
    engine: str | None = None,
    pool: str | None = None,
) -> None:
    """``op.create_ticket_table``: create the table on every ticket server of the pool."""
    op.invoke(
        CreateTicketTableOp(
            name,
            start=start,
            start_above=start_above,
            layout=layout,
            bits=bits,
            engine=engine,
            pool=pool,
        )
    )


def drop_ticket_table(name: str, *, force: bool = False, pool: str | None = None) -> None:
    """``op.drop_ticket_table``: drop the table and keep its high water; only with ``force``."""
    op.invoke(DropTicketTableOp(name, force=force, pool=pool))


def rename_ticket_table(name: str, new_name: str, *, pool: str | None = None) -> None:
    """``op.rename_ticket_table``: give a sequence another name."""
    op.invoke(RenameTicketTableOp(name, new_name, pool=pool))


def raise_ticket_table(name: str, *, above: int, pool: str | None = None) -> None:
    """``op.raise_ticket_table``: see that all tickets from now on are larger than ``above``."""
    op.invoke(RaiseTicketTableOp(name, above=above, pool=pool))


def convert_ticket_table(name: str, *, layout: LayoutName, pool: str | None = None) -> None:
    """``op.convert_ticket_table``: give a ticket table another layout."""
    op.invoke(ConvertTicketTableOp(name, layout=layout, pool=pool))


def move_ticket_table(name: str, *, to: str, pool: str | None = None) -> None:
    """``op.move_ticket_table``: move a sequence to the ticket servers of another pool."""
    op.invoke(MoveTicketTableOp(name, to=to, pool=pool))


def next_tickets(name: str, n: int, *, pool: str | None = None) -> list[int]:
    """``op.next_tickets``: draw exactly ``n`` tickets."""
    tickets: list[int] = op.invoke(NextTicketsOp(name, n, pool=pool))
    return tickets


def create_node_table(*, pool: str | None = None) -> None:
    """``op.create_node_table``: create the table of node numbers on every ticket server."""
    op.invoke(CreateNodeTableOp(pool=pool))


def create_shard_id_function(name: str, *, shard: int) -> None:
    """``op.create_shard_id_function``: create Instagram's function for a logical shard."""
    op.invoke(CreateShardIdFunctionOp(name, shard=shard))


def drop_shard_id_function(name: str, *, shard: int) -> None:
    """``op.drop_shard_id_function``: drop it, and its sequence."""
    op.invoke(DropShardIdFunctionOp(name, shard=shard))
