"""Connections to real servers that are killed at the k-th statement."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import psycopg
from pymysql.connections import Connection as MySQLConnection
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    _MySQL = MySQLConnection[Any]
else:
    _MySQL = MySQLConnection

When = Literal["before", "after"]


class Scissors:
    """Counts the statements of all its engines, and kills the connection of one of them.

    Args:
        at: which statement, counted from 1; 0 for none.
        when: before it is sent, or after it was carried out and before the answer is read.
    """

    def __init__(self, at: int = 0, when: When = "before") -> None:
        self._at, self._when = at, when
        self.count = 0
        self._opened: list[Any] = []

    def run(self, statement: Callable[[], Any], kill: Callable[[], None]) -> Any:
        """Send a statement, unless the connection is to be killed before it is sent."""
        self.count += 1
        if self.count == self._at and self._when == "before":
            kill()
        result = statement()
        if self.count == self._at and self._when == "after":
            kill()
            return statement()  # of a connection that is gone, like the answer
        return result

    def engine(self, url: URL) -> Engine:
        """An engine whose connections are cut by these scissors."""
        creator = {
            "mysql": self._mysql,
            "postgresql": self._postgresql,
            "sqlite": self._sqlite,
        }[url.get_backend_name()]

        def connect() -> Any:
            self._opened.append(creator(url))
            return self._opened[-1]

        return create_engine(url, poolclass=NullPool, creator=connect)

    def close(self) -> None:
        """Close what is left of connections that were killed while they were being opened."""
        for connection in self._opened:
            with contextlib.suppress(Exception):
                connection.close()

    def _mysql(self, url: URL) -> object:
        def connect(kind: type[_MySQL]) -> _MySQL:
            return kind(
                host=url.host,
                port=url.port or 0,
                user=url.username,
                password=url.password or "",
                database=url.database,
            )

        scissors = self

        class Cut(_MySQL):
            def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
                def kill() -> None:
                    thread = self.thread_id()  # type: ignore[no-untyped-call]  # the stubs lack it
                    with connect(_MySQL) as other, other.cursor() as cursor:
                        cursor.execute(f"KILL CONNECTION {thread}")

                sent = super().query
                return int(scissors.run(lambda: sent(sql, unbuffered), kill))

        return connect(Cut)

    def _postgresql(self, url: URL) -> object:
        conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        scissors = self

        class Cut(psycopg.Cursor[Any]):
            def execute(self, *args: Any, **kw: Any) -> Any:
                def kill() -> None:
                    with psycopg.connect(conninfo, autocommit=True) as other:
                        pid = self.connection.info.backend_pid
                        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

                sent = super().execute
                return scissors.run(lambda: sent(*args, **kw), kill)

        return psycopg.connect(conninfo, cursor_factory=Cut)

    def _sqlite(self, url: URL) -> object:
        scissors = self

        class Cut(sqlite3.Cursor):
            def execute(self, *args: Any) -> Any:
                sent = super().execute
                return scissors.run(lambda: sent(*args), self.connection.close)

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = Cut) -> Any:
                return super().cursor(factory)

        return sqlite3.connect(url.database or "", factory=Connection)
