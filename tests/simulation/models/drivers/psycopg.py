"""Psycopg over a simulated network: ``create_engine("postgresql+psycopg://host/db", module=PsycopgModule(network))``.

The engine needs ``use_native_hstore=False``: SQLAlchemy would look for a type on a connection of psycopg's own. Error
classes and texts are those of psycopg 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from typing_extensions import Self

from tests.simulation.models.expressions import Parameters, Values
from tests.simulation.models.protocol import Login, Query, Result
from tests.simulation.runtime import AnswerTimeout, Channel, ConnectionLost, Network, ServerError

__all__ = ["PsycopgConnection", "PsycopgCursor", "PsycopgModule"]

_LOST: Final = (
    "consuming input failed: server closed the connection unexpectedly\n"
    "\tThis probably means the server terminated abnormally\n\tbefore or while processing the request."
)


def _error_of(error: ServerError) -> psycopg.Error:
    return errors.lookup(str(error.code))(error.message)


class PsycopgModule:
    """The module: what it does not have is psycopg's."""

    __name__ = "psycopg"

    def __init__(self, network: Network) -> None:
        self._network = network

    def connect(self, *arguments: str, **options: Any) -> PsycopgConnection:
        """Open a connection.

        Raises:
            psycopg.Error: there is none.
        """
        return PsycopgConnection(self._network, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(psycopg, name)


class _Info:
    """What ``connection.info`` tells."""

    def __init__(self, connection: PsycopgConnection) -> None:
        self._connection = connection

    @property
    def transaction_status(self) -> TransactionStatus:
        return self._connection.status


class PsycopgConnection:
    """A connection.

    Args:
        network: by which it reaches its server.
        host: of the server.
        port: of the server.
        user: who the client is.
        dbname: which it uses.
        connect_timeout: in seconds; None waits for ever.
        autocommit: whether each statement is a transaction.
        options: others, which make no difference here.

    Attributes:
        autocommit: whether each statement is a transaction.
        isolation_level: is not looked at.
        status: of the transaction, as this side knows it.
        closed: whether it was closed, or lost.
        broken: whether it was lost.
        info: about it.
        channel: to its server.
    """

    def __init__(
        self,
        network: Network,
        *,
        host: str | None = None,
        port: int | None = None,
        user: str = "tickets",
        dbname: str | None = None,
        connect_timeout: float | None = None,
        autocommit: bool = False,
        **options: object,
    ) -> None:
        self.autocommit = autocommit
        self.isolation_level: object = None
        self.status = TransactionStatus.IDLE
        self.closed = self.broken = False
        self.info = _Info(self)
        where = f'connection failed: connection to server at "{host}", port {port or 5432} failed'
        login = Login(user, dbname)
        try:
            self.channel: Channel = network.connect(
                host or "localhost", port, login, connect_timeout
            )
        except ServerError as error:
            # libpq keeps the SQLSTATE back
            raise psycopg.OperationalError(f"{where}: FATAL:  {error.message}") from None
        except AnswerTimeout:
            raise errors.ConnectionTimeout("connection timeout expired") from None
        except ConnectionLost:
            raise psycopg.OperationalError(f"{where}: Connection refused") from None

    def add_notice_handler(self, handler: object) -> None:
        """There are no notices."""

    def cursor(self, *arguments: object, **options: object) -> PsycopgCursor:
        """A cursor."""
        return PsycopgCursor(self)

    def commit(self) -> None:
        """COMMIT, if there is something to commit."""
        if self.status is not TransactionStatus.IDLE:
            self.send("COMMIT")

    def rollback(self) -> None:
        """ROLLBACK, if there is something to take back."""
        if self.status is not TransactionStatus.IDLE:
            self.send("ROLLBACK")

    def close(self) -> None:
        """Close it; to do so twice does no harm."""
        if not self.closed:
            self.closed = True
            self.channel.close()

    def execute_in_transaction(self, text: str, parameters: Parameters) -> Result:
        """Send a statement, after a BEGIN where it needs one."""
        if not self.autocommit and self.status is TransactionStatus.IDLE:
            self.send("BEGIN")
        return self.send(text, parameters)

    def send(self, text: str, parameters: Parameters = ()) -> Result:
        """Send a statement, and wait for its answer.

        Raises:
            psycopg.Error: the server's error, or there is no answer.
        """
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        try:
            answer = self.channel.call(Query(text, parameters))
        except ServerError as error:
            if self.status is TransactionStatus.INTRANS:
                self.status = TransactionStatus.INERROR
            raise _error_of(error) from None
        except (ConnectionLost, AnswerTimeout):
            self.broken = True
            self.close()
            raise psycopg.OperationalError(_LOST) from None
        assert isinstance(answer, tuple)
        if text == "BEGIN":
            self.status = TransactionStatus.INTRANS
        elif text in ("COMMIT", "ROLLBACK"):
            self.status = TransactionStatus.IDLE
        (result,) = answer
        assert isinstance(result, Result)
        return result


class PsycopgCursor:
    """A cursor.

    Attributes:
        connection: its connection.
        rowcount: how many rows were changed, or are there.
        description: the names of the columns; None where there are none.
    """

    def __init__(self, connection: PsycopgConnection) -> None:
        self.connection = connection
        self.rowcount = -1
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.arraysize = 1
        self._rows: Sequence[Values] | None = None
        self._at = 0

    def execute(self, query: str, params: Any = None, **options: object) -> Self:
        """Send a statement."""
        parameters: Parameters = ()
        if params:
            parameters = dict(params) if isinstance(params, dict) else tuple(params)
        result = self.connection.execute_in_transaction(query, parameters)
        self.rowcount, self._rows, self._at = result.affected, result.rows, 0
        self.description = None
        if result.rows is not None:
            self.description = tuple((name, *[None] * 6) for name in result.columns)
        return self

    def executemany(self, query: str, params_seq: Iterable[Any]) -> None:
        """Send a statement once for each set of parameters."""
        rows = 0
        for params in params_seq:
            rows += self.execute(query, params).rowcount
        self.rowcount = rows

    def _result(self) -> Sequence[Values]:
        if self._rows is None:
            raise psycopg.ProgrammingError("the last operation didn't produce records")
        return self._rows

    def fetchone(self) -> Values | None:
        """The next row."""
        rows = self._result()
        if self._at >= len(rows):
            return None
        self._at += 1
        return rows[self._at - 1]

    def fetchmany(self, size: int | None = None) -> list[Values]:
        """The next rows."""
        rows = self._result()[self._at : self._at + (size or self.arraysize)]
        self._at += len(rows)
        return list(rows)

    def fetchall(self) -> list[Values]:
        """The rows that are left."""
        rows = self._result()[self._at :]
        self._at += len(rows)
        return list(rows)

    def nextset(self) -> bool | None:
        """There is one result only."""
        return None

    def close(self) -> None:
        """Close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
