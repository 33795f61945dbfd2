"""SQLite, whose server is a file."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, cast

from sqlalchemy import (
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    Insert,
    Table,
    bindparam,
    func,
)
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor

from .base import (
    ErrorKind,
    LayoutName,
    Statement,
    TableShape,
    TicketDialect,
    raised_on_conflict,
)


class SQLite(TicketDialect):
    """SQLite. Its errors are recognised by their texts, as they have names only from Python 3.11 on."""

    is_embedded = True
    has_read_timeout = True  # of a lock, the only wait
    integers_have_64_bits = True
    now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    begin = "BEGIN IMMEDIATE"
    failure_ends_transaction = False
    # a key may have been created with another way to end, ON CONFLICT REPLACE
    insert_prefixes = ("OR ABORT",)
    error_texts: ClassVar[Mapping[str, ErrorKind]] = {
        "database is locked": ErrorKind.LOCK_TIMEOUT,
        "database or disk is full": ErrorKind.DISK_FULL,
        "check constraint failed": ErrorKind.EXHAUSTED,
        "no such table": ErrorKind.TABLE_MISSING,
        "no such column": ErrorKind.SCHEMA_MISMATCH,
        "has no column named": ErrorKind.SCHEMA_MISMATCH,
        "readonly database": ErrorKind.READ_ONLY,
    }

    # -- connections

    @classmethod
    def is_in_memory(cls, url: URL) -> bool:
        return _file(url) is None

    def address(self, url: URL) -> Hashable | None:
        return _file(url)

    def set_connect_defaults(self, kw: dict[str, Any], timeout: float, lock_wait: float) -> None:
        """Set the wait for a lock, the only reason for an unresponsive file: half of it, as a draw waits twice."""
        kw.setdefault("timeout", min((timeout + lock_wait) / 2, (2**31 - 1) // 1000))

    def set_up_session(
        self, connection: DBAPIConnection, cursor: DBAPICursor, lock_wait: float
    ) -> None:
        if getattr(connection, "autocommit", None) is False:  # sqlite3 from Python 3.12 on
            setattr(connection, "autocommit", True)  # noqa: B010  # not of every driver

    def make_durable(self, cursor: DBAPICursor) -> None:
        """A power cut then rolls back no commit: SQLite's manual, PRAGMA synchronous."""
        cursor.execute("PRAGMA synchronous = EXTRA")

    # -- a ticket table, whose comment is kept in the text of its `CREATE TABLE`

    def create_table(self, table: TableShape) -> list[Statement]:
        columns = f"{self._counter_columns(table)}\n\t/* {table.comment} */\n"
        return [
            self.statement(f"CREATE TABLE {self.table(table.name)} ({columns})"),
            self.insert_row(table.name, table.layout, table.seed, table.stub),
        ]

    def comment_on(self, name: str, comment: str) -> list[Statement]:
        return []

    def describe_table(self, name: str) -> Statement:
        return self.statement(
            # whatever a column is declared as, it holds 64 bits
            "SELECT c.name, c.pk, 0, m.sql, 'bigint'"
            " FROM sqlite_master AS m, pragma_table_info(m.name) AS c"
            f" WHERE m.type = 'table' AND lower(m.name) = lower({self.bound('table')})"
        )

    def list_tables(self) -> Statement:
        return self.statement(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND instr(sql, 'sqla_tickets') > 0"
        )

    def read_row(
        self, name: str, layout: LayoutName, stub: str, *, lock: bool = False
    ) -> Statement:
        return super().read_row(name, layout, stub)

    # -- tables of SQLAlchemy's

    def upsert_largest(
        self, table: Table, rows: Sequence[Mapping[str, Any]], value: str, same: str
    ) -> Insert:
        from sqlalchemy.dialects import sqlite  # noqa: PLC0415  # takes long, and an engine has done it

        return raised_on_conflict(sqlite.insert(table).values(rows), table, value, same)

    def utc_of_milliseconds(self, number: str) -> str:
        # SQLAlchemy reads six digits of a second
        return f"(strftime('%Y-%m-%d %H:%M:%f', ({number}) / 1000.0, 'unixepoch') || '000')"

    # -- tables of an application

    def begin_insert(self, connection: Connection) -> None:
        """Begin the transaction, as the driver does not recognise an INSERT after a CTE."""
        pooled = connection.connection
        driver: Any = pooled.driver_connection
        commits = connection.dialect.detect_autocommit_setting(cast("Any", pooled.dbapi_connection))
        if not commits and not driver.in_transaction:
            connection.exec_driver_sql("BEGIN")

    def failing(self, number: ColumnElement[int]) -> ColumnElement[int]:
        """An expression that fails early, as a trigger may write rows elsewhere and skip them with ``RAISE(IGNORE)``."""
        least = bindparam("sqla_tickets_error", -(2**63), BigInteger, unique=True)
        return func.abs(least + number * 0)

    def is_failing(self, error: BaseException) -> bool:
        return "integer overflow" in str(error)

    def inserted_rows(self, connection: Connection, result: CursorResult[Any]) -> int:
        return int(connection.exec_driver_sql("SELECT changes()").scalar_one())

    # -- tombstones

    def create_tombstone(self, name: str, comment: str) -> list[Statement]:
        columns = f"{self._tombstone_columns()} /* {comment} */"
        return [self.statement(f"CREATE TABLE {self.table(name)} ({columns})")]


def _file(url: URL) -> str | None:
    """The file of a SQLite database, however its path is written; None for one in memory."""
    name = url.database or ""
    if name.startswith("file:"):
        if "mode=memory" in name or url.query.get("mode") == "memory":
            return None
        name = name.removeprefix("file:").partition("?")[0]
    return None if name in ("", ":memory:") else os.path.realpath(name)
