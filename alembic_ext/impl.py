"""What the operations do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from alembic.operations.base import Operations
from alembic.util import CommandError
from sqlalchemy import ColumnClause, Select, column, func, select, table
from sqlalchemy.exc import SQLAlchemyError

from sqla_tickets import TicketPool, TicketTableMoved, moves
from sqla_tickets.engines import engine_for

from . import offline
from .ops import (
    ConvertTicketTableOp,
    CreateTicketTableOp,
    DropTicketTableOp,
    MoveTicketTableOp,
    NextTicketsOp,
    RaiseTicketTableOp,
    RenameTicketTableOp,
    StartAbove,
    TicketOp,
)
from .pools import option, pool_named, pools_of

__all__: list[str] = []

T = TypeVar("T")
log = logging.getLogger("alembic.sqla_tickets")

#: Seconds that a database may take to find the largest id of a column that has no index.
PATIENCE = 600.0


@contextmanager
def _pool(operations: Operations, op: TicketOp) -> Generator[TicketPool]:
    """The pool that an operation works on, its connections closed at the end."""
    with pools_of(operations.migration_context) as pools:
        yield pool_named(pools, op.pool)


def _where_it_is(
    pools: Mapping[str, TicketPool],
    op: CreateTicketTableOp | RaiseTicketTableOp | NextTicketsOp,
    do: Callable[[TicketPool, str], T],
) -> T:
    """Do something about a sequence that has moved since, as a run for another shard finds."""
    pool, name = pool_named(pools, op.pool), op.name
    been = set[tuple[str, str]]()
    while True:
        been.add((pool.name, name))
        try:
            return do(pool, name)
        except TicketTableMoved as moved:
            if (moved.pool, moved.sequence) in been:
                raise
            pool, name = pool_named(pools, moved.pool), moved.sequence


@Operations.implementation_for(CreateTicketTableOp)
def _(operations: Operations, op: CreateTicketTableOp) -> None:
    with pools_of(operations.migration_context) as pools:
        pool = pool_named(pools, op.pool)
        if operations.migration_context.as_sql:
            offline.create(operations.migration_context, pool, op)
            return
        above = 0
        if op.start_above is not None:
            above = _largest_id(operations, op.start_above) + moves.MARGIN
        is_here = moves.create(
            pool,
            op.name,
            layout=op.layout,
            start=op.start,
            above=above,
            bits=op.bits,
            engine=op.engine or "InnoDB",
        )
        if above and not is_here:  # other shards have moved it on since
            _where_it_is(pools, op, lambda there, name: there.raise_above(name, above))
        log.info("ticket table %r is on every server of the pool %r", op.name, pool.name)


@Operations.implementation_for(DropTicketTableOp)
def _(operations: Operations, op: DropTicketTableOp) -> None:
    context = operations.migration_context
    if not op.force and option(context, "drop_tickets") not in ("1", "true", "yes"):
        said = (
            f"the ticket table {op.name!r} is kept, since other shards may draw from it: -x"
            " drop_tickets=1, or force=True, drops it"
        )
        if context.as_sql:
            offline.comment(context, said)
        else:
            log.warning("%s", said)
        return
    offline.refuse(context, op.name, "dropped: its high water is not known")
    with _pool(operations, op) as pool:
        moves.drop(pool, op.name)


@Operations.implementation_for(RenameTicketTableOp)
def _(operations: Operations, op: RenameTicketTableOp) -> None:
    offline.refuse(operations.migration_context, op.name, "renamed: its high water is not known")
    with _pool(operations, op) as pool:
        moves.rename(pool, op.name, op.new_name)


@Operations.implementation_for(RaiseTicketTableOp)
def _(operations: Operations, op: RaiseTicketTableOp) -> None:
    offline.refuse(operations.migration_context, op.name, "raised: where it stands is not known")
    with pools_of(operations.migration_context) as pools:
        _where_it_is(pools, op, lambda there, name: there.raise_above(name, op.above))


@Operations.implementation_for(ConvertTicketTableOp)
def _(operations: Operations, op: ConvertTicketTableOp) -> None:
    offline.refuse(operations.migration_context, op.name, "converted: its high water is not known")
    with _pool(operations, op) as pool:
        moves.convert(pool, op.name, op.layout)


@Operations.implementation_for(MoveTicketTableOp)
def _(operations: Operations, op: MoveTicketTableOp) -> None:
    offline.refuse(operations.migration_context, op.name, "moved: its high water is not known")
    with pools_of(operations.migration_context) as pools:
        moves.move(pool_named(pools, op.pool), op.name, pool_named(pools, op.to))


@Operations.implementation_for(NextTicketsOp)
def _(operations: Operations, op: NextTicketsOp) -> list[int]:
    offline.refuse(operations.migration_context, op.name, "drawn from")
    with pools_of(operations.migration_context) as pools:
        return _where_it_is(pools, op, lambda there, name: there.next_ids(name, op.n))


def _largest_id(operations: Operations, start_above: StartAbove) -> int:
    """The largest id of a column in the migration's own database, or in those of the URLs."""
    name, key = start_above[0], start_above[1]
    urls = start_above[2] if len(start_above) == 3 else None
    schema, _, bare = name.rpartition(".")
    ids: ColumnClause[int] = column(key)
    largest: Select[Any] = select(func.max(ids)).select_from(table(bare, schema=schema or None))
    try:
        if urls is None:
            return int(operations.get_bind().scalar(largest) or 0)
        return max(_largest_at(url, largest) for url in urls)
    except SQLAlchemyError as error:
        raise CommandError(
            f"start_above={name!r}, {key!r}: its largest value cannot be read: {error}"
        ) from error


def _largest_at(url: str, largest: Select[Any]) -> int:
    with engine_for(url, PATIENCE).connect() as connection:
        return int(connection.scalar(largest) or 0)
