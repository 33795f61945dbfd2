"""Every statement that a ticket server is sent, as SQLAlchemy elements compiled per dialect.

Print one to see what a server gets::

    from sqlalchemy.dialects import mysql
    print(CreateTicketTable("photos", stride=2, offset=1).compile(dialect=mysql.dialect()))

Names are always quoted. Why these statements, and none of the others that look as good, is told in
the documentation, "How a draw works": most of the others repeat ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, ClauseElement, Dialect, Executable, String, bindparam
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler

from .errors import TicketArgumentError
from .note import LayoutName, Note

__all__ = [
    "MARKS",
    "AdvanceCounter",
    "CreateMarks",
    "CreateTicketTable",
    "DeleteMarks",
    "DropTicketTable",
    "FindTicketTable",
    "LastTicket",
    "LockTicketTable",
    "Mark",
    "NoteMarks",
    "NoteTicketTable",
    "ReadMarks",
    "ReplaceTicket",
    "ReplaceUpTo",
    "SeedTicketTable",
    "UnlockTables",
    "WriteMarks",
    "default_layout",
    "largest_ticket",
    "seed",
]

#: What stands in the column ``stub`` of each layout's row. Two values, so that a client which still
#: believes in the layout that a table had before finds no row, instead of moving the wrong number.
STUB: dict[LayoutName, str] = {"replace": "a", "counter": "c"}

#: The table in which a ticket server keeps the high-water marks of its peers.
MARKS: Final = "sqla_tickets_marks"


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
    """Keep every other client out while a block is drawn from Flickr's table."""


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


class Mark(NamedTuple):
    """No ticket of one residue class of a sequence may be issued that is ``number`` or below.

    Attributes:
        sequence: its name.
        stride: of the pool that wrote it: with another one, an offset is another residue class.
        offset: of the server that it is about.
        token: of the sequence's present life. It had another one before it was dropped, and what is
            written late with that one counts no more.
        number: the largest ticket that is known to have been issued, or raised to.
    """

    sequence: str
    stride: int
    offset: int
    token: int
    number: int


class CreateMarks(ExecutableDDLElement):
    """``CREATE TABLE`` of the marks that a ticket server keeps of its peers."""


class NoteMarks(ExecutableDDLElement):
    """Say beside the marks what they are, where it is not part of ``CREATE TABLE`` (PostgreSQL)."""


class _MarksStatement(Executable, ClauseElement):
    """A statement about the marks."""

    inherit_cache: bool | None = False


class ReadMarks(_MarksStatement):
    """Rows of (sequence, offset, token, number) of one stride.

    Args:
        stride: of the pool that asks.
        count: of how many sequences, ``:sequence_0`` and so on.
    """

    def __init__(self, stride: int, count: int = 1) -> None:
        self.stride, self.count = stride, count


class WriteMarks(_MarksStatement):
    """Raise marks, or write them where there are none; none is ever lowered.

    Args:
        marks: whose sequences are the parameters ``:sequence_0`` and so on.
    """

    def __init__(self, marks: Sequence[Mark]) -> None:
        self.marks = list(marks)


class DeleteMarks(_MarksStatement):
    """Forget the marks of ``:sequence``."""


# What the elements read as. The names of the functions are of no use to anybody.


def _name(compiler: DDLCompiler | SQLCompiler, name: str) -> str:
    return compiler.preparer.quote_identifier(name)


def _text(compiler: SQLCompiler, text: str) -> str:
    return compiler.render_literal_value(text, String())


def _bind(compiler: SQLCompiler, name: str) -> str:
    type_ = BigInteger() if name == "span" else String()
    return str(compiler.process(bindparam(name, type_=type_)))


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
    return f"CREATE TABLE {_name(compiler, element.name)} ({_counter_columns(element)}\n)"


@compiles(CreateTicketTable, "sqlite")
def _(element: CreateTicketTable, compiler: DDLCompiler, **kw: Any) -> str:
    note = element.note(compiler.dialect.name)
    if note.layout != "counter":
        raise TicketArgumentError(
            "layout='replace' needs MySQL or MariaDB, not sqlite: use 'counter'"
        )
    return f"CREATE TABLE {_name(compiler, element.name)} ({_counter_columns(element)}\n\t/* {note} */\n)"


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
    comment = _text(compiler.sql_compiler, str(note))
    # With its row in one statement: an empty ticket table is one that has lost its number.
    return (
        f"CREATE TABLE {_name(compiler, element.name)} ({columns}\n) {options} COMMENT={comment}"
        f" SELECT {element.seed} AS id, '{STUB[note.layout]}' AS stub"
    )


@compiles(DropTicketTable)
def _(element: DropTicketTable, compiler: DDLCompiler, **kw: Any) -> str:
    return f"DROP TABLE IF EXISTS {_name(compiler, element.name)}"


@compiles(NoteTicketTable)
def _(element: NoteTicketTable, compiler: DDLCompiler, **kw: Any) -> str:
    note = _text(compiler.sql_compiler, str(element.note))
    return f"COMMENT ON TABLE {_name(compiler, element.name)} IS {note}"


@compiles(SeedTicketTable)
def _(element: SeedTicketTable, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        f"INSERT INTO {_name(compiler, element.name)} (id, stub)"
        f" VALUES ({element.number}, '{STUB[element.layout]}')"
    )


@compiles(LastTicket)
def _(element: LastTicket, compiler: SQLCompiler, **kw: Any) -> str:
    return f"SELECT id FROM {_name(compiler, element.name)} WHERE stub = '{STUB[element.layout]}'"


@compiles(FindTicketTable, "mysql", "mariadb")
def _(element: FindTicketTable, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        "SELECT c.COLUMN_NAME, c.COLUMN_KEY IN ('PRI', 'UNI'), LOCATE('auto_increment', c.EXTRA) > 0,"
        " t.TABLE_COMMENT"
        # Each is told the name: joined to each other, MariaDB opens every table there is.
        " FROM information_schema.TABLES AS t CROSS JOIN information_schema.COLUMNS AS c"
        f" WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = {_bind(compiler, 'table')}"
        f" AND c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = {_bind(compiler, 'table')}"
    )


@compiles(FindTicketTable, "sqlite")
def _(element: FindTicketTable, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        "SELECT c.name, c.pk, 0, m.sql FROM sqlite_master AS m, pragma_table_info(m.name) AS c"
        f" WHERE m.type = 'table' AND lower(m.name) = lower({_bind(compiler, 'table')})"
    )


@compiles(FindTicketTable)
def _(element: FindTicketTable, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        "SELECT a.attname, EXISTS (SELECT 1 FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid"
        " AND i.indisunique AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum), a.attidentity <> '',"
        " pg_catalog.obj_description(c.oid, 'pg_class')"
        " FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid"
        " WHERE a.attnum > 0 AND NOT a.attisdropped AND pg_catalog.pg_table_is_visible(c.oid)"
        f" AND c.relname = {_bind(compiler, 'table')}"
    )


def _replace(element: ReplaceTicket, compiler: SQLCompiler, values: str) -> str:
    pair = (("auto_increment_increment", element.stride), ("auto_increment_offset", element.offset))
    into = f"INTO {_name(compiler, element.name)} {values}"
    if getattr(compiler.dialect, "is_mariadb", False):
        return f"SET STATEMENT {', '.join(f'{k}={v}' for k, v in pair)} FOR REPLACE {into}"
    return f"REPLACE /*+ {' '.join(f'SET_VAR({k}={v})' for k, v in pair)} */ {into}"


@compiles(ReplaceTicket, "mysql", "mariadb")
def _(element: ReplaceTicket, compiler: SQLCompiler, **kw: Any) -> str:
    return _replace(element, compiler, "(stub) VALUES ('a')")


@compiles(ReplaceUpTo, "mysql", "mariadb")
def _(element: ReplaceUpTo, compiler: SQLCompiler, **kw: Any) -> str:
    last = f"LAST_INSERT_ID() + {_bind(compiler, 'span')}"
    return _replace(element, compiler, f"(id, stub) VALUES ({last}, 'a')")


@compiles(LockTicketTable, "mysql", "mariadb")
def _(element: LockTicketTable, compiler: SQLCompiler, **kw: Any) -> str:
    return f"LOCK TABLES {_name(compiler, element.name)} WRITE"


@compiles(UnlockTables, "mysql", "mariadb")
def _(element: UnlockTables, compiler: SQLCompiler, **kw: Any) -> str:
    return "UNLOCK TABLES"


def _advance(element: AdvanceCounter, compiler: SQLCompiler, number: str) -> str:
    span = _bind(compiler, "span") if element.span is None else str(element.span)
    name = _name(compiler, element.name)
    return f"UPDATE {name} SET id = {number.format(span)} WHERE stub = '{STUB['counter']}'"


@compiles(AdvanceCounter)
def _(element: AdvanceCounter, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{_advance(element, compiler, 'id + {}')} RETURNING id"


@compiles(AdvanceCounter, "mysql", "mariadb")
def _(element: AdvanceCounter, compiler: SQLCompiler, **kw: Any) -> str:
    return _advance(element, compiler, "LAST_INSERT_ID(id + {})")


_ABOUT_MARKS = "sqla_tickets: how far the other ticket servers have issued their tickets"


def _marks_columns(compiler: DDLCompiler, name_type: str, number_type: str) -> str:
    offset = _name(compiler, "offset")
    return (
        f"\n\tsequence {name_type} NOT NULL,\n\tstride INTEGER NOT NULL,\n\t{offset} INTEGER NOT NULL"
        f",\n\ttoken BIGINT NOT NULL,\n\tmark {number_type} NOT NULL"
        f",\n\tPRIMARY KEY (sequence, stride, {offset})"
    )


@compiles(CreateMarks)
def _(element: CreateMarks, compiler: DDLCompiler, **kw: Any) -> str:
    columns = _marks_columns(compiler, "VARCHAR(255)", "BIGINT")
    return f"CREATE TABLE {_name(compiler, MARKS)} ({columns}\n)"


@compiles(CreateMarks, "sqlite")
def _(element: CreateMarks, compiler: DDLCompiler, **kw: Any) -> str:
    columns = _marks_columns(compiler, "VARCHAR(255)", "BIGINT")
    return f"CREATE TABLE {_name(compiler, MARKS)} ({columns}\n\t/* {_ABOUT_MARKS} */\n)"


@compiles(CreateMarks, "mysql", "mariadb")
def _(element: CreateMarks, compiler: DDLCompiler, **kw: Any) -> str:
    exact = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    columns = _marks_columns(compiler, exact, "BIGINT UNSIGNED")
    return f"CREATE TABLE {_name(compiler, MARKS)} ({columns}\n) ENGINE=InnoDB COMMENT='{_ABOUT_MARKS}'"


@compiles(NoteMarks)
def _(element: NoteMarks, compiler: DDLCompiler, **kw: Any) -> str:
    return f"COMMENT ON TABLE {_name(compiler, MARKS)} IS '{_ABOUT_MARKS}'"


@compiles(ReadMarks)
def _(element: ReadMarks, compiler: SQLCompiler, **kw: Any) -> str:
    names = ", ".join(_bind(compiler, f"sequence_{n}") for n in range(element.count))
    return (
        f"SELECT sequence, {_name(compiler, 'offset')}, token, mark FROM {_name(compiler, MARKS)}"
        f" WHERE stride = {element.stride} AND sequence IN ({names})"
    )


@compiles(DeleteMarks)
def _(element: DeleteMarks, compiler: SQLCompiler, **kw: Any) -> str:
    return f"DELETE FROM {_name(compiler, MARKS)} WHERE sequence = {_bind(compiler, 'sequence')}"


def _insert_marks(element: WriteMarks, compiler: SQLCompiler, alias: str) -> str:
    rows = ", ".join(
        f"({_bind(compiler, f'sequence_{n}')}, {m.stride}, {m.offset}, {m.token}, {m.number})"
        for n, m in enumerate(element.marks)
    )
    columns = f"(sequence, stride, {_name(compiler, 'offset')}, token, mark)"
    return f"INSERT INTO {_name(compiler, MARKS)}{alias} {columns} VALUES {rows}"


@compiles(WriteMarks)
def _(element: WriteMarks, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        f"{_insert_marks(element, compiler, ' AS old')}"
        f" ON CONFLICT (sequence, stride, {_name(compiler, 'offset')}) DO UPDATE"
        " SET mark = excluded.mark WHERE old.token = excluded.token AND old.mark < excluded.mark"
    )


@compiles(WriteMarks, "mysql", "mariadb")
def _(element: WriteMarks, compiler: SQLCompiler, **kw: Any) -> str:
    dialect, old = compiler.dialect, _name(compiler, MARKS)
    version = dialect.server_version_info or (9,)
    if getattr(dialect, "is_mariadb", False) or tuple(version) < (8, 0, 19):
        alias, token, mark = "", "VALUES(token)", "VALUES(mark)"
    else:  # where VALUES() is deprecated
        alias, token, mark = " AS new", "new.token", "new.mark"
    return (
        f"{_insert_marks(element, compiler, '')}{alias} ON DUPLICATE KEY UPDATE"
        f" mark = IF({old}.token = {token}, GREATEST({old}.mark, {mark}), {old}.mark)"
    )


class Compiled:
    """A statement as text for a driver's cursor, and its parameters in the driver's own form."""

    def __init__(self, element: ClauseElement, dialect: Dialect) -> None:
        compiled = element.compile(dialect=dialect)
        self.text = str(compiled)
        self._positions: Sequence[str] | None = None
        if isinstance(compiled, SQLCompiler) and compiled.positional:
            self._positions = compiled.positiontup or ()

    def parameters(self, **values: int | str) -> tuple[int | str, ...] | dict[str, int | str]:
        """``values`` as a tuple or a dict; always one of them, as ``%%`` stays doubled without."""
        if self._positions is None:
            return values
        return tuple(values[name] for name in self._positions)

    def alone(self) -> tuple[Any, ...]:
        """What ``cursor.execute()`` takes, the quickest, of a statement without parameters.

        A driver that is handed none at all does not look into the text for their places.
        """
        return (self.text, self.parameters()) if "%" in self.text else (self.text,)
