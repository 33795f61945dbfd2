"""The operations on ticket tables; those on what Snowflakes need are in `alembic_ext.snowflake`.

Each is a class with the arguments of its call, its `reverse` where it can be undone, and a function with its effect, which ``operation``
registers: how it is written into a migration file follows from the arguments. The sequence may have moved since the migration was
written, for example when it runs for one more shard: the effect then takes place where the sequence is now (`moved.where_it_is`), or not again
(`moved.find_moved`, `moved.unless_moved`). A new one is such a pair here, its
name in ``__all__``, and a section with a row in ``docs/reference/migration-operations.md``. Its effect on ticket servers, where it
has one, is a function of `sqla_tickets.maintenance.operations`.

Its tests: its reverse in ``tests/unit/migrations/test_operations.py``, its effect, run twice, in ``test_operations.py`` of
``tests/integration/migrations``, and, where it changes ticket servers, an entry in ``OPERATIONS`` of
``test_interruptions.py`` there (``CONVERSIONS``, where the kind must have both layouts): it can be interrupted at any change and run again.
What it refuses offline is tested in ``test_offline.py``, and bad arguments in ``test_bad_input.py``, beside them.
``test_pages.py`` runs its page, whose heading is the operation's name in backticks, and fails while there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from alembic.operations.base import Operations
from alembic.util import CommandError
from sqlalchemy import (
    ColumnClause,
    Connection,
    Engine,
    Select,
    column,
    func,
    inspect,
    select,
    table,
)
from sqlalchemy.exc import SQLAlchemyError

from sqla_tickets import TicketError, TicketPool
from sqla_tickets.connect.engines import address_of, engine_for
from sqla_tickets.connect.timeouts import Timeouts
from sqla_tickets.dialects import LayoutName, dialect_of
from sqla_tickets.maintenance import operations as maintenance
from sqla_tickets.maintenance.handle import MARGIN_NUMBERS
from sqla_tickets.tables.inspection import ActiveTable
from sqla_tickets.tables.new_table import NewTable

from . import offline
from .base import TicketTableOp, operation
from .configuration import Pools, option, pool_named, pools_of, shards_of
from .moved import find_moved, unless_moved, where_it_is

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.runtime.migration import MigrationContext

__all__ = [
    "convert_ticket_table",
    "create_ticket_table",
    "drop_ticket_table",
    "move_ticket_table",
    "next_tickets",
    "raise_ticket_table",
    "rename_ticket_table",
]

log = logging.getLogger("alembic.sqla_tickets")

#: A table and a column, or these and the URLs of all databases that have the table.
ColumnAbove = tuple[str, str] | tuple[str, str, Sequence[str]]
#: One of those, or a list where several columns draw from the sequence.
StartAbove = ColumnAbove | list[ColumnAbove]

#: How long a database may take to find the largest id of a column that has no index, and to wait for the table's lock.
MAX_ID_QUERY: Final = Timeouts(600.0, lock_wait_seconds=10.0)


@dataclass(eq=False, kw_only=True)
class CreateTicketTableOp(TicketTableOp):
    """Create the table of a sequence on every ticket server, and verify existing ones.

    Args:
        name: the sequence's name.
        start: no ticket is below it.
        start_above: ``("photos", "id")`` to begin above the largest id of that column in the migration's own
            database and in all ``shards`` of the configuration file; with a list of URLs as a third item, in those
            databases. A list of such tuples names several columns.
        layout: ``"replace"`` or ``"counter"``; None for the one on other servers, or else the default.
        bits: 64, or 32 for tickets up to 4,294,967,295.
        engine: the storage engine, on MySQL and MariaDB; None for InnoDB.
        pool: the name of the pool; None for ``"default"``, or the only one.
    """

    start: int | None = None
    start_above: StartAbove | None = None
    layout: LayoutName | None = None
    bits: int = 64
    engine: str | None = None

    def reverse(self) -> DropTicketTableOp:
        """Drop the table, if the caller permits it."""
        drop = DropTicketTableOp(self.name, pool=self.pool)
        drop.created_by = self
        return drop

    def to_diff_tuple(self) -> tuple[str, str]:
        """The tuple that ``alembic check`` shows."""
        return ("add_ticket_table", self.name)


@dataclass(eq=False, kw_only=True)
class DropTicketTableOp(TicketTableOp):
    """Drop the table of a sequence, and keep its high water; without ``force`` do nothing.

    Args:
        name: the sequence's name.
        force: whether to drop it although other shards may draw from it; the command line's equivalent is ``-x
            drop_tickets=1``.
        pool: the name of the pool; None for ``"default"``, or the only one.
    """

    force: bool = False
    created_by: CreateTicketTableOp | None = field(default=None, init=False, repr=False)

    def reverse(self) -> CreateTicketTableOp:
        """Create it again, above the high water that its tombstone shows."""
        return self.created_by or CreateTicketTableOp(self.name, pool=self.pool)

    def to_diff_tuple(self) -> tuple[str, str]:
        """The tuple that ``alembic check`` shows."""
        return ("remove_ticket_table", self.name)


@operation(CreateTicketTableOp)
def create_ticket_table(operations: Operations, op: CreateTicketTableOp) -> None:
    """Create the table, or raise it, in the sequence's present pool."""
    context = operations.migration_context
    with pools_of(context) as pools:
        if context.as_sql:
            _write_down(context, pool_named(pools, op.pool), op)
            return
        above = 0
        if op.start_above is not None:
            each = op.start_above if isinstance(op.start_above, list) else [op.start_above]
            # one creation above all columns: between several, clients would draw ids in use
            largest, key = max((_largest_id(operations, one), ".".join(one[:2])) for one in each)
            above = largest + MARGIN_NUMBERS
            log.info(
                "every ticket of %r is above %d: the largest %s is %d", op.name, above, key, largest
            )
        is_here = (_is_active(pools, op) or find_moved(pools, op) is None) and maintenance.create(
            pool_named(pools, op.pool),
            op.name,
            layout=op.layout,
            start=op.start,
            above=above,
            bits=op.bits,
            engine=op.engine or "InnoDB",
        )
        if is_here:
            log.info("the ticket table %r is on every server of the pool", op.name)
        elif above:  # a run for another shard has moved it since
            where_it_is(pools, op, lambda pool, name: pool.raise_above(name, above))


def _is_active(pools: Pools, op: CreateTicketTableOp) -> bool:
    """Whether a server of the operation's pool has a table of that name that can be drawn from."""
    try:
        states = maintenance.table_states(pool_named(pools, op.pool), op.name).values()
    except CommandError:  # that pool is not configured any more
        return False
    return any(isinstance(state, ActiveTable) for state in states)


def _largest_id(operations: Operations, start_above: ColumnAbove) -> int:
    """The largest id of a column in the migration's own database and all configured shards, or in those of the URLs."""
    name, key = start_above[0], start_above[1]
    schema, _, bare = name.rpartition(".")
    ids: ColumnClause[int] = column(key)
    largest: Select[Any] = select(func.max(ids)).select_from(table(bare, schema=schema or None))
    listed = start_above[2] if len(start_above) == 3 else None
    try:
        bind = operations.get_bind()
        urls = shards_of(operations.migration_context) if listed is None else listed
        shards = [engine_for(url, MAX_ID_QUERY) for url in urls]
        others = [
            shard
            for shard in shards
            if not (_is_same_database(shard, bind.engine) and _has_schema_of(shard, bind))
        ]
        # one that has no such table yet has no ids, and raises the sequence when it has
        if_there = (bare, schema or None) if listed is None else None
        found = [_largest_at(shard, largest, if_there) for shard in others]
        if listed is None or len(others) < len(shards):
            # another connection would wait for this transaction's own locks
            found.append(int(bind.scalar(largest) or 0))
        return max(found)
    except SQLAlchemyError as error:
        raise CommandError(
            f"start_above={name!r}, {key!r}: the column's largest value cannot be read: {error}"
        ) from error


def _is_same_database(one: Engine, other: Engine) -> bool:
    """Whether two engines have one address; the user and the options may choose a schema or a socket."""
    return address_of(one) == address_of(other) and (
        (one.url.username, one.url.query) == (other.url.username, other.url.query)
    )


def _has_schema_of(shard: Engine, bind: Connection) -> bool:
    """Whether a shard's names without a schema mean what they mean here, where a statement may have chosen one."""
    with shard.connect() as connection:
        return _schema_of(connection) == _schema_of(bind)


def _schema_of(connection: Connection) -> str | None:
    """The schema of names that have none, as it is now; None if the database has no schemas."""
    try:
        # `default_schema_name` is that of the engine's first connection
        return connection.dialect._get_default_schema_name(connection)  # pyright: ignore[reportPrivateUsage]
    except NotImplementedError:
        return None


def _largest_at(
    shard: Engine, largest: Select[Any], if_there: tuple[str, str | None] | None = None
) -> int:
    """The largest id in a database; 0 where the table ``if_there`` is missing."""
    with shard.connect() as connection:
        if if_there is not None and not inspect(connection).has_table(*if_there):
            return 0
        _limit_lock_waits(connection)
        return int(connection.scalar(largest) or 0)


def _limit_lock_waits(connection: Connection) -> None:
    """Let the server end a wait for the table's lock, which another migration may hold."""
    dbapi = connection.connection.dbapi_connection
    assert dbapi is not None  # a connection that was just checked out
    cursor = dbapi.cursor()
    dialect_of(connection.dialect).set_up_session(dbapi, cursor, MAX_ID_QUERY.lock_wait_seconds)
    cursor.close()


def _write_down(context: MigrationContext, pool: TicketPool, op: CreateTicketTableOp) -> None:
    """Write the statements that create the table on each server.

    Raises:
        CommandError: its first ticket depends on a database's content.
    """
    if op.start_above is not None:
        raise CommandError(
            f"--sql: the first ticket of {op.name!r} is unknown before the migration runs: use start= instead of "
            "start_above=, or omit --sql"
        )
    for server in pool.servers:
        dialect = server.context.dialect
        new = NewTable(
            op.name,
            layout=op.layout,
            stride=pool.stride,
            offset=server.offset,
            start=op.start or 1,
            bits=op.bits,
            engine=op.engine or "InnoDB",
        )
        statements = [dialect.script(statement) for statement in new.creation(dialect)]
        if dialect.begin is not None:
            statements = [dialect.begin, *statements, "COMMIT"]
        offline.write_script(context, pool, server, statements)


@operation(DropTicketTableOp)
def drop_ticket_table(operations: Operations, op: DropTicketTableOp) -> None:
    """Replace the table with a tombstone, which keeps the high water."""
    context = operations.migration_context
    if not op.force and option(context, "drop_tickets") not in ("1", "true", "yes"):
        said = (
            f"the ticket table {op.name!r} is kept, since other shards may draw from it: to drop it, use -x "
            f"drop_tickets=1 or force=True, which drop nothing if the sequence has moved or was renamed since"
        )
        if context.as_sql:
            offline.comment(context, said)
        else:
            log.warning("%s", said)
        return
    offline.refuse(context, op.name, "dropped: its high water is not known")
    with pools_of(context) as pools:
        pool = pool_named(pools, op.pool)
        moved = maintenance.drop(pool, op.name)
    if moved is None:
        log.info(
            "the ticket table %r is dropped on every server of the pool %r", op.name, pool.name
        )
    else:
        log.warning(
            "the ticket table %r is not dropped, as the sequence is left unchanged: it is now %r of the pool %r",
            op.name,
            moved.sequence,
            moved.pool,
        )


@dataclass(eq=False, kw_only=True)
class ConvertTicketTableOp(TicketTableOp):
    """Convert a ticket table to another layout, while clients draw from it.

    Args:
        name: the sequence's name.
        layout: ``"replace"``, Flickr's table, or ``"counter"``, one row.
        pool: the name of the pool; None for ``"default"``, or the only one.
    """

    layout: LayoutName

    def reverse(self) -> ConvertTicketTableOp:
        """Convert it to the other layout."""
        other: LayoutName = "replace" if self.layout == "counter" else "counter"
        return ConvertTicketTableOp(self.name, layout=other, pool=self.pool)


@operation(ConvertTicketTableOp)
def convert_ticket_table(operations: Operations, op: ConvertTicketTableOp) -> None:
    """Convert the table, unless the sequence has moved since."""
    context = operations.migration_context
    offline.refuse(context, op.name, "converted: its high water is not known")
    with pools_of(context) as pools:
        try:
            maintenance.convert(pool_named(pools, op.pool), op.name, op.layout)
        except (CommandError, TicketError):
            if find_moved(pools, op) is None:
                raise


@dataclass(eq=False)
class RenameTicketTableOp(TicketTableOp):
    """Rename a sequence; clients that use the old name are redirected.

    Args:
        name: the sequence's name.
        new_name: the new name.
        pool: the name of the pool; None for ``"default"``, or the only one.
    """

    new_name: str

    def reverse(self) -> RenameTicketTableOp:
        """Rename it to its old name."""
        return RenameTicketTableOp(self.new_name, self.name, pool=self.pool)


@operation(RenameTicketTableOp)
def rename_ticket_table(operations: Operations, op: RenameTicketTableOp) -> None:
    """Rename the table, unless an earlier run has done it."""
    context = operations.migration_context
    offline.refuse(context, op.name, "renamed: its high water is not known")
    with pools_of(context) as pools, unless_moved(pools, op, to=None, new_name=op.new_name):
        maintenance.rename(pool_named(pools, op.pool), op.name, op.new_name)


@dataclass(eq=False, kw_only=True)
class MoveTicketTableOp(TicketTableOp):
    """Move a sequence to the ticket servers of another pool, while clients draw from it.

    Args:
        name: the sequence's name.
        to: the name of the pool that gets it.
        pool: the name of the pool that has it; None for ``"default"``.
    """

    to: str

    def reverse(self) -> MoveTicketTableOp:
        """Move it back."""
        return MoveTicketTableOp(self.name, to=self.pool or "default", pool=self.to)


@operation(MoveTicketTableOp)
def move_ticket_table(operations: Operations, op: MoveTicketTableOp) -> None:
    """Move the table, unless an earlier run has done it."""
    context = operations.migration_context
    offline.refuse(context, op.name, "moved: its high water is not known")
    with pools_of(context) as pools, unless_moved(pools, op, to=op.to, new_name=op.name):
        maintenance.move(pool_named(pools, op.pool), op.name, pool_named(pools, op.to))


@dataclass(eq=False, kw_only=True)
class RaiseTicketTableOp(TicketTableOp):
    """Raise a sequence, so that all tickets from now on are larger than ``above``; never lowers a number.

    Args:
        name: the sequence's name.
        above: the largest id that may be in use.
        pool: the name of the pool; None for ``"default"``, or the only one.
    """

    above: int

    def reverse(self) -> RaiseTicketTableOp:
        """Do nothing, as the ids in between may have been issued."""
        return self


@operation(RaiseTicketTableOp)
def raise_ticket_table(operations: Operations, op: RaiseTicketTableOp) -> None:
    """Raise the table in the sequence's present pool."""
    context = operations.migration_context
    offline.refuse(context, op.name, "raised: its number is not known")
    with pools_of(context) as pools:
        where_it_is(pools, op, lambda pool, name: pool.raise_above(name, op.above))


@dataclass(eq=False)
class NextTicketsOp(TicketTableOp):
    """Draw exactly ``n`` tickets for the rows that a data migration inserts. This cannot be undone.

    Args:
        name: the sequence's name.
        n: how many.
        pool: the name of the pool; None for ``"default"``, or the only one.
    """

    n: int


@operation(NextTicketsOp)
def next_tickets(operations: Operations, op: NextTicketsOp) -> list[int]:
    """Draw from the sequence's present pool."""
    context = operations.migration_context
    offline.refuse(context, op.name, "drawn from")
    with pools_of(context) as pools:
        return where_it_is(pools, op, lambda pool, name: pool.next_ids(name, op.n))
