"""The statements of migrations: a tombstone comes, a tombstone goes, a number is raised.

Elements as those in ``statements``, which has all that a drawing client sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ClauseElement, Executable
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler

from .compiled import literal, quoted
from .note import LayoutName, Tombstone
from .statements import STUB, CreateTicketTable

__all__ = [
    "BuryTicketTable",
    "CreateTombstone",
    "ListTicketTables",
    "LockForMigration",
    "NoteTombstone",
    "OpenTicketTable",
    "RaiseCounter",
    "SeedTombstone",
    "TicketTableParts",
]

#: What a ticket table's columns are called in a tombstone: statements that name the old ones fail.
_NUMBER, _STUB = "high_water", "was_stub"


class _Alteration(ExecutableDDLElement):
    """A statement that leaves the tombstone ``tombstone`` behind under the name ``name``."""

    def __init__(self, name: str, tombstone: Tombstone) -> None:
        self.name, self.tombstone = name, tombstone


class CreateTombstone(_Alteration):
    """``CREATE TABLE`` of a tombstone where there is no table yet."""


class NoteTombstone(_Alteration):
    """Write another text on a tombstone (not on SQLite, which has no comments)."""


class BuryTicketTable(_Alteration):
    """Make a tombstone of a ticket table, on MySQL and MariaDB, in one atomic step.

    Args:
        name: of the sequence.
        tombstone: what is to be read on it.
        keys: the names of the table's indexes.
        checks: the names of its CHECK constraints.
    """

    def __init__(
        self, name: str, tombstone: Tombstone, keys: Sequence[str], checks: Sequence[str]
    ) -> None:
        super().__init__(name, tombstone)
        self.keys, self.checks = keys, checks


class OpenTicketTable(ExecutableDDLElement):
    """Make a ticket table of a tombstone, on MySQL and MariaDB, in one atomic step."""

    def __init__(self, element: CreateTicketTable) -> None:
        self.element = element


class SeedTombstone(Executable, ClauseElement):
    """Give a tombstone the one row that the ticket table is to begin with."""

    inherit_cache = False

    def __init__(self, name: str, layout: LayoutName, number: int) -> None:
        self.name, self.number = name, number
        self.layout: LayoutName = layout


class RaiseCounter(Executable, ClauseElement):
    """Raise the counter row to a number; a row that is above it stays."""

    inherit_cache = False

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number


class ListTicketTables(Executable, ClauseElement):
    """Rows of (name, note) of the tables that have one."""

    inherit_cache = False


class LockForMigration(Executable, ClauseElement):
    """Wait for every client that uses the table, and keep all others out (PostgreSQL)."""

    inherit_cache = False

    def __init__(self, name: str) -> None:
        self.name = name


class TicketTableParts(Executable, ClauseElement):
    """Rows of (kind, name): the table's indexes, its CHECK constraints, the type of ``id``."""

    inherit_cache = False

    def __init__(self, name: str) -> None:
        self.name = name


def _key(compiler: DDLCompiler, key: str) -> str:
    return "DROP PRIMARY KEY" if key == "PRIMARY" else f"DROP KEY {quoted(compiler, key)}"


@compiles(CreateTombstone)
def _(element: CreateTombstone, compiler: DDLCompiler, **kw: Any) -> str:
    columns = f"{_NUMBER} BIGINT NOT NULL, {_STUB} CHAR(1) NOT NULL"
    return f"CREATE TABLE {quoted(compiler, element.name)} ({columns})"


@compiles(CreateTombstone, "sqlite")
def _(element: CreateTombstone, compiler: DDLCompiler, **kw: Any) -> str:
    columns = f"{_NUMBER} BIGINT NOT NULL, {_STUB} CHAR(1) NOT NULL"
    return f"CREATE TABLE {quoted(compiler, element.name)} ({columns} /* {element.tombstone} */)"


@compiles(CreateTombstone, "mysql", "mariadb")
def _(element: CreateTombstone, compiler: DDLCompiler, **kw: Any) -> str:
    return (
        f"CREATE TABLE {quoted(compiler, element.name)} ({_NUMBER} BIGINT UNSIGNED NOT NULL PRIMARY KEY,"
        f" {_STUB} CHAR(1) NOT NULL DEFAULT '') COMMENT={literal(compiler, element.tombstone)}"
    )


@compiles(NoteTombstone)
def _(element: NoteTombstone, compiler: DDLCompiler, **kw: Any) -> str:
    text = literal(compiler, element.tombstone)
    return f"COMMENT ON TABLE {quoted(compiler, element.name)} IS {text}"


@compiles(NoteTombstone, "mysql", "mariadb")
def _(element: NoteTombstone, compiler: DDLCompiler, **kw: Any) -> str:
    text = literal(compiler, element.tombstone)
    return f"ALTER TABLE {quoted(compiler, element.name)} COMMENT={text}"


@compiles(BuryTicketTable, "mysql", "mariadb")
def _(element: BuryTicketTable, compiler: DDLCompiler, **kw: Any) -> str:
    parts = [_key(compiler, key) for key in element.keys]
    parts += [f"DROP CHECK {quoted(compiler, check)}" for check in element.checks]
    parts += [
        f"CHANGE id {_NUMBER} BIGINT UNSIGNED NOT NULL",
        f"CHANGE stub {_STUB} CHAR(1) NOT NULL DEFAULT ''",
        f"ADD PRIMARY KEY ({_NUMBER})",
        f"COMMENT={literal(compiler, element.tombstone)}",
    ]
    return f"ALTER TABLE {quoted(compiler, element.name)} {', '.join(parts)}"


@compiles(OpenTicketTable, "mysql", "mariadb")
def _(element: OpenTicketTable, compiler: DDLCompiler, **kw: Any) -> str:
    table = element.element
    note = table.note(compiler.dialect.name)
    number = f"CHANGE {_NUMBER} id {'INT' if table.bits == 32 else 'BIGINT'} UNSIGNED NOT NULL"
    stub = f"CHANGE {_STUB} stub CHAR(1) NOT NULL"
    if note.layout == "replace":
        parts = [
            f"{number} AUTO_INCREMENT",
            f"{stub} DEFAULT ''",
            "ADD PRIMARY KEY (id)",
            "ADD UNIQUE KEY stub (stub)",
            f"AUTO_INCREMENT={table.start}",
        ]
    else:
        check = f"CHECK (id > 0 AND id <= {table.largest})"
        parts = [f"{number} {check}", stub, "ADD PRIMARY KEY (stub)"]
    parts += [f"ENGINE={table.engine}", f"COMMENT={literal(compiler, note)}"]
    name = quoted(compiler, table.name)
    return f"ALTER TABLE {name} DROP PRIMARY KEY, {', '.join(parts)}"


@compiles(SeedTombstone)
def _(element: SeedTombstone, compiler: SQLCompiler, **kw: Any) -> str:
    values = f"({element.number}, '{STUB[element.layout]}')"
    return f"INSERT INTO {quoted(compiler, element.name)} ({_NUMBER}, {_STUB}) VALUES {values}"


@compiles(RaiseCounter)
def _(element: RaiseCounter, compiler: SQLCompiler, **kw: Any) -> str:
    name, stub = quoted(compiler, element.name), STUB["counter"]
    return (
        f"UPDATE {name} SET id = {element.number} WHERE stub = '{stub}' AND id < {element.number}"
    )


@compiles(LockForMigration)
def _(element: LockForMigration, compiler: SQLCompiler, **kw: Any) -> str:
    return f"LOCK TABLE {quoted(compiler, element.name)} IN ACCESS EXCLUSIVE MODE"


@compiles(TicketTableParts, "mysql", "mariadb")
def _(element: TicketTableParts, compiler: SQLCompiler, **kw: Any) -> str:
    table = literal(compiler, element.name)
    where = f"WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = {table}"
    return (
        f"SELECT DISTINCT 'key', INDEX_NAME FROM information_schema.STATISTICS {where}"
        " UNION ALL SELECT 'check', CONSTRAINT_NAME FROM information_schema.TABLE_CONSTRAINTS"
        f" {where} AND CONSTRAINT_TYPE = 'CHECK'"
        f" UNION ALL SELECT 'type', COLUMN_TYPE FROM information_schema.COLUMNS {where}"
        " AND COLUMN_NAME = 'id'"
    )


@compiles(ListTicketTables)
def _(element: ListTicketTables, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        "SELECT c.relname, pg_catalog.obj_description(c.oid, 'pg_class')"
        " FROM pg_catalog.pg_class AS c"
        " WHERE c.relkind = 'r' AND pg_catalog.pg_table_is_visible(c.oid)"
        " AND POSITION('sqla_tickets' IN pg_catalog.obj_description(c.oid, 'pg_class')) > 0"
    )


@compiles(ListTicketTables, "sqlite")
def _(element: ListTicketTables, compiler: SQLCompiler, **kw: Any) -> str:
    return "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND instr(sql, 'sqla_tickets') > 0"


@compiles(ListTicketTables, "mysql", "mariadb")
def _(element: ListTicketTables, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        "SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = DATABASE() AND LOCATE('sqla_tickets', TABLE_COMMENT) > 0"
    )
