"""PyMySQL over a simulated network: ``create_engine("mysql+pymysql://host/db", module=PyMySQLModule(network))``.

Error classes, codes and texts are those of PyMySQL 1.2.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pymysql
from pymysql import err
from pymysql.constants import CLIENT
from typing_extensions import Self

from tests.simulation.models.expressions import Parameters, Value, Values
from tests.simulation.models.protocol import Login, Query, Result
from tests.simulation.runtime import AnswerTimeout, Channel, ConnectionLost, Network, ServerError

__all__ = ["PyMySQLConnection", "PyMySQLCursor", "PyMySQLModule"]

_LOST: Final = "Lost connection to MySQL server during query"


def _error_of(error: ServerError) -> Exception:
    code = int(error.code)
    default = err.InternalError if code < 1000 else err.OperationalError
    class_: type[Exception] = err.error_map.get(code, default)
    return class_(code, error.message)


class PyMySQLModule:
    """The module: what it does not have is PyMySQL's."""

    __name__ = "pymysql"

    def __init__(self, network: Network) -> None:
        self._network = network

    def connect(self, **options: Any) -> PyMySQLConnection:
        """Open a connection.

        Raises:
            pymysql.err.MySQLError: there is none.
        """
        return PyMySQLConnection(self._network, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(pymysql, name)


class PyMySQLConnection:
    """A connection.

    Args:
        network: by which it reaches its server.
        host: of the server.
        port: of the server.
        user: who the client is.
        database: which it uses.
        client_flag: PyMySQL's.
        autocommit: switched off, unless it is told otherwise; None for the server's own way.
        connect_timeout: in seconds.
        read_timeout: in seconds; None waits for ever.
        options: others, which make no difference here.

    Attributes:
        channel: to its server; None once it was closed, or lost.
    """

    def __init__(
        self,
        network: Network,
        *,
        host: str | None = None,
        port: int | None = None,
        user: str = "tickets",
        database: str | None = None,
        client_flag: int = 0,
        autocommit: bool | None = False,
        connect_timeout: float = 10,
        read_timeout: float | None = None,
        **options: object,
    ) -> None:
        self._read_timeout = read_timeout
        self._autocommit = True if autocommit is None else autocommit
        found_rows = bool(client_flag & CLIENT.FOUND_ROWS)
        multi_statements = bool(client_flag & CLIENT.MULTI_STATEMENTS)
        login = Login(user, database, found_rows, multi_statements, self._autocommit)
        where = f"Can't connect to MySQL server on {host or 'localhost'!r}"
        try:
            channel = network.connect(host or "localhost", port, login, connect_timeout)
        except ServerError as error:
            raise _error_of(error) from None
        except AnswerTimeout:
            raise err.OperationalError(2003, f"{where} (timed out)") from None
        except ConnectionLost:
            raise err.OperationalError(2003, f"{where} ([Errno 111] Connection refused)") from None
        self.channel: Channel | None = channel

    # -- what SQLAlchemy asks

    def character_set_name(self) -> str:
        """The character set of the connection."""
        return "utf8mb4"

    def get_autocommit(self) -> bool:
        """Whether each statement is a transaction."""
        return self._autocommit

    def autocommit(self, value: bool) -> None:
        """Switch autocommit on or off, if it is otherwise."""
        if value != self._autocommit:
            self.send(f"SET AUTOCOMMIT = {int(value)}")
            self._autocommit = value

    def ping(self, reconnect: bool = False) -> None:
        """Look whether the server answers."""
        self.send("SELECT 1")

    def commit(self) -> None:
        """COMMIT."""
        self.send("COMMIT")

    def rollback(self) -> None:
        """ROLLBACK."""
        self.send("ROLLBACK")

    def begin(self) -> None:
        """BEGIN."""
        self.send("BEGIN")

    def cursor(self, cursor: object = None) -> PyMySQLCursor:
        """A cursor."""
        return PyMySQLCursor(self)

    @property
    def open(self) -> bool:
        """Whether it was not closed, or lost."""
        return self.channel is not None

    def close(self) -> None:
        """Close it.

        Raises:
            pymysql.err.Error: it is closed.
        """
        if self.channel is None:
            raise err.Error("Already closed")
        self._end()

    def _end(self) -> None:
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()

    # -- statements

    def send(self, text: str, parameters: Parameters = ()) -> tuple[Result | ServerError, ...]:
        """Send a request, and wait for its answer.

        Raises:
            pymysql.err.MySQLError: the server's error, or there is no answer.
        """
        with self._errors() as channel:
            answer = channel.call(Query(text, parameters), self._read_timeout)
        assert isinstance(answer, tuple)
        return answer

    def send_insert(self, text: str, answers: int) -> Callable[[], int]:
        """Send so many statements that return no rows; returns what reads the number that the server generated.

        Raises:
            pymysql.err.MySQLError: the connection is lost.
        """
        with self._errors() as channel:
            channel.send(Query(text, ()))

        def read() -> int:
            with self._errors() as channel:
                answer = channel.answer(self._read_timeout)
            assert isinstance(answer, tuple)
            ticket = 0
            for result in answer:
                if isinstance(result, ServerError):
                    raise _error_of(result)
                assert result.rows is None
                assert not (ticket and result.insert_id)
                ticket = ticket or result.insert_id
            assert len(answer) == answers
            return ticket

        return read

    @contextmanager
    def _errors(self) -> Generator[Any]:
        """The channel, whose errors become the driver's; that of a world sends and answers in two steps."""
        if self.channel is None:
            raise err.InterfaceError(0, "")
        try:
            yield self.channel
        except ServerError as error:
            raise _error_of(error) from None
        except AnswerTimeout:
            self._end()
            raise err.OperationalError(2013, f"{_LOST} (timed out)") from None
        except ConnectionLost:
            self._end()
            raise err.OperationalError(2013, _LOST) from None


class PyMySQLCursor:
    """A cursor.

    Attributes:
        connection: its connection.
        lastrowid: the number in the OK packet; None after rows.
        rowcount: how many rows were changed, or are there.
        description: the names of the columns; None where there are none.
    """

    def __init__(self, connection: PyMySQLConnection) -> None:
        self.connection = connection
        self.lastrowid: int | None = None
        self.rowcount = -1
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.arraysize = 1
        self._more: tuple[Result | ServerError, ...] = ()
        self._rows: Sequence[Values] = ()
        self._at = 0

    def execute(self, query: str, args: Any = None) -> int:
        """Send a statement, or several, and take the first result."""
        parameters: Parameters = ()
        if args:
            parameters = dict(args) if isinstance(args, dict) else _as_tuple(args)
        self._more = self.connection.send(query, parameters)
        self._next()
        return self.rowcount

    def executemany(self, query: str, args: Iterable[Any]) -> int:
        """Send a statement once for each set of parameters."""
        rows = sum(self.execute(query, one) for one in args)
        self.rowcount = rows
        return rows

    def _next(self) -> None:
        result, self._more = self._more[0], self._more[1:]
        if isinstance(result, ServerError):
            raise _error_of(result)
        self.rowcount, self._at = result.affected, 0
        if result.rows is None:
            self.lastrowid, self.description, self._rows = result.insert_id, None, ()
        else:
            self.lastrowid, self._rows = None, result.rows
            self.description = tuple((name, *[None] * 6) for name in result.columns)

    def nextset(self) -> bool | None:
        """Take the next result; None where there is none."""
        if not self._more:
            return None
        self._next()
        return True

    def fetchone(self) -> Values | None:
        """The next row."""
        if self._at >= len(self._rows):
            return None
        self._at += 1
        return self._rows[self._at - 1]

    def fetchmany(self, size: int | None = None) -> Sequence[Values]:
        """The next rows."""
        rows = self._rows[self._at : self._at + (size or self.arraysize)]
        self._at += len(rows)
        return rows

    def fetchall(self) -> Sequence[Values]:
        """The rows that are left."""
        rows = self._rows[self._at :] if self._at else self._rows
        self._at = len(self._rows)
        return rows

    def close(self) -> None:
        """Close it."""
        self._more = ()

    def __iter__(self) -> Any:
        return iter(self.fetchall())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _as_tuple(args: Any) -> tuple[Value, ...]:
    return tuple(args) if isinstance(args, (list, tuple)) else (args,)
