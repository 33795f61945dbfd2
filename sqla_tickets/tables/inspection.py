"""The ticket table of one sequence on one server: found, read, created, dropped.

Plain statements over a connection in autocommit. Nothing here draws a ticket.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from typing import Final, NamedTuple

from ..dialects import STUB, ErrorKind, LayoutName, Statement
from ..errors import TicketTableError, TicketTableMissing, TicketTableMoved
from .context import StatementContext
from .metadata import TableMetadata, Tombstone
from .new_table import NewTable, largest_ticket

# The stub column, and the stride that it is named after.
_STUB_COLUMN: Final = re.compile(r"stub(?:_([1-9][0-9]*))?")


_INTEGER: Final = re.compile(r"(tiny|small|medium|big)?int(?:eger)?\b(?:\(\d+\))?( unsigned)?")
_BITS: Final = {"tiny": 8, "small": 16, "medium": 24, "": 32, "big": 64}
#: The largest number below which floats are exact.
_EXACT: Final = {"float": 2**24, "real": 2**24, "double": 2**53, "double precision": 2**53}


class ActiveTable(NamedTuple):
    """A ticket table that can be drawn from.

    Attributes:
        layout: how it is drawn from.
        metadata: how it is numbered, as its comment says; None for a foreign table.
        stub: the name of its stub column.
        largest: the largest ticket that it can issue, by its column's type and its metadata.
        number: the largest ticket that it shows; None when it has lost its row, or was not read.
    """

    layout: LayoutName
    metadata: TableMetadata | None
    stub: str = STUB
    largest: int = largest_ticket(64)
    number: int | None = None


class Definition(NamedTuple):
    """A table's definition as its server shows it.

    Attributes:
        text: all of it except the next number. It may lack the metadata (``sql_mode`` ORACLE).
        follows: the smallest number that the next ticket of Flickr's layout can have; None for a counter.
    """

    text: str
    follows: int | None


def are_columns(names: Collection[str]) -> bool:
    """Whether these are the columns of a ticket table."""
    rest = set(names) - {"id"}
    return "id" in names and len(rest) == 1 and all(map(_STUB_COLUMN.fullmatch, rest))


def exists(context: StatementContext, name: str) -> bool:
    """Whether this user can see a table of that name, of any kind."""
    return bool(context.rows(context.dialect.describe_table(name), table=name))


def _tombstone(context: StatementContext, name: str, text: str | None) -> Tombstone | None:
    try:
        return Tombstone.parse(text)
    except ValueError as error:
        raise TicketTableError(
            f"the tombstone of {name!r} on {context.server} cannot be read ({error}): compare it with those on the "
            "other servers, or upgrade if a later release wrote it"
        ) from error


def metadata_in(context: StatementContext, name: str, text: str | None) -> TableMetadata | None:
    """The metadata in a table's comment; None where there is none, as in a foreign table.

    Raises:
        TicketTableError: the metadata cannot be read.
    """
    try:
        return TableMetadata.parse(text)
    except ValueError as error:
        raise TicketTableError(
            f"the metadata of the ticket table {name!r} on {context.server} cannot be read ({error}): compare the "
            "table's comment with those on the other servers"
        ) from error


def active_table(context: StatementContext, name: str) -> ActiveTable:
    """Find the table's layout, and check that its numbering is the pool's.

    Raises:
        TicketTableMoved: there is a tombstone, which names the sequence's new pool or name.
        TicketTableError: the table is missing, is not a ticket table, or is another pool's.
    """
    found = describe(context, name)
    if isinstance(found, Tombstone):
        raise _gone(context, name, found)
    if found is None:
        raise TicketTableMissing(
            f"{context.server} has no ticket table {name!r} that this user can see: run the migration"
            f" that creates it, call pool.create_table({name!r}), or grant the ticket user"
            f" {context.dialect.drawing_privileges()} on it (a stamped database has run no migration, and autogenerate"
            " writes none for the table if autogenerate_plugins in env.py does not list 'sqla_tickets')"
        )
    _check_memory(context, name, found.layout)
    check_locks(context, name, found.layout)
    return found


def describe(context: StatementContext, name: str) -> ActiveTable | Tombstone | None:
    """The object of that name: a table as `active_table` finds it, a tombstone, or nothing.

    Raises:
        TicketTableError: the table is not a ticket table, or is another pool's.
    """
    rows = context.rows(context.dialect.describe_table(name), table=name)
    if not rows:
        return None
    tombstone = _tombstone(context, name, rows[0][3])
    if tombstone is not None:
        return tombstone
    layout, stub, fence = _layout(
        context, name, {str(row[0]).lower(): (bool(row[1]), bool(row[2])) for row in rows}
    )
    metadata = metadata_in(context, name, rows[0][3])
    expected = TableMetadata(layout, context.stride, context.offset)
    if metadata is not None and not metadata.matches(expected):
        raise _numbered_otherwise(context, name, expected, metadata.stride, metadata.numbering)
    if fence is not None and fence != context.stride:
        raise _numbered_otherwise(context, name, expected, fence, f"the column {stub}")
    (type_,) = (str(row[4]) for row in rows if str(row[0]).lower() == "id")
    return ActiveTable(layout, metadata, stub, _largest(type_, metadata))


def _largest(type_: str, metadata: TableMetadata | None) -> int:
    """The largest ticket that fits both the column and the table's metadata."""
    by_metadata = largest_ticket(metadata.bits if metadata else 64)
    integer = _INTEGER.match(type_.lower())
    if integer is None:
        return min(by_metadata, _EXACT.get(type_.lower(), by_metadata))
    bits = _BITS[integer[1] or ""] - (integer[2] is None)
    return min(by_metadata, (1 << bits) - 1)


def _numbered_otherwise(
    context: StatementContext, name: str, expected: TableMetadata, stride: int, found: str
) -> TicketTableError:
    kind = "table"
    advice = "Are the pool's servers in a different order?"
    if stride != context.stride:
        advice = (
            f"This pool's stride is {context.stride} and the table's {stride}: give this process stride={stride} (a "
            f"command takes --stride beside --server), and the new list of servers if the pool has grown"
        )
    if stride < context.stride and context.stride % stride == 0:
        kind = "growing"
        advice = (
            f"This pool has the stride {context.stride}, the table {stride}: that is expected while the pool grows, "
            f"until sqla-tickets grow --finish. If the pool has grown, this server has come back from an older backup, "
            f"and needs that command again. If it has not, give this process stride={stride}"
        )
    error = TicketTableError(
        f"the ticket table {name!r} on {context.server} is numbered differently: expected {expected.numbering},"
        f" found {found}. {advice}"
    )
    error.kind = kind
    return error


def _check_memory(context: StatementContext, name: str, layout: LayoutName) -> None:
    """Refuse a counter that is not on disk: after a restart it continues from the row.

    The row may be behind the counter, since clients may not write their numbers in the order in which they took them.
    """
    version = context.sqlalchemy.server_version_info
    if layout == "replace" and version and not context.dialect.keeps_counter():
        raise TicketTableError(
            f"{context.server} (version {'.'.join(map(str, version))}) keeps its AUTO_INCREMENT counter in memory "
            f"only, so a restart makes it repeat tickets of {name!r}: upgrade to MySQL 8.0 or MariaDB 10.2.4, or use "
            "the layout 'counter'"
        )


def check_locks(context: StatementContext, name: str, layout: LayoutName) -> None:
    """Refuse Flickr's table in a cluster whose other nodes take writes, since ``LOCK TABLES`` locks one node only.

    MariaDB manual, "MariaDB Galera Cluster - Known Limitations"; MySQL manual, "Group Replication
    Limitations".

    Raises:
        TicketTableError: the layout is Flickr's, and other nodes take writes.
    """
    if layout != "replace":
        return
    for variable, value in _cluster(context).items():
        if (variable, value) != ("group_replication_single_primary_mode", "ON"):
            raise TicketTableError(
                f"{context.server} is in a cluster that takes writes on every node ({variable} = {value}),"
                f" so {name!r} cannot use the layout 'replace' there: LOCK TABLES locks this node only. Create the "
                "table with the layout 'counter', or convert "
                f"it (op.convert_ticket_table({name!r}, layout='counter'))"
            )


def catch_up(context: StatementContext) -> None:
    """Make later statements of this connection see every commit that the server's cluster has agreed on."""
    statement = context.dialect.catch_up(_cluster(context))
    if statement is not None:
        context.send(statement)


def _cluster(context: StatementContext) -> dict[str, str]:
    """The variable that shows a Galera cluster or Group Replication, if there is one."""
    question = context.dialect.cluster_variables()
    if question is None:
        return {}
    with contextlib.suppress(Exception):  # a substitute for MySQL may not answer that
        return {str(variable): str(value) for variable, value in context.rows(question)}
    return {}


def _gone(context: StatementContext, name: str, tombstone: Tombstone) -> TicketTableError:
    there = f"the ticket table {name!r} on {context.server}"
    if tombstone.end:
        advice = "create it again, and its tickets begin above that"
        if tombstone.kind == "retired":
            advice = "remove that server from the configuration"
        error = TicketTableMissing(f"{there} {tombstone.end}, at {tombstone.high_water}: {advice}")
        error.kind = "retired" if tombstone.kind == "retired" else error.kind
        return error
    what = {
        "moved": f"has moved: the sequence is now {tombstone.sequence!r} of the pool {tombstone.pool!r}",
        "opening": f"is not open yet: {tombstone.sequence!r} of the pool {tombstone.pool!r} is being moved here",
        "converting": "is being converted to another layout",
    }[tombstone.kind]
    advice = (
        "attach that pool too (a command takes it with --pool)"
        if tombstone.kind == "moved"
        else "if that lasts, run the migration again"
    )
    kind = "moved" if tombstone.kind == "moved" else "closed"
    return TicketTableMoved(f"{there} {what}: {advice}", tombstone.pool, tombstone.sequence, kind)


def _layout(
    context: StatementContext, name: str, columns: dict[str, tuple[bool, bool]]
) -> tuple[LayoutName, str, int | None]:
    """Find the layout from the columns: for each, whether it is unique, and whether it is AUTO_INCREMENT.

    Returns:
        The layout, the name of the stub column, and the stride in that name, if there is one.
    """
    if are_columns(columns):
        stub = max(columns)
        named = _STUB_COLUMN.fullmatch(stub)
        stride = int(named[1]) if named and named[1] else None
        if columns[stub][0] and columns["id"] == (True, True):
            return "replace", stub, stride
        if columns[stub][0] and columns["id"] == (False, False):
            return "counter", stub, stride
    raise TicketTableError(
        f"the table {name!r} on {context.server} is not a ticket table: expected the columns id and stub,"
        " stub unique, id either AUTO_INCREMENT and unique (replace) or neither (counter);"
        f" found {sorted(columns)}. If that is a table of the application, give the tickets a database of their own"
    )


def table_and_last(context: StatementContext, name: str) -> tuple[ActiveTable, int]:
    """The table, and the largest ticket that it shows.

    Raises:
        TicketTableError: as `active_table` and `last_ticket`.
    """
    table = active_table(context, name)
    while True:
        try:
            return table, last_ticket(context, name, table.layout, table.stub)
        except TicketTableError:
            # a migration may have converted it between the two statements
            before, table = table, active_table(context, name)
            if table == before:
                raise


def last_ticket(context: StatementContext, name: str, layout: LayoutName, stub: str) -> int:
    """The largest ticket that the table shows.

    Raises:
        TicketTableError: it has no row.
    """
    found = number(context, name, layout, stub)
    if found is None:
        raise TicketTableError(
            f"the ticket table {name!r} on {context.server} is empty, so its number is lost: call "
            f"pool.create_table({name!r}, start=N), with N above every id that was ever issued"
        )
    return found


def check_residue(context: StatementContext, name: str, last: int) -> None:
    """Check that the last ticket of a foreign table, which has no metadata, is of this server's residue class.

    Raises:
        TicketTableError: its last ticket is another server's.
    """
    if (last - context.offset) % context.stride:
        raise TicketTableError(
            f"the ticket table {name!r} on {context.server} is numbered differently: expected a last ticket"
            f" that is {context.offset % context.stride} modulo {context.stride}, found {last}. Check"
            " the order of the pool's servers, and compare its stride with that of the table's other clients"
        )


def number(context: StatementContext, name: str, layout: LayoutName, stub: str) -> int | None:
    """The number in the table's row; None when there is no row."""
    try:
        return _read(context, name, layout, stub)
    except Exception as error:
        if layout != "replace" or context.dialect.error_kind(error) is not ErrorKind.LOCK_TIMEOUT:
            raise
        # a reader can wait for ever behind clients that draw blocks; a request for their lock is served
        lock = context.dialect.lock_table(name)
        assert lock is not None  # every dialect with that layout has it
        try:
            context.send(lock)
        except Exception as refused:
            if (
                context.dialect.error_kind(refused) is ErrorKind.ACCESS_DENIED
            ):  # a read-only user may lack the privilege
                raise error from None
            raise
    try:
        return _read(context, name, layout, stub)
    finally:
        context.send(context.dialect.unlock_tables())


def _read(context: StatementContext, name: str, layout: LayoutName, stub: str) -> int | None:
    rows = context.rows(context.dialect.read_row(name, layout, stub))
    return int(rows[0][0]) if rows else None


def follows(context: StatementContext, name: str, layout: LayoutName, stub: str) -> int | None:
    """The smallest number that the next ticket can have, from the server itself; None if unknown.

    A plain SELECT may show a smaller one: a proxy may send it to a replica, or an earlier draw may have written the
    row of Flickr's table last. Nor does information_schema help: its values may be a day old (MySQL manual,
    ``information_schema_stats_expiry``).
    """
    if layout == "counter":
        rows = context.rows(context.dialect.read_row(name, layout, stub, lock=True))
        return int(rows[0][0]) + 1 if rows else None
    statement = context.dialect.show_definition(name)
    return None if statement is None else _definition(context, statement).follows


def definition(context: StatementContext, name: str) -> Definition | None:
    """The definition that `active_table` needs, read by one short statement; None if unavailable.

    On MySQL it takes a sixth of the time of a whole inspection (measured), and it waits for no
    ``LOCK TABLES``: its metadata lock is compatible with that one (MySQL manual, "Metadata Locking").
    """
    statement = context.dialect.show_definition(name)
    if statement is None:
        return None
    try:
        return _definition(context, statement)
    except Exception as error:
        if context.dialect.error_kind(error) is ErrorKind.TIMEOUT:
            raise
        return None  # there is no such table, or a substitute for MySQL does not show it


def _definition(context: StatementContext, statement: Statement) -> Definition:
    (row,) = context.rows(statement)
    return Definition(*context.dialect.split_definition(str(row[1])))


def create(context: StatementContext, new: NewTable) -> None:
    """Create the table with its row, or verify the table that exists.

    A table without a row gets one only if ``start`` is given.

    Raises:
        TicketTableError: another table has that name, or the table is empty.
    """
    name = new.name
    wanted = new.layout_on(context.dialect)
    if not exists(context, name):
        _check_memory(context, name, wanted)
        check_locks(context, name, wanted)
        _send_creation(context, new)
    found = active_table(context, name)
    layout, stub = found.layout, found.stub
    if new.layout is not None and layout != wanted:
        raise TicketTableError(
            f"the ticket table {name!r} on {context.server} has the layout {layout!r}, not {wanted!r}:"
            " omit the layout, or convert the table"
        )
    if new.start > 1 and number(context, name, layout, stub) is None:
        _seed(context, new, layout, stub)
    last_ticket(context, name, layout, stub)


def _seed(context: StatementContext, new: NewTable, layout: LayoutName, stub: str) -> None:
    """Insert an empty table's row, unless another process does so at the same time."""
    try:
        context.send(context.dialect.insert_row(new.name, layout, new.seed, stub))
    except Exception:
        if number(context, new.name, layout, stub) is None:
            raise


def _send_creation(context: StatementContext, new: NewTable) -> None:
    """Create the table atomically: one statement on MySQL, one transaction elsewhere."""
    try:
        with context.dialect.transaction(context.cursor):
            context.send_all(new.creation(context.dialect))
    except Exception:
        if not exists(context, new.name):  # else another process was quicker
            raise


def drop(context: StatementContext, name: str) -> None:
    """Drop the table if it exists."""
    context.send(context.dialect.drop_table(name))
