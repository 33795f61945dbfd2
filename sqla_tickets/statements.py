"""The statements about a ticket table, as SQLAlchemy elements compiled per dialect.

Print one to see what a server gets::

    from sqlalchemy.dialects import mysql
    print(CreateTicketTable("photos", stride=2, offset=1).compile(dialect=mysql.dialect()))

Names are always quoted. Why these statements, and none of the others that look as good, is told in
the documentation, "How a draw works": most of the others repeat ids.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import ClauseElement, Executable
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler

from .compiled import bound, literal, quoted
from .errors import TicketArgumentError
from .mark_statements import MARKS
from .note import LayoutName, Note

__all__ = [
    "AdvanceCounter",
    "CreateTicketTable",
    "DropTicketTable",
    "FindTicketTable",
    "LastTicket",
    "LockTicketTable",
    "NoteTicketTable",
    "ReplaceTicket",
    "ReplaceUpTo",
    "SeedTicketTable",
    "UnlockTables",
    "default_layout",
    "largest_ticket",
    "seed",
]

#: What stands in the column ``stub`` of each layout's row. Two values, so that a client which still
#: believes in the layout that a table had before finds no row, instead of moving the wrong number.
STUB: dict[LayoutName, str] = {"replace": "a", "counter": "c"}


def default_layout(dialect_name: str) -> LayoutName:
    """The layout of a table for which none is asked: Flickr's where the server can have it."""
    return "replace" if dialect_name in ("mysql", "mariadb") else "counter"


def largest_ticket(bits: int) -> int:
    """The largest ticket of a table: of unsigned 32 bits, or of the signed 64 that all servers have."""
    if bits not in (32, 64):
        raise TicketArgumentError(f"bits={bits!r}: a ticket table has 32 or 64 bits")
    return 2**32 - 1 if bits == 32 else 2**63 - 1


def seed(start: int, stride: int, offset: int) -> int:
    """The number that a new table's row begins with: no ticket after it is below ``start``.

    It is the server's last number below ``start``, or its first one, which is then never issued.
    """
    below = start - 1 - (start - 1 - offset) % stride
    return below if below > 0 else offset


class CreateTicketTable(ExecutableDDLElement):
    """``CREATE TABLE`` of one sequence on one server, on MySQL and MariaDB with its row.

    Args:
        name: of the sequence, and so of the table.
        layout: ``"replace"`` or ``"counter"``; None for the dialect's own (`default_layout`).
        stride: how many numbers apart two tickets of this server are.
        offset: the residue class of this server, 1 to ``stride``.
        start: no ticket is below it.
        bits: 64, or 32 for tickets up to 4,294,967,295.
        engine: the storage engine, on MySQL and MariaDB.

    Raises:
        TicketArgumentError: a number or a name that no table can have.
    """

    def __init__(
        self,
        name: str,
        *,
        layout: LayoutName | None = None,
        stride: int,
        offset: int,
        start: int = 1,
        bits: int = 64,
        engine: str = "InnoDB",
    ) -> None:
        self.largest = largest_ticket(bits)
        if not 1 <= start <= self.largest:
            raise TicketArgumentError(f"start={start!r}: a ticket is 1 to {self.largest}")
        if not re.fullmatch(r"\w+", engine):
            raise TicketArgumentError(f"engine={engine!r} is not the name of a storage engine")
        if layout not in (None, "replace", "counter"):
            raise TicketArgumentError(f"layout={layout!r}: it is 'replace' or 'counter'")
        self.name = _checked(name)
        self.layout: LayoutName | None = layout
        self.stride, self.offset, self.start = stride, offset, start
        self.bits, self.engine = bits, engine

    def note(self, dialect_name: str) -> Note:
        """What is written beside the number."""
        layout = self.layout or default_layout(dialect_name)
        return Note(layout, self.stride, self.offset, self.bits)

    @property
    def seed(self) -> int:
        """The number that the row begins with."""
        return seed(self.start, self.stride, self.offset)


class DropTicketTable(ExecutableDDLElement):
    """``DROP TABLE IF EXISTS`` of one sequence on one server."""

    def __init__(self, name: str) -> None:
        self.name = name


class NoteTicketTable(ExecutableDDLElement):
    """Write the note beside the number, where it is not part of ``CREATE TABLE`` (PostgreSQL)."""

    def __init__(self, name: str, note: Note) -> None:
        self.name, self.note = name, note


def _checked(name: str) -> str:
    """The name, unless SQLAlchemy would take a part of it for a parameter, quoted or not."""
    if "%(" in name:
        raise TicketArgumentError(f"{name!r}: the name of a sequence cannot contain '%('")
    if name.lower() == MARKS:
        raise TicketArgumentError(f"{name!r} is no sequence: ticket servers keep their marks in it")
    return name


class _Statement(Executable, ClauseElement):
    """A statement about the ticket table ``name``."""

    inherit_cache: bool | None = False

    def __init__(self, name: str) -> None:
        self.name = _checked(name)


class SeedTicketTable(_Statement):
    """Give an empty ticket table its row."""

    def __init__(self, name: str, layout: LayoutName, number: int) -> None:
        super().__init__(name)
        self.layout: LayoutName = layout
        self.number = number


class FindTicketTable(_Statement):
    """A row per column of the table: its name, whether it is unique, whether it counts, the note."""


class LastTicket(_Statement):
    """The number that the table's row holds: the largest ticket that it shows."""

    def __init__(self, name: str, layout: LayoutName) -> None:
        super().__init__(name)
        self.layout: LayoutName = layout


class ReplaceTicket(_Statement):
    """Flickr's statement. The ticket is in the OK packet, which is the cursor's ``lastrowid``.

    Stride and offset travel with the statement, so that no session variable has to be right: a
    ``SET_VAR`` hint on MySQL (manual, "Optimizer Hints"), ``SET STATEMENT`` on MariaDB.
    """

    def __init__(self, name: str, stride: int, offset: int) -> None:
        super().__init__(name)
        self.stride, self.offset = stride, offset


class ReplaceUpTo(ReplaceTicket):
    """The last ticket of a block, ``:span`` above the one that the statement before has drawn."""


class LockTicketTable(_Statement):
    """Keep every other client out while a block is drawn from Flickr's table.

    Args:
        name: of the sequence.
        reads: another table that is read meanwhile, and that nobody may write to.
    """

    def __init__(self, name: str, reads: str | None = None) -> None:
        super().__init__(name)
        self.reads = reads


class UnlockTables(_Statement):
    """The end of what `LockTicketTable` began."""


class AdvanceCounter(_Statement):
    """Raise the counter row by ``:span`` and learn where it stands now, in one atomic step.

    Args:
        name: of the sequence.
        span: how far, for a statement that has no parameter.
    """

    def __init__(self, name: str, span: int | None = None) -> None:
        super().__init__(name)
        self.span = span


# What the elements read as. The names of the functions are of no use to anybody.


def _counter_columns(element: CreateTicketTable) -> str:
    return (
        "\n\tstub CHAR(1) NOT NULL PRIMARY KEY"
        f",\n\tid BIGINT NOT NULL CHECK (id > 0 AND id <= {element.largest})"
    )


@compiles(CreateTicketTable)
def _(element: CreateTicketTable, compiler: DDLCompiler, **kw: Any) -> str:
    if element.note(compiler.dialect.name).layout != "counter":
        raise TicketArgumentError(
            f"layout='replace' needs MySQL or MariaDB, not {compiler.dialect.name}: use 'counter'"
        )
    return f"CREATE TABLE {quoted(compiler, element.name)} ({_counter_columns(element)}\n)"


@compiles(CreateTicketTable, "sqlite")
def _(element: CreateTicketTable, compiler: DDLCompiler, **kw: Any) -> str:
    note = element.note(compiler.dialect.name)
    if note.layout != "counter":
        raise TicketArgumentError(
            "layout='replace' needs MySQL or MariaDB, not sqlite: use 'counter'"
        )
    return f"CREATE TABLE {quoted(compiler, element.name)} ({_counter_columns(element)}\n\t/* {note} */\n)"


@compiles(CreateTicketTable, "mysql", "mariadb")
def _(element: CreateTicketTable, compiler: DDLCompiler, **kw: Any) -> str:
    note = element.note(compiler.dialect.name)
    number = "INT UNSIGNED" if element.bits == 32 else "BIGINT UNSIGNED"
    if note.layout == "replace":
        columns = (
            f"\n\tid {number} NOT NULL AUTO_INCREMENT,\n\tstub CHAR(1) NOT NULL DEFAULT ''"
            ",\n\tPRIMARY KEY (id),\n\tUNIQUE KEY stub (stub)"
        )
        options = f"ENGINE={element.engine} AUTO_INCREMENT={element.start}"
    else:
        columns = (
            f"\n\tstub CHAR(1) NOT NULL PRIMARY KEY,\n\tid {number} NOT NULL"
            f" CHECK (id > 0 AND id <= {element.largest})"
        )
        options = f"ENGINE={element.engine}"
    comment = literal(compiler, note)
    # With its row in one statement: an empty ticket table is one that has lost its number.
    return (
        f"CREATE TABLE {quoted(compiler, element.name)} ({columns}\n) {options} COMMENT={comment}"
        f" SELECT {element.seed} AS id, '{STUB[note.layout]}' AS stub"
    )


@compiles(DropTicketTable)
def _(element: DropTicketTable, compiler: DDLCompiler, **kw: Any) -> str:
    return f"DROP TABLE IF EXISTS {quoted(compiler, element.name)}"


@compiles(NoteTicketTable)
def _(element: NoteTicketTable, compiler: DDLCompiler, **kw: Any) -> str:
    note = literal(compiler, element.note)
    return f"COMMENT ON TABLE {quoted(compiler, element.name)} IS {note}"


@compiles(SeedTicketTable)
def _(element: SeedTicketTable, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        f"INSERT INTO {quoted(compiler, element.name)} (id, stub)"
        f" VALUES ({element.number}, '{STUB[element.layout]}')"
    )


@compiles(LastTicket)
def _(element: LastTicket, compiler: SQLCompiler, **kw: Any) -> str:
    return f"SELECT id FROM {quoted(compiler, element.name)} WHERE stub = '{STUB[element.layout]}'"


@compiles(FindTicketTable, "mysql", "mariadb")
def _(element: FindTicketTable, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        "SELECT c.COLUMN_NAME, c.COLUMN_KEY IN ('PRI', 'UNI'), LOCATE('auto_increment', c.EXTRA) > 0,"
        " t.TABLE_COMMENT"
        # Each is told the name: joined to each other, MariaDB opens every table there is.
        " FROM information_schema.TABLES AS t CROSS JOIN information_schema.COLUMNS AS c"
        f" WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = {bound(compiler, 'table')}"
        f" AND c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = {bound(compiler, 'table')}"
    )


@compiles(FindTicketTable, "sqlite")
def _(element: FindTicketTable, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        "SELECT c.name, c.pk, 0, m.sql FROM sqlite_master AS m, pragma_table_info(m.name) AS c"
        f" WHERE m.type = 'table' AND lower(m.name) = lower({bound(compiler, 'table')})"
    )


@compiles(FindTicketTable)
def _(element: FindTicketTable, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        "SELECT a.attname, EXISTS (SELECT 1 FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid"
        " AND i.indisunique AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum), a.attidentity <> '',"
        " pg_catalog.obj_description(c.oid, 'pg_class')"
        " FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid"
        " WHERE a.attnum > 0 AND NOT a.attisdropped AND pg_catalog.pg_table_is_visible(c.oid)"
        f" AND c.relname = {bound(compiler, 'table')}"
    )


def _replace(element: ReplaceTicket, compiler: SQLCompiler, values: str) -> str:
    pair = (("auto_increment_increment", element.stride), ("auto_increment_offset", element.offset))
    into = f"INTO {quoted(compiler, element.name)} {values}"
    if getattr(compiler.dialect, "is_mariadb", False):
        return f"SET STATEMENT {', '.join(f'{k}={v}' for k, v in pair)} FOR REPLACE {into}"
    return f"REPLACE /*+ {' '.join(f'SET_VAR({k}={v})' for k, v in pair)} */ {into}"


@compiles(ReplaceTicket, "mysql", "mariadb")
def _(element: ReplaceTicket, compiler: SQLCompiler, **kw: Any) -> str:
    return _replace(element, compiler, "(stub) VALUES ('a')")


@compiles(ReplaceUpTo, "mysql", "mariadb")
def _(element: ReplaceUpTo, compiler: SQLCompiler, **kw: Any) -> str:
    last = f"LAST_INSERT_ID() + {bound(compiler, 'span')}"
    return _replace(element, compiler, f"(id, stub) VALUES ({last}, 'a')")


@compiles(LockTicketTable, "mysql", "mariadb")
def _(element: LockTicketTable, compiler: SQLCompiler, **kw: Any) -> str:
    too = f", {quoted(compiler, element.reads)} READ" if element.reads else ""
    return f"LOCK TABLES {quoted(compiler, element.name)} WRITE{too}"


@compiles(UnlockTables, "mysql", "mariadb")
def _(element: UnlockTables, compiler: SQLCompiler, **kw: Any) -> str:
    return "UNLOCK TABLES"


def _advance(element: AdvanceCounter, compiler: SQLCompiler, number: str) -> str:
    span = bound(compiler, "span") if element.span is None else str(element.span)
    name = quoted(compiler, element.name)
    return f"UPDATE {name} SET id = {number.format(span)} WHERE stub = '{STUB['counter']}'"


@compiles(AdvanceCounter)
def _(element: AdvanceCounter, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{_advance(element, compiler, 'id + {}')} RETURNING id"


@compiles(AdvanceCounter, "mysql", "mariadb")
def _(element: AdvanceCounter, compiler: SQLCompiler, **kw: Any) -> str:
    return _advance(element, compiler, "LAST_INSERT_ID(id + {})")
