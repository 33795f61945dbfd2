"""`TicketDialect`: the base class of all kinds of databases, with the methods that each must provide."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import (
    URL,
    BigInteger,
    ClauseElement,
    ColumnElement,
    Connection,
    CursorResult,
    Dialect,
    Executable,
    Insert,
    Select,
    String,
    Table,
    and_,
    bindparam,
    inspect,
)
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from ..arguments import name_of_sequence
from ..errors import TicketArgumentError
from .facts import Grant, Role, ServerFacts

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

LayoutName = Literal["replace", "counter"]

#: The stub column of a table that has had one stride only, as Flickr's has it.
STUB: Final = "stub"
#: What stands in that column of each layout's row. Two values, so that a client which still believes in
#: the layout that a table had before finds no row, instead of moving the wrong number.
STUB_VALUES: Final[Mapping[LayoutName, str]] = {"replace": "a", "counter": "c"}
#: What a ticket table's columns are called in a tombstone: statements that name the old ones fail.
TOMBSTONE_COLUMNS: Final = ("high_water", "was_stub")
#: Characters, more than any comment of ours has: no more of one is read.
LONGEST_COMMENT: Final = 10_000
#: The options of a URL that name a host or a socket, and all that name the server: a service file's entry, too.
HOST_OPTIONS: Final = ("host", "unix_socket")
ADDRESS_OPTIONS: Final = (*HOST_OPTIONS, "port", "service")


class ErrorKind(enum.Enum):
    """The meaning of a driver's error for a draw."""

    ACCESS_DENIED = "a missing privilege"
    DATABASE_MISSING = "it has no such database"
    DEADLOCK = "a deadlock"
    DISCONNECTED = "the connection or the server is gone"
    DISK_FULL = "no space is left on its disk"
    DUPLICATE_NUMBER = "the server issued a number that its table already holds"
    EXHAUSTED = "no number is left"
    INVALID_NAME = "no table can have such a name"
    IN_USE = "another object depends on the table"
    KILLED = "the server ended the statement early"
    LOCK_TIMEOUT = "another session holds the ticket table"
    OVERLOADED = "it answers other draws, but not this one in time"
    READ_ONLY = "the server takes no writes"
    SCHEMA_MISMATCH = "the table's columns have changed"
    SYNTAX_ERROR = "the server did not understand the statement"
    TABLE_MISSING = "there is no such table"
    TIMEOUT = "no answer in time"
    TOO_MANY_CONNECTIONS = "the server accepts no more connections"

    @property
    def word(self) -> str:
        """The ``kind`` of a `TicketError` with this meaning."""
        return self.name.lower()


class TableShape(NamedTuple):
    """The description of a ticket table, for the statements that create it.

    Attributes:
        name: the name of the sequence and of its table.
        layout: its layout.
        comment: its metadata.
        seed: the number that its row begins with.
        start: its smallest ticket.
        bits: 32 or 64.
        largest: the largest ticket.
        engine: the storage engine, on MySQL and MariaDB.
        stub: the name of the stub column. It is never quoted: SQLite takes an unknown name in double quotes
            for a string.
    """

    name: str
    layout: LayoutName
    comment: str
    seed: int
    start: int
    bits: int
    largest: int
    engine: str
    stub: str


class Statement:
    """SQL for a driver's cursor: its text, and its parameters in the driver's own form.

    Args:
        text: the statement, as the driver expects it.
        positions: the names of the parameters in their order; None where the driver takes names.
        values: the values of parameters that are known already.
    """

    def __init__(
        self,
        text: str,
        positions: Sequence[str] | None = (),
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self.text, self._positions, self._values = text, positions, values or {}

    @classmethod
    def compiled(cls, element: ClauseElement, dialect: Dialect) -> Statement:
        """A SQLAlchemy element as a statement for a dialect."""
        compiled = element.compile(dialect=dialect)
        if not isinstance(compiled, SQLCompiler):  # DDL has no parameters
            return cls(str(compiled))
        positions = compiled.positiontup or () if compiled.positional else None
        return cls(str(compiled), positions, compiled.params)

    def __str__(self) -> str:
        return self.text

    def parameters(self, **values: int | str) -> tuple[Any, ...] | dict[str, Any]:
        """The parameters as a tuple or a dict, even an empty one: without it, drivers leave ``%%`` doubled."""
        given = {**self._values, **values}
        if self._positions is None:
            return given
        return tuple(given[name] for name in self._positions)

    def arguments(self) -> tuple[Any, ...]:
        """The quickest arguments of ``cursor.execute()`` for a statement without parameters.

        A driver that gets no arguments does not search the text for parameters.
        """
        return (self.text, self.parameters()) if "%" in self.text else (self.text,)


class _Template(Executable, ClauseElement):
    """A text with the places of parameters, as `TicketDialect.bound` marks them."""

    inherit_cache = False

    def __init__(self, text: str) -> None:
        self.text = text


@compiles(_Template)
def _write_parameters(element: _Template, compiler: SQLCompiler, **kw: Any) -> str:
    def insert(found: re.Match[str]) -> str:
        type_ = BigInteger() if found[1] == "span" else String()
        return str(compiler.process(bindparam(found[1], type_=type_)))

    return re.sub(r"\0(\w+)\0", insert, element.text)


#: Messages without a code, of any kind of server or of its system.
_TEXTS: Final = {
    r"too many (clients|connections)|remaining connection slots": ErrorKind.TOO_MANY_CONNECTIONS,
    # ENOSPC, in what servers say of a file that they could not write
    r"\b(errno|errcode|error):? 28\b|no space left on device": ErrorKind.DISK_FULL,
    # no code tells a time-out from a lost connection; 110 is ETIMEDOUT
    r"timed out|\btimeout\b|system error: 110\b": ErrorKind.TIMEOUT,
}


#: How many compiled statements are kept for each engine.
MAX_COMPILED: Final = 200
_compiled: Final[WeakKeyDictionary[Dialect, dict[Hashable, Statement]]] = WeakKeyDictionary()


class TicketDialect(ABC):
    """Everything that depends on the kind of database, for one of SQLAlchemy's dialects.

    Args:
        sqlalchemy: the dialect of an engine. It knows the server's version from the first connection on.

    Attributes:
        is_embedded: whether the database is a file, or memory, of this process: never unresponsive, and its
            driver does not survive a fork during another thread's call.
        has_plpgsql: whether it has functions in PL/pgSQL.
        integers_have_64_bits: whether ``INTEGER`` holds every ticket.
        ticket_type: the type of a column that holds every ticket.
        name_type: the type of a column of names, which is sensitive to case and accents.
        maintenance_database: the one to connect to while others are created; None where none is needed.
        drop_database: the statement, with a place for the name.
        synchronous_driver: what creates databases in place of an asynchronous driver.
        default_port: the port that a URL need not name.
        ping: a minimal statement that returns a row and has no parameters.
        now: its clock in microseconds since 1970, as SQL.
        layouts: those that a ticket table can have, the default first.
        counter_kept_since: the first version whose AUTO_INCREMENT counter is on disk, and not only in memory.
        read_only_variables: the server takes no writes unless all of them are OFF, or 0.
        replica_takes_writes: whether a replica takes clients' writes, too.
        has_read_timeout: whether `set_connect_defaults` gives every synchronous driver a time-out for each answer.
        encryption_advice: how to encrypt a connection.
        begin: what begins a transaction in which tables are created and dropped; None where there is none. Then
            a ticket table is turned into a tombstone, and back, by one atomic ``ALTER TABLE``.
        returns_counter: whether raising a counter returns the number as a row, and not as ``lastrowid``.
        failure_ends_transaction: whether a failing statement ends its transaction, and so needs a savepoint.
            Elsewhere it undoes only itself.
        insert_prefixes: prefixes that make an INSERT undo itself when a key is violated, whatever the table says.
        insert_limit: the LIMIT of an INSERT ... SELECT, larger than any number of rows, if the database needs one.
        queues: how many queues a table of the replace layout has; so many clients replace its row at once.
        rows_per_raised_row: how many rows an upsert counts for each row that it has raised, and for no other one.
        error_codes: what the server's codes mean.
        error_texts: what its messages mean that have no code: regular expressions over lower-case text.
    """

    is_embedded: ClassVar[bool] = False
    has_plpgsql: ClassVar[bool] = False
    integers_have_64_bits: ClassVar[bool] = False
    ticket_type: ClassVar[str] = "BIGINT"
    name_type: ClassVar[str] = "VARCHAR(255)"
    maintenance_database: ClassVar[str | None] = None
    drop_database: ClassVar[str] = "DROP DATABASE {}"
    synchronous_driver: ClassVar[str | None] = None
    default_port: ClassVar[int | None] = None
    ping: ClassVar[str] = "SELECT 1"
    now: ClassVar[str] = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"
    layouts: ClassVar[tuple[LayoutName, ...]] = ("counter",)
    counter_kept_since: ClassVar[tuple[int, ...] | None] = None
    read_only_variables: ClassVar[tuple[str, ...]] = ()
    replica_takes_writes: ClassVar[bool] = False
    has_read_timeout: ClassVar[bool] = False
    encryption_advice: ClassVar[str] = (
        "Let the driver encrypt the connection and verify the certificate."
    )
    begin: ClassVar[str | None] = "BEGIN"
    returns_counter: ClassVar[bool] = True
    failure_ends_transaction: ClassVar[bool] = True
    insert_prefixes: ClassVar[tuple[str, ...]] = ()
    insert_limit: ClassVar[int | None] = None
    queues: ClassVar[int] = 0
    rows_per_raised_row: ClassVar[int] = 1
    error_codes: ClassVar[Mapping[int | str, ErrorKind]] = {}
    error_texts: ClassVar[Mapping[str, ErrorKind]] = {}

    def __init__(self, sqlalchemy: Dialect) -> None:
        self.sqlalchemy = sqlalchemy

    @classmethod
    def of(cls, sqlalchemy: Dialect) -> TicketDialect:
        """The dialect object; once the server is known, a class may choose a subclass."""
        return cls(sqlalchemy)

    @property
    def kind(self) -> str:
        """The name of the kind of database: SQLAlchemy's, or a more exact one."""
        return self.sqlalchemy.name

    # -- errors

    def error_code(self, error: BaseException) -> int | str | None:
        """The server's code for an error, wherever the driver keeps it; None when there is none."""
        return None

    def error_kind(self, error: BaseException) -> ErrorKind:
        """The `ErrorKind` of a driver's error; ``DISCONNECTED`` when nothing better is known."""
        if isinstance(error, (TimeoutError, asyncio.TimeoutError)):  # two classes in Python 3.10
            return ErrorKind.TIMEOUT
        if isinstance(error, UnicodeError):  # the connection's characters are others
            return ErrorKind.INVALID_NAME
        code = self.error_code(error)
        if code is not None and code in self.error_codes:
            return self.error_codes[code]
        text = str(error).lower()
        texts = {**self.error_texts, **_TEXTS}
        return next(
            (kind for pattern, kind in texts.items() if re.search(pattern, text)),
            ErrorKind.DISCONNECTED,
        )

    def missing_grant(self, error: BaseException, database: str, user: str) -> str | None:
        """The statement that grants a user the missing privilege, if the error names it."""
        return None

    # -- connections

    @classmethod
    def is_in_memory(cls, url: URL) -> bool:
        """Whether the database is in memory, so that all users share one connection."""
        return False

    @classmethod
    def dbapi_module(cls, driver: str) -> object:
        """The replacement for a synchronous driver's module; None for the module itself."""
        return None

    def address(self, url: URL) -> Hashable | None:
        """The address in a URL: equal for two URLs that name one database; None if it shows none."""
        named = [url.query.get(option) for option in ADDRESS_OPTIONS]
        if url.host is None and url.database is None and not any(named):  # it has a creator
            return None
        return (url.host, url.port or self.default_port, url.database, *named)

    @abstractmethod
    def set_connect_defaults(self, kw: dict[str, Any], timeout: float, lock_wait: float) -> None:
        """Set driver options that a URL omits: time-outs, and several statements in one packet.

        Args:
            kw: the keyword arguments of the driver's ``connect()``, which are changed.
            timeout: seconds without an answer, after which a server has failed.
            lock_wait: how many seconds more a statement may wait for a lock.
        """

    @abstractmethod
    def set_up_session(
        self, connection: DBAPIConnection, cursor: DBAPICursor, lock_wait: float
    ) -> None:
        """Prepare a new connection in autocommit for draws.

        Args:
            connection: the driver's.
            cursor: the connection's cursor.
            lock_wait: how many seconds a statement waits for another client's lock, at most.
        """

    # -- the server

    def identity(self) -> Statement | None:
        """Select one row that identifies this run of the server; None if there is no server.

        Its columns: a name; the time of its start, in seconds by its own clock; the identity of its cluster, or NULL;
        the connected members of the cluster.
        """
        return None

    def group_name(self) -> Statement | None:
        """Select one row with the name of the server's group, if `identity` lacks it; an error if there is no group."""
        return None

    def make_durable(self, cursor: DBAPICursor) -> None:
        """Make the commits of a connection survive a power cut, where `set_up_session` cannot: it may wait for a lock."""
        return

    def durability(self) -> Statement | None:
        """Select the variables that `lossy_variables` judges, a row for each, with its value; None if there are none."""
        return None

    @classmethod
    def lossy_variables(cls, variables: Mapping[str, str]) -> list[str]:
        """The variables whose values let a crash lose commits."""
        return []

    def read_only(self) -> Statement | None:
        """Select the variables that are OFF or 0 while the server takes writes; None if it always does."""
        return None

    def facts(self, cursor: DBAPICursor) -> ServerFacts:
        """The server's report on itself, for the doctor."""
        return ServerFacts()

    # -- users

    def user_grants(self, cursor: DBAPICursor, database: str | None) -> tuple[Grant, ...] | None:
        """The connected user's grants; None if they are unknown, or come from roles."""
        return None

    @classmethod
    def table_privileges(cls, role: Role) -> tuple[str, ...]:
        """The privileges that a user of that role needs on the tables of a ticket database."""
        return ("SELECT",) if role == "monitor" else ("SELECT", "INSERT", "UPDATE")

    @classmethod
    def drawing_privileges(cls) -> str:
        """The privileges on a ticket table that its user needs, as they are written in a GRANT."""
        return ", ".join(cls.table_privileges("draw"))

    @classmethod
    def server_privileges(cls, role: Role) -> tuple[str, ...]:
        """The further privileges or roles that it needs on the whole server."""
        return ()

    @classmethod
    def grants(
        cls, role: Role, *, user: str, database: str, host: str, owner: str, schema: str
    ) -> list[str]:
        """The statements that give an existing user what the role needs, and no more.

        Raises:
            TicketArgumentError: there are no users, or a name cannot be quoted.
        """
        raise TicketArgumentError(f"{cls.__name__} has no users to whom privileges are granted")

    @classmethod
    def grant_target(cls, database: str | None, table: str) -> str:
        """The text after ON in a GRANT for a ticket table, or for all tables if ``table`` is ``*``."""
        return "ALL TABLES IN SCHEMA" if table == "*" else f'"{table}"'

    @classmethod
    def set_global(cls, name: str, value: object) -> str:
        """The statement that changes a variable of the server."""
        return f"ALTER SYSTEM SET {name} = {value}"

    # -- text

    def statement(self, text: str) -> Statement:
        """A text of this dialect as a statement."""
        if "\0" not in text:
            return Statement(text)
        return self.compiled(text, lambda: _Template(text))

    def compiled(self, key: Hashable, make: Callable[[], ClauseElement]) -> Statement:
        """A SQLAlchemy element as a statement; compiling it may take longer than a round trip.

        Args:
            key: identifies its text.
            make: creates the element, unless the statement is cached.
        """
        kept = _compiled.setdefault(self.sqlalchemy, {})
        found = kept.get(key)
        if found is None:
            if len(kept) >= MAX_COMPILED:
                kept.clear()
            found = kept[key] = Statement.compiled(make(), self.sqlalchemy)
        return found

    def script(self, statement: Statement) -> str:
        """A statement without parameters, as text for a script."""
        doubled = self.sqlalchemy.paramstyle in ("format", "pyformat")
        return statement.text % () if doubled else statement.text

    def quoted(self, name: str) -> str:
        """A name in a statement's text: always in quotes."""
        return self.sqlalchemy.identifier_preparer.quote_identifier(name)

    def table(self, name: str) -> str:
        """The name of a ticket table in a statement's text.

        Raises:
            TicketArgumentError: no table can have it.
        """
        return self.quoted(name_of_sequence(name))

    def literal(self, text: str) -> str:
        """A string literal in a statement's text."""
        if text.isidentifier():  # SQLAlchemy takes a tenth of a millisecond
            return f"'{text}'"
        compiler = self.sqlalchemy.statement_compiler(self.sqlalchemy, None)
        return compiler.render_literal_value(text, String())

    def bound(self, name: Literal["span", "table"]) -> str:
        """The placeholder of a parameter: ``span`` is a number, ``table`` a string."""
        return f"\0{name}\0"

    # -- a ticket table

    def create_table(self, table: TableShape) -> list[Statement]:
        """Create a ticket table with its row and its comment, to be sent within `transaction`."""
        name = self.table(table.name)
        create = self.statement(f"CREATE TABLE {name} ({self._counter_columns(table)}\n)")
        row = self.insert_row(table.name, table.layout, table.seed, table.stub)
        return [create, row, *self.comment_on(table.name, table.comment)]

    def _counter_columns(self, table: TableShape) -> str:
        if table.layout not in self.layouts:
            raise self._has_no_replace()
        return (
            f"\n\t{table.stub} CHAR(1) NOT NULL PRIMARY KEY"
            f",\n\tid BIGINT NOT NULL CHECK (id > 0 AND id <= {table.largest})"
        )

    def _has_no_replace(self) -> TicketArgumentError:
        return TicketArgumentError(
            f"layout='replace' needs MySQL or MariaDB, not {self.sqlalchemy.name}: use 'counter'"
        )

    def insert_row(self, name: str, layout: LayoutName, number: int, stub: str) -> Statement:
        """Give an empty ticket table its row."""
        values = f"({number}, '{STUB_VALUES[layout]}')"
        return self.statement(f"INSERT INTO {self.table(name)} (id, {stub}) VALUES {values}")

    @abstractmethod
    def comment_on(self, name: str, comment: str) -> list[Statement]:
        """Write a table's comment, unless ``CREATE TABLE`` contains it, as on SQLite."""

    def drop_table(self, name: str) -> Statement:
        """Drop a table if it exists."""
        return self.statement(f"DROP TABLE IF EXISTS {self.table(name)}")

    @abstractmethod
    def describe_table(self, name: str) -> Statement:
        """A row per column of the table ``:table``: name, whether unique, whether AUTO_INCREMENT, comment, type.

        Raises:
            TicketArgumentError: no table can have that name.
        """

    @abstractmethod
    def list_tables(self) -> Statement:
        """Rows of (name, comment) of the tables whose comment names this package."""

    def show_definition(self, name: str) -> Statement | None:
        """A quick statement whose second column is the table's definition; None if there is none."""
        return None

    def split_definition(self, text: str) -> tuple[str, int | None]:
        """Split a definition into its text without the next number, and the smallest next number; None for a counter."""
        return text, None

    def read_row(
        self, name: str, layout: LayoutName, stub: str, *, lock: bool = False
    ) -> Statement:
        """The number that the table's row holds: the largest ticket that it shows.

        Args:
            name: the sequence's name.
            layout: the layout of its table.
            stub: the name of the stub column.
            lock: whether to wait for other clients' pending commits.
        """
        where = f"{stub} = '{STUB_VALUES[layout]}'"
        end = " FOR UPDATE" if lock else ""
        return self.statement(f"SELECT id FROM {self.table(name)} WHERE {where}{end}")

    # -- drawing

    def keeps_counter(self) -> bool:
        """Whether the counter of the layout ``replace`` survives a restart, and follows explicit ids."""
        return True

    def replace_ticket(self, name: str, stride: int, offset: int, stub: str) -> Statement:
        """Flickr's statement. The ticket is in the OK packet, which is the cursor's ``lastrowid``."""
        raise self._has_no_replace()

    def replace_up_to(self, name: str, stride: int, offset: int, stub: str) -> Statement:
        """Draw the last ticket of a block, ``:span`` above the ticket of the previous statement."""
        raise self._has_no_replace()

    def advance_counter(self, name: str, stub: str, span: int | None = None) -> Statement:
        """Raise the counter row and return its new number, in one atomic step.

        Args:
            name: the sequence's name.
            stub: the name of its stub column.
            span: how far to raise it; None for a parameter ``:span``.
        """
        return self.statement(self._advance(name, "id + {}", span, stub) + " RETURNING id")

    def _advance(self, name: str, number: str, span: int | None, stub: str) -> str:
        new = number.format(self.bound("span") if span is None else span)
        where = f"{stub} = '{STUB_VALUES['counter']}'"
        return f"UPDATE {self.table(name)} SET id = {new} WHERE {where}"

    def raise_counter(self, name: str, number: int, stub: str) -> Statement:
        """Raise the counter row to a number; never lowers it."""
        where = f"{stub} = '{STUB_VALUES['counter']}' AND id < {number}"
        return self.statement(f"UPDATE {self.table(name)} SET id = {number} WHERE {where}")

    # -- clusters

    def cluster_variables(self) -> Statement | None:
        """Select the variables that show a cluster whose other nodes take writes; None if there are none."""
        return None

    def catch_up(self, cluster: Mapping[str, str]) -> Statement | None:
        """Make later statements of a connection see every commit that the server's cluster has agreed on."""
        return None

    # -- tables of SQLAlchemy's

    def table_options(self) -> dict[str, str]:
        """The dialect's keyword arguments of a `Table` that is created."""
        return {}

    def raise_and_show(
        self, table: str, column: str, number: int, where: Mapping[str, int | str]
    ) -> Statement | None:
        """Raise a number in one row, never lowering it; the driver's ``lastrowid`` is what the row holds then.

        Args:
            table: the table's name.
            column: the column of the number.
            number: the number.
            where: what identifies the row, by the names of columns.

        Returns:
            None if such a statement is answered with rows only.
        """
        return None

    @abstractmethod
    def upsert_largest(
        self, table: Table, rows: Sequence[Mapping[str, Any]], value: str, same: str
    ) -> Insert:
        """Insert rows, or raise the ``value`` of existing ones if their ``same`` is equal; never lowers a value.

        Args:
            table: a table with a primary key.
            rows: values by the names of its columns.
            value: the name of the column that is raised.
            same: the name of the column in which both must agree.
        """

    def utc_of_milliseconds(self, number: str) -> str:
        """SQL that converts milliseconds since 1970 to a time in UTC, whatever the session's zone.

        Args:
            number: SQL for the milliseconds.
        """
        return f"(TIMESTAMP '1970-01-01 00:00:00' + ({number}) * INTERVAL '1 millisecond')"

    # -- tables of an application

    def unique_columns(self, connection: Connection, table: str, schema: str | None) -> set[str]:
        """The columns whose values the database itself keeps unique, whatever a model says."""
        found = inspect(connection)
        keys = [found.get_pk_constraint(table, schema)["constrained_columns"]]
        keys += [key["column_names"] for key in found.get_unique_constraints(table, schema)]
        for index in found.get_indexes(table, schema):
            # of a part of the rows, or of a value's beginning
            is_partial = any(
                o.endswith(("_where", "_length")) for o in index.get("dialect_options", {})
            )
            if index["unique"] and not is_partial and not index.get("expressions"):
                keys.append([name or "" for name in index["column_names"]])
        return {key[0] for key in keys if len(key) == 1}

    def check_undoes_inserts(  # noqa: B027  # most databases do, for all tables
        self, connection: Connection, table: str, schema: str | None
    ) -> None:
        """Check that a failing INSERT of many rows leaves none of them.

        Raises:
            TicketArgumentError: the table keeps the rows before the failure.
        """

    def begin_insert(self, connection: Connection) -> None:  # noqa: B027  # most drivers do
        """Begin the transaction of an INSERT ... SELECT if the driver may not have begun one."""

    def inserted_rows(self, connection: Connection, result: CursorResult[Any]) -> int:
        """The number of rows of the INSERT that has just been executed."""
        return result.rowcount

    def row_counter(self) -> ColumnElement[int] | None:
        """An expression that numbers the rows of a SELECT from 1; None if only a window function can."""
        return None

    def failing(self, number: ColumnElement[int]) -> ColumnElement[int] | None:
        """An expression that makes the statement fail when it is evaluated, before a trigger or a rule sees the row.

        Args:
            number: the column with the row's number; a constant might be evaluated for other rows, too.

        Returns:
            None where each row that a statement inserts reaches the table and its keys.
        """
        return None

    def is_failing(self, error: BaseException) -> bool:
        """Whether a driver's error is that of `failing`."""
        return False

    def count_as_insert(self, connection: Connection, count: Select[Any]) -> int | None:
        """Count rows as an INSERT ... SELECT finds them; None if any SELECT finds the same ones.

        Args:
            connection: a connection in the INSERT's transaction.
            count: the SELECT of their number.
        """
        return None

    # -- tombstones

    def create_tombstone(self, name: str, comment: str) -> list[Statement]:
        """Create a tombstone where there is no table yet."""
        text = f"CREATE TABLE {self.table(name)} ({self._tombstone_columns()})"
        return [self.statement(text), *self.comment_on(name, comment)]

    def _tombstone_columns(self) -> str:
        number, stub = TOMBSTONE_COLUMNS
        return f"{number} BIGINT NOT NULL, {stub} CHAR(1) NOT NULL"

    def replace_by_tombstone(self, name: str, comment: str) -> list[Statement]:
        """Replace a ticket table, or another tombstone, with a tombstone."""
        return [self.drop_table(name), *self.create_tombstone(name, comment)]

    def open_table(self, table: TableShape) -> list[Statement]:
        """Replace a tombstone with a ticket table."""
        return [self.drop_table(table.name), *self.create_table(table)]

    def table_parts(self, name: str) -> Statement:
        """Select (kind, name) of the indexes and CHECKs that `alter_to_tombstone` removes, and the type of ``id``."""
        raise NotImplementedError

    def alter_to_tombstone(
        self, name: str, comment: str, stub: str, keys: Sequence[str], checks: Sequence[str]
    ) -> Statement:
        """Alter a ticket table into a tombstone in one atomic step, if `begin` is None.

        Args:
            name: the sequence's name.
            comment: the tombstone's comment.
            stub: the name of its stub column.
            keys: the names of the table's indexes.
            checks: the names of its CHECK constraints.
        """
        raise NotImplementedError

    # -- locks

    def lock_table(self, name: str, reads: str | None = None) -> Statement | None:
        """Wait for all clients of the table, and lock others out; None if `begin` does that.

        `set_up_session` limits the wait.

        Args:
            name: the sequence's name.
            reads: another table that is read under the lock, and that no client may write meanwhile.
        """
        return None

    def unlock_tables(self) -> Statement:
        """Release the lock of `lock_table`, if the end of a transaction does not."""
        raise NotImplementedError

    def queue(self, name: str, number: int) -> tuple[Statement, Statement]:
        """Join one of a table's queues, which waits for the clients that have joined it before; and leave it.

        `set_up_session` limits the wait. After that, the session is not in the queue, and this is no error. The end of
        a session leaves the queue, too.

        Args:
            name: the sequence's name.
            number: of the queue, below `queues`.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def transaction(self, cursor: DBAPICursor) -> Generator[None]:
        """A transaction, if the server supports it for changes of tables."""
        if self.begin is None:
            yield
            return
        cursor.execute(self.begin, ())
        try:
            yield
            cursor.execute("COMMIT", ())
        except BaseException:
            with contextlib.suppress(Exception):  # what is raised is what matters
                cursor.execute("ROLLBACK", ())
            raise

    @contextlib.contextmanager
    def exclusive(
        self, cursor: DBAPICursor, name: str, reads: str | None = None
    ) -> Generator[None]:
        """Hold the lock of `lock_table` on a connection in autocommit."""
        with self.transaction(cursor):
            lock = self.lock_table(name, reads)
            if lock is not None:
                cursor.execute(lock.text, lock.parameters())
            yield


def raised_on_conflict(
    insert: sqlite.Insert | postgresql.Insert, table: Table, value: str, same: str
) -> Insert:
    """`TicketDialect.upsert_largest` for databases with ``ON CONFLICT``."""
    old, new = table.c, insert.excluded
    return insert.on_conflict_do_update(
        index_elements=table.primary_key,
        set_={value: new[value]},
        where=and_(old[same] == new[same], old[value] < new[value]),
    )


def quoted_name(name: str, mark: str = '"') -> str:
    """A name in a GRANT.

    Raises:
        TicketArgumentError: it cannot be quoted.
    """
    if not name or "\\" in name or not name.isprintable():
        raise TicketArgumentError(f"{name!r} is not a valid name in a GRANT")
    return f"{mark}{name.replace(mark, 2 * mark)}{mark}"
