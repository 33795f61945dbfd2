"""Engines of real servers that count their statements, and do something at one of them, such as kill."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import threading
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

Loss = Literal["connection", "process", "answer"]


#: Statements that leave nothing behind when their connection is gone.
_PASSING = re.compile(
    r"SELECT|SHOW|PRAGMA|(UN)?LOCK|BEGIN|ROLLBACK|SET (?!STATEMENT)", re.IGNORECASE
)


class StatementCounter:
    """Counts the statements of its engines, and those of them that change what is on a server.

    Of a transaction only its end does; and the statements between two changes are alike to a server
    whose client is killed at one of them.
    """

    def __init__(self) -> None:
        self.count = self.changes = 0
        self._in_transaction = False
        self._opened: list[Any] = []

    def run(self, text: str | bytes, send: Callable[[], Any], kill: Callable[[], None]) -> Any:
        """Send a statement; `kill` ends its connection on the server."""
        self.count += 1
        self.statement()
        said = text.decode() if isinstance(text, bytes) else text
        self._in_transaction |= said.startswith("BEGIN")
        if said.startswith(("COMMIT", "ROLLBACK")):
            self._in_transaction = False
        if self._in_transaction or _PASSING.match(said):
            return send()
        self.changes += 1
        return self.change(send, kill)

    def statement(self) -> None:
        """Called before each statement."""

    def change(self, send: Callable[[], Any], kill: Callable[[], None]) -> Any:
        """Send a statement that changes something."""
        return send()

    def engine(self, url: URL) -> Engine:
        """An engine whose statements are counted."""
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
                ssl_disabled=True,  # to load the certificates takes ten times as long as the rest
            )

        statements = self

        class Watched(_MySQL):
            def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
                def kill() -> None:
                    thread = self.thread_id()  # type: ignore[no-untyped-call]  # the stubs lack it
                    with connect(_MySQL) as other, other.cursor() as cursor:
                        cursor.execute(f"KILL CONNECTION {thread}")

                sent = super().query
                return int(statements.run(sql, lambda: sent(sql, unbuffered), kill))

        return connect(Watched)

    def _postgresql(self, url: URL) -> object:
        conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        statements = self

        class Watched(psycopg.Cursor[Any]):
            def execute(self, *args: Any, **kw: Any) -> Any:
                def kill() -> None:
                    with psycopg.connect(conninfo, autocommit=True) as other:
                        pid = self.connection.info.backend_pid
                        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

                sent = super().execute
                return statements.run(args[0], lambda: sent(*args, **kw), kill)

        return psycopg.connect(conninfo, cursor_factory=Watched)

    def _sqlite(self, url: URL) -> object:
        statements = self

        class Watched(sqlite3.Cursor):
            def execute(self, *args: Any) -> Any:
                sent = super().execute
                return statements.run(args[0], lambda: sent(*args), self.connection.close)

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = Watched) -> Any:
                return super().cursor(factory)

        return sqlite3.connect(url.database or "", factory=Connection)


class KillAtChange(StatementCounter):
    """Kills the connection, or all of them, at one change.

    Args:
        at: which one, counted from 1.
        lost: the connection, before the change is sent; with it all others, as when the process
            dies; or the answer only, after the change was carried out.
    """

    def __init__(self, at: int, lost: Loss = "process") -> None:
        super().__init__()
        self._at, self._lost = at, lost

    def change(self, send: Callable[[], Any], kill: Callable[[], None]) -> Any:
        if self.changes == self._at and self._lost == "answer":
            send()
        if self.changes == self._at or (self.changes > self._at and self._lost == "process"):
            kill()
        return send()


class BetweenStatements(StatementCounter):
    """Lets something happen before each statement, and goes on after a while if it has to wait.

    Args:
        what: is told the number of the statement, from 1.
        at: the only statement before which it happens; None for each.
    """

    def __init__(self, what: Callable[[int], None], at: int | None = None) -> None:
        super().__init__()
        self._what, self._at = what, at
        self._threads: list[threading.Thread] = []

    def statement(self) -> None:
        if self._at not in (None, self.count):
            return
        thread = threading.Thread(target=self._what, args=(self.count,))
        self._threads.append(thread)
        thread.start()
        thread.join(0.1)

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        super().close()
