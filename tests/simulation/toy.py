"""The simplest model of a server: SQLite in memory, one statement at a time, behind the network.

It stands in for the models of real servers where a test is about the world. It has the ticket table of one
row, every commit is durable, and no statement waits for another one.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import URL
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine.interfaces import DBAPIConnection

from sqla_tickets import dialects
from sqla_tickets.dialects import ErrorKind, Statement
from sqla_tickets.dialects.sqlite import SQLite

from .network import Channel, Network
from .runtime import AnswerTimeout, ConnectionLost, Runtime, ServerError, Session

__all__ = ["ToyServer", "register"]

IDENTITY = "SELECT @@identity"


class Answer(NamedTuple):
    """The answer to one statement."""

    rows: list[tuple[Any, ...]]
    names: list[str] | None
    affected: int


class ToyServer:
    """A server whose data are one SQLite database."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name, self._runtime = name, runtime
        self._data = self._open()
        self._started = runtime.now()
        self.is_read_only = False
        self.sessions = 0

    @staticmethod
    def _open() -> sqlite3.Connection:
        return sqlite3.connect(":memory:", isolation_level=None)

    def connect(self, request: object, hang_up: Callable[[], None]) -> Session:
        self.sessions += 1
        return ToySession(self)

    def run(self, statement: str, parameters: Sequence[Any]) -> Answer:
        """Do one statement."""
        if statement == IDENTITY:
            return Answer([(self.name, self._started, None, "")], ["id", "since", "c", "v"], 1)
        if self.is_read_only and not statement.startswith(("SELECT", "PRAGMA")):
            raise ServerError(8, "attempt to write a readonly database")
        try:
            cursor = self._data.execute(statement, parameters)
            names = [column[0] for column in cursor.description or ()] or None
            return Answer(cursor.fetchall(), names, cursor.rowcount)
        except sqlite3.Error as error:
            raise ServerError(1, str(error)) from None

    def stop(self, *, is_crash: bool) -> None:
        self.sessions = 0

    def start(self) -> None:
        self._started = self._runtime.now()

    def image(self) -> bytes:
        """A copy of its data."""
        return "\n".join(self._data.iterdump()).encode()

    def restore(self, image: object) -> None:
        assert isinstance(image, bytes)
        self._data = self._open()
        self._data.executescript(image.decode())


class ToySession:
    """One connection."""

    def __init__(self, server: ToyServer) -> None:
        self._server = server

    def handle(self, request: object) -> object:
        assert isinstance(request, tuple)
        return self._server.run(*request)

    def close(self) -> None:
        self._server.sessions -= 1


class Error(Exception):
    """Of the driver."""


class OperationalError(Error):
    """Of the server, or of the connection."""


class Cursor:
    """A cursor of PEP 249."""

    lastrowid = 0
    arraysize = 1

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answer = Answer([], None, -1)

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        names = self._answer.names
        return None if names is None else [(name, *6 * [None]) for name in names]

    @property
    def rowcount(self) -> int:
        return self._answer.affected

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self._answer = self._connection.ask((statement, tuple(parameters)))

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows, self._answer = self._answer.rows, self._answer._replace(rows=[])
        return rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._answer.rows.pop(0) if self._answer.rows else None

    def close(self) -> None:
        pass


class Connection:
    """A connection of PEP 249."""

    def __init__(self, channel: Channel, timeout: float) -> None:
        self.channel, self._timeout = channel, timeout

    def ask(self, request: object) -> Answer:
        """Send a statement, and wait for its answer."""
        try:
            answer = self.channel.call(request, self._timeout)
        except ServerError as error:
            raise OperationalError(error.message) from None
        except ConnectionLost as error:
            raise OperationalError("the connection was lost") from error
        except AnswerTimeout:
            raise OperationalError("timed out") from None
        assert isinstance(answer, Answer)
        return answer

    def cursor(self) -> Cursor:
        return Cursor(self)

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        pass

    def close(self) -> None:
        self.channel.close()


class Driver:
    """A module of PEP 249."""

    paramstyle = "qmark"
    apilevel, threadsafety = "2.0", 1
    sqlite_version_info = sqlite3.sqlite_version_info
    Error, OperationalError, DatabaseError = Error, OperationalError, Error
    IntegrityError = ProgrammingError = InterfaceError = DataError = Error
    InternalError = NotSupportedError = Error
    Warning = Warning
    network: Network

    def connect(self, host: str, timeout: float = 2.0, **_: object) -> Connection:
        try:
            channel = self.network.connect(host, None, None, timeout)
        except ServerError as error:
            raise OperationalError(error.message) from None
        except ConnectionLost as error:
            raise OperationalError(f"the connection was lost: {error}") from None
        except AnswerTimeout:
            raise OperationalError("timed out") from None
        return Connection(channel, timeout)


DRIVER = Driver()


class ToyDialect(SQLiteDialect):
    """SQLAlchemy's dialect."""

    name = driver = "toy"
    default_paramstyle = "qmark"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        return DRIVER

    def create_connect_args(self, url: URL) -> Any:
        return (), {"host": url.host}

    def on_connect(self) -> None:
        return None

    def set_isolation_level(self, dbapi_connection: DBAPIConnection, level: Any) -> None:
        pass

    def get_isolation_level(self, dbapi_connection: DBAPIConnection) -> Any:
        return "AUTOCOMMIT"

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        return "the connection was lost" in str(e)


class ToyTickets(SQLite):
    """The package's dialect."""

    is_embedded = False
    error_texts: ClassVar[Mapping[str, ErrorKind]] = {
        **SQLite.error_texts,
        "the connection was lost": ErrorKind.DISCONNECTED,
        "timed out": ErrorKind.TIMEOUT,
        "too many connections": ErrorKind.TOO_MANY_CONNECTIONS,
    }

    @classmethod
    def is_in_memory(cls, url: URL) -> bool:
        return False

    def address(self, url: URL) -> tuple[str | None]:
        return (url.host,)

    def set_connect_defaults(self, kw: dict[str, Any], timeout: float, lock_wait: float) -> None:
        kw.setdefault("timeout", timeout + lock_wait)

    def identity(self) -> Statement | None:
        return self.statement(IDENTITY)


def register() -> None:
    """Make the dialect known to SQLAlchemy and to the package."""
    registry.register("toy", __name__, "ToyDialect")
    with contextlib.suppress(KeyError):
        dialects._OWN["toy"] = ToyTickets  # no entry point: it is not installed
