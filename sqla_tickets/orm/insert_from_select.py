# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""``insert_from_select``: INSERT ... SELECT with a ticket for each row, in one statement.

It counts the rows, reserves as many tickets, and lets the database give row k the k-th ticket. If more rows have
appeared since the count, the whole statement fails, and another attempt has more tickets. It fails at the first row
beyond the last ticket. On databases without an expression that fails, such a row gets the first ticket, which
violates the column's unique key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Insert,
    Table,
    insert,
    inspect,
    literal_column,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Mapper, QueryableAttribute, Session, scoped_session
from sqlalchemy.sql import visitors
from sqlalchemy.sql.selectable import SelectBase
from sqlalchemy.types import TypeDecorator

from ..dialects import TicketDialect, find_dialect
from ..errors import TicketArgumentError, TicketError, TicketIntegrityError
from .default import IdDefault, refuse_database_of, refuse_pointing
from .inheritance import has_ids
from .mappers import inspect_mapper, inspect_mappers
from .numbered_rows import Ranges, count_of, with_tickets

#: How many ranges of tickets one statement maps its rows to.
MAX_RANGES: Final = 100
#: How often a statement is sent whose rows grow in number.
MAX_ATTEMPTS: Final = 5


def insert_from_select(
    connection: Connection | Session | scoped_session[Any],
    table: Table | type[Any],
    columns: Sequence[str | ColumnElement[Any] | QueryableAttribute[Any]],
    select: SelectBase,
) -> int:
    """Insert the rows of a SELECT, with a ticket for each, in one statement, so that no row passes through this process.

    It counts the rows first, and reserves as many tickets. If rows appear in between, the statement fails, and is
    sent again with more tickets, up to five times. Unused tickets are gaps. The tickets follow the ORDER BY of the
    SELECT. The table's other defaults behave as in :meth:`insert().from_select()
    <sqlalchemy.sql.expression.Insert.from_select>`: each is called once for all rows.

    Args:
        connection: a connection, or a session, which is flushed first. With an async one, ``await
            session.run_sync(insert_from_select, ...)``.
        table: a table or a mapped class with at least one `TicketSequence` on a column that is unique by itself.
        columns: the columns that the SELECT fills, in the SELECT's order: names, columns or attributes. Other columns
            with a `TicketSequence` get tickets.
        select: the rows.

    Returns:
        How many rows were inserted.

    Raises:
        TicketArgumentError: a row could get no ticket, or two rows the same one; the message says what to do.
        TicketError: the tickets could not be drawn, or new rows appeared in each attempt. Nothing was inserted.
        sqlalchemy.exc.IntegrityError: the rows violate a constraint; on MySQL also if new rows appeared in each attempt.
    """
    target, mapper = _target_of(table)
    given = [_column_of(target, mapper, name) for name in columns]
    rows = cast("SelectBase", insert(target).from_select(given, select).select)
    _refuse_select(rows, len(given))
    drawn = _drawn_columns(target, mapper, given)
    connected = _connection_of(connection, target, mapper)
    dialect = find_dialect(connected.dialect)
    if dialect is None:
        raise TicketArgumentError(
            f"insert_from_select() into {target}: {connected.dialect.name} might not undo a failed INSERT: draw "
            f"the ids with pool.next_ids(name, n), and insert the rows yourself"
        )
    copy = _Copy(connected, dialect, target, given, drawn, rows)
    copy.check()
    return copy.run()


# -- arguments


def _target_of(table: object) -> tuple[Table, Mapper[Any] | None]:
    """The table to insert into, and the mapper of a class."""
    if isinstance(table, Table):
        inspect_mappers()
        return cast("Any", table), None
    mapper: Any = inspect(cast("Any", table), raiseerr=False)
    local: object = getattr(mapper, "local_table", None)
    if not isinstance(local, Table):
        raise TicketArgumentError(
            f"insert_from_select() into {table!r}: expected a Table, or a class that is mapped to one"
        )
    for level in mapper.iterate_to_root():
        inspect_mapper(level)
    base = mapper.inherits
    if base is not None and not mapper.concrete and local not in base.tables:
        raise TicketArgumentError(
            f"insert_from_select() into {mapper.class_.__name__}: its objects have rows in several tables. Insert "
            f"into"
            f" {base.class_.__name__} first, then into the table {local} with those ids"
        )
    return cast("Any", local), mapper


def _column_of(table: Table, mapper: Mapper[Any] | None, name: object) -> Column[Any]:
    """A column of the table, by its key, its attribute, or itself."""
    columns: Any = table.c
    if isinstance(name, str):
        attributes: Any = {} if mapper is None else mapper.column_attrs
        found: list[Any] = [columns.get(name)]
        if name in attributes:
            found = list(attributes[name].columns)
    else:
        element: Any = getattr(name, "__clause_element__", lambda: name)()
        found = [getattr(element, "_deannotate", lambda: element)()]
    for column in found:
        if getattr(column, "table", None) is table:
            return cast("Column[Any]", column)
    raise TicketArgumentError(f"insert_from_select() into {table}: it has no column {name!s}")


def _refuse_select(rows: SelectBase, columns: int) -> None:
    """Refuse a SELECT of other columns, or one that changes data, as counting would change it again."""
    if any(getattr(element, "is_dml", False) for element in visitors.iterate(rows)):
        raise TicketArgumentError(
            "insert_from_select(): the SELECT contains an INSERT, UPDATE or DELETE. Counting its rows would execute "
            "that once more: execute it first, then select"
        )
    found = len(list(cast("Any", rows.subquery()).c))
    if found != columns:
        raise TicketArgumentError(
            f"insert_from_select(): expected {columns} columns in the SELECT, found {found}"
        )


def _drawn_columns(
    table: Table, mapper: Mapper[Any] | None, given: Iterable[Column[Any]]
) -> list[Column[Any]]:
    """The columns that get tickets: those with ids that the SELECT does not give."""
    drawn = [column for column in table.c if has_ids(column) and column not in set(given)]
    for column in drawn:
        refuse_pointing(column)
    if not drawn:
        raise TicketArgumentError(
            f"insert_from_select() into {table}: no column outside the SELECT has a TicketSequence: use "
            f"insert({table.name}).from_select()"
        )
    return drawn


def _connection_of(given: Any, table: Table, mapper: Mapper[Any] | None) -> Connection:
    """The connection to use; a session is flushed first, as before any of its statements."""
    if isinstance(given, Connection):
        return given
    session = given
    if hasattr(session, "registry"):  # a scoped_session
        session = session()
    if isinstance(session, Session):
        if session.autoflush:
            session.flush()
        bind: dict[str, Any] = {"clause": table}
        if mapper is None and hasattr(session, "shard_chooser"):
            raise TicketArgumentError(
                f"insert_from_select() into {table}: the ShardedSession chooses no shard for a Table: use its mapped"
                " class, or the connection of a shard, session.connection(bind_arguments={'shard_id': ...})"
            )
        if mapper is not None:
            bind["mapper"] = mapper
        return session.connection(bind_arguments=bind)
    kind = type(given).__name__
    advice = (
        "await it.run_sync(insert_from_select, table, columns, select)"
        if hasattr(given, "run_sync")
        else "for example, the one from `with engine.begin() as connection:`"
    )
    raise TicketArgumentError(
        f"insert_from_select() with {kind}: expected a Connection or a Session: {advice}"
    )


# -- the statement


@dataclass(frozen=True)
class _Copy:
    """One INSERT ... SELECT.

    Attributes:
        connection: the connection that sends it.
        dialect: the dialect of its database.
        table: the target.
        given: the columns that the SELECT gives.
        drawn: the columns that get tickets.
        select: the rows.
    """

    connection: Connection
    dialect: TicketDialect
    table: Table
    given: list[Column[Any]]
    drawn: list[Column[Any]]
    select: SelectBase

    def check(self) -> None:
        """Check that a row without its own ticket makes the whole statement fail.

        Raises:
            TicketArgumentError: it would not.
        """
        for column in self.drawn:
            if isinstance(column.type, TypeDecorator):
                raise TicketArgumentError(
                    f"insert_from_select() into {column}: the type {column.type!r} may change values, but the "
                    f"tickets bypass it: insert the rows with ids of pool.next_ids(name, n)"
                )
        schema = self.connection.schema_for_object(self.table)
        unique = self.dialect.unique_columns(self.connection, self.table.name, schema)
        if not any(column.name in unique for column in self.drawn):
            raise TicketArgumentError(
                f"insert_from_select() into {self.table}: in the database, {self._drawn_names()} has no PRIMARY KEY "
                "or UNIQUE of its own, without which two rows could get one ticket. Add one, or insert the rows "
                f"with ids of pool.next_ids(name, n)"
            )
        self.dialect.check_undoes_inserts(self.connection, self.table.name, schema)

    def _drawn_names(self) -> str:
        return ", ".join(f"{self.table.name}.{column.name}" for column in self.drawn)

    def run(self) -> int:
        """Count, reserve and send; again if new rows have appeared."""
        rows = self._count()
        for attempt in range(1, MAX_ATTEMPTS + 1):
            if not rows:
                break
            tickets = [self._reserve(column, rows) for column in self.drawn]
            try:
                return self._send(rows, tickets)
            except DBAPIError as error:
                fails = self.dialect.is_failing(cast("BaseException", error.orig))
                if not fails and not isinstance(error, IntegrityError):
                    raise
                more = self._count_again(error, rows, tickets)
                if fails and attempt == MAX_ATTEMPTS:
                    raise TicketError(
                        f"insert_from_select() into {self.table}: nothing was inserted, as new rows appeared in each "
                        f"of {MAX_ATTEMPTS} attempts, at last {more} instead of {rows}: keep other clients from "
                        f"adding selected rows, for example by LOCK TABLE"
                    ) from error
                if more <= rows or attempt == MAX_ATTEMPTS:
                    raise
                rows = more + (more - rows) * 2**attempt  # they may go on to grow
        return 0

    def _count(self) -> int:
        return int(self.connection.scalar(count_of(self.select)) or 0)

    def _count_again(self, error: DBAPIError, before: int, tickets: list[Ranges]) -> int:
        """The number of rows after a failure; no more than before if another constraint failed."""
        found = self._count()
        if found > before or not self._names_ticket(error, tickets):
            return found
        # the key of the tickets was violated, by rows that a SELECT of this transaction does not find
        found = self.dialect.count_as_insert(self.connection, count_of(self.select)) or found
        return found if found > before else before + before // 8 + 8  # such as WHERE rand() < 0.5

    def _names_ticket(self, error: DBAPIError, tickets: list[Ranges]) -> bool:
        """Whether a row had no ticket, or the violation is of a first ticket."""
        if self.dialect.is_failing(cast("BaseException", error.orig)):
            return True
        names = [
            name
            for column, ranges in zip(self.drawn, tickets, strict=True)
            for name in (f"{self.table.name}.{column.name}", str(ranges[0][0]))
        ]
        return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error.orig)) for name in names)

    def _reserve(self, column: Column[Any], n: int) -> Ranges:
        """The tickets for one column.

        Raises:
            TicketArgumentError: the tickets can be drawn only one by one.
            TicketError: there are none.
        """
        default = cast("IdDefault", column.default)
        source = default._source_for(column)
        if source is not None:
            refuse_database_of(source, self.connection.engine)
        # a sample, which becomes a gap: a million tickets may be a million round trips
        probe = default._reserve(source, column, MAX_RANGES + 1) if n > MAX_RANGES else []
        ranges = default._reserve(source, column, n) if len(probe) <= MAX_RANGES else probe
        if len(ranges) <= MAX_RANGES:
            return ranges
        raise TicketArgumentError(
            f"insert_from_select() of {n} rows into {column}: the tickets of {default!r} come in more than "
            f"{MAX_RANGES} ranges, because the ticket user may not lock the tables. On each of "
            f"{', '.join(map(str, source.servers if source else ()))}, as an administrator, run GRANT LOCK TABLES ON "
            f"TICKET_DATABASE.* TO TICKET_USER (`sqla-tickets grants` prints all grants)"
        )

    def _send(self, rows: int, tickets: list[Ranges]) -> int:
        """Insert the rows with these tickets, or nothing."""
        statement = self._statement(tickets)
        with self.connection.begin_nested() if self._needs_savepoint() else nullcontext():
            self.dialect.begin_insert(self.connection)
            # asyncpg does not count what it streams
            options = {"preserve_rowcount": True, "stream_results": False}
            result = self.connection.execute(statement, execution_options=options)
            inserted = self.dialect.inserted_rows(self.connection, result)
            if inserted > rows:  # such as under a constraint that is checked at the COMMIT
                raise TicketIntegrityError(
                    f"insert_from_select() into {self.table}: {inserted} rows were inserted with {rows} tickets, and "
                    f"no key of {self._drawn_names()} refused the repeated ones: roll this transaction back"
                )
        return inserted

    def _statement(self, tickets: list[Ranges]) -> Insert:
        names = [*self.given, *self.drawn]
        limit = self.dialect.insert_limit
        rows = with_tickets(
            self.select,
            tickets,
            self.dialect.failing,
            self.dialect.row_counter(),
            None if limit is None else literal_column(str(limit)),
        )
        statement = insert(self.table).from_select(names, rows)
        for prefix in self.dialect.insert_prefixes:
            statement = statement.prefix_with(prefix)
        return statement

    def _needs_savepoint(self) -> bool:
        """Whether a failing statement would end its transaction."""
        if not self.dialect.failure_ends_transaction:
            return False
        driver: Any = self.connection.connection.dbapi_connection
        return not self.connection.dialect.detect_autocommit_setting(driver)
