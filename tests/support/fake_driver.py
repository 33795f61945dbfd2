"""Ticket servers on files of SQLite whose driver fails as it is told to, at any point of a draw."""

from __future__ import annotations

import contextlib
import enum
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

__all__ = ["Gate", "Health", "Moment", "Server", "gated"]

Moment = Literal["before", "after"]


class Health(enum.IntEnum):
    """What a server does with whatever it is sent."""

    WELL = 0
    #: It refuses connections and has closed those it had.
    DOWN = 1
    #: It issues the ticket, and its answer gets lost.
    LOSES_ANSWERS = 2
    READ_ONLY = 3
    LOCKED = 4
    #: It gives no answer within the driver's time-out.
    FROZEN = 5


_ERRORS: Final[dict[Health, Exception]] = {
    Health.DOWN: sqlite3.OperationalError("the server has gone away"),
    Health.READ_ONLY: sqlite3.OperationalError("attempt to write a readonly database"),
    Health.LOCKED: sqlite3.OperationalError("database is locked"),
    Health.FROZEN: TimeoutError("timed out"),
}
_here = threading.local()
C = TypeVar("C", bound=sqlite3.Connection)


class Gate:
    """Where a draw stops until it is told to go on: before its ticket is issued, or after that.

    Attributes:
        server: at which it has stopped; None while it has not.
    """

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.server: Server | None = None
        self.reached, self.open = threading.Event(), threading.Event()

    def pass_through(self, server: Server) -> None:
        """Stop here, the first time."""
        if not self.reached.is_set():
            self.server = server
            self.reached.set()
            self.open.wait()


@contextlib.contextmanager
def gated(gate: Gate) -> Iterator[None]:
    """Stop this thread's next draw at a gate."""
    _here.gate = gate
    try:
        yield
    finally:
        del _here.gate


def _stop(moment: Moment, server: Server) -> None:
    gate: Gate | None = getattr(_here, "gate", None)
    if gate is not None and gate.moment == moment:
        gate.pass_through(server)


class Server:
    """One ticket server.

    Attributes:
        health: how it is now, as this process is told.
    """

    def __init__(self, file: Path) -> None:
        self._file, self.health = file, Health.WELL
        self._own = self._open(sqlite3.Connection)

    def fail(self) -> None:
        """Raise what a driver does, unless the server is well."""
        if self.health in _ERRORS:
            raise _ERRORS[self.health]

    def engine(self) -> Engine:
        """What a pool reaches it by."""
        return create_engine("sqlite://", creator=self._connect, poolclass=NullPool)

    def _connect(self) -> _Connection:
        if self.health in (Health.DOWN, Health.FROZEN):
            self.fail()
        connection = self._open(_Connection)
        connection.server = self
        return connection

    def _open(self, kind: type[C]) -> C:
        connection = sqlite3.connect(self._file, factory=kind, check_same_thread=False)
        cursor = sqlite3.Cursor(connection)
        cursor.execute("PRAGMA synchronous = OFF")
        cursor.execute("PRAGMA journal_mode = MEMORY")
        cursor.close()
        return connection

    def close(self) -> None:
        """Close what looks into it."""
        self._own.close()

    def last(self, sequence: str) -> int:
        """The last ticket that it has issued."""
        return self._run(f"SELECT id FROM {sequence}")

    def set_back(self, sequence: str, last: int) -> None:
        """What a restored backup does."""
        self._run(f"UPDATE {sequence} SET id = {last} RETURNING id")

    def draw_as_a_stranger(self, sequence: str, stride: int) -> int:
        """One ticket for a client in another language."""
        return self._run(f"UPDATE {sequence} SET id = id + {stride} RETURNING id")

    def _run(self, statement: str) -> int:
        with self._own:
            ((value,),) = self._own.execute(statement).fetchall()
            return int(value)


class _Connection(sqlite3.Connection):
    server: Server

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_Cursor)


class _Cursor(sqlite3.Cursor):
    _draws = False

    @property
    def _server(self) -> Server:
        connection = self.connection
        assert isinstance(connection, _Connection)
        return connection.server

    def execute(self, statement: str, parameters: Any = ()) -> _Cursor:
        self._server.fail()
        self._draws = statement.startswith("UPDATE")
        if self._draws:
            _stop("before", self._server)
            self._server.fail()
        super().execute(statement, parameters)
        if self._draws and self._server.health is Health.LOSES_ANSWERS:
            super().fetchall()
            raise sqlite3.OperationalError("the connection was lost")
        return self

    def fetchall(self) -> list[Any]:
        rows = super().fetchall()
        if self._draws:
            _stop("after", self._server)
            self._server.fail()
        return rows
