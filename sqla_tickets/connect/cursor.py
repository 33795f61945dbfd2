"""The cursor of a connection to a ticket server: it never mistakes an old answer for a new one."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final, NoReturn, Protocol

from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.util import await_only

from ..errors import OutOfStep
from .ok_packets import Insert, Pollable, insert_over_socket
from .sockets import CLOSED, Poll, Wire, buffer_of

log = logging.getLogger("sqla_tickets.connect.connection")

#: The drivers whose connections have ``query()`` and ``insert_id()``, as MySQL's C library has. Their cursors call both,
#: after up to nine calls more.
_LIKE_C_LIBRARY: Final = {"pymysql", "MySQLdb"}
#: Those whose ``query()`` is awaited.
_AWAITED: Final = {"asyncmy", "aiomysql"}


class DrawCursor(DBAPICursor, Protocol):
    """The type of a connection's cursor: what the package uses of a driver's cursor, and one call more.

    Attributes:
        request: the draw that sends its statements with the cursor; None for other statements.
        may_hold_lock: whether an error may leave a lock of the session behind.
    """

    request: Pollable | None
    may_hold_lock: bool

    def insert(self, statement: str, *parameters: Any, answers: int = 1) -> int:
        """Send a statement that returns no rows, or a packet of them.

        Args:
            statement: the statements.
            parameters: of the driver's ``execute``.
            answers: how many statements there are.

        Returns:
            The number that the server generated, 0 for none.

        Raises:
            OutOfStep: it generated two, or there are more answers.
        """
        ...


class TicketCursor:
    """A driver's cursor, as statements of a ticket server use it.

    Args:
        dbapi: the driver's connection.
    """

    # no `__getattr__`: with one, Python looks up every attribute the slow way
    __slots__ = (
        "_cursor",
        "_execute",
        "close",
        "fetchall",
        "may_hold_lock",
        "nextset",
        "request",
    )

    def __init__(self, dbapi: DBAPIConnection) -> None:
        self._cursor = cursor = dbapi.cursor()
        self._execute, self.fetchall, self.close = cursor.execute, cursor.fetchall, cursor.close
        self.request: Pollable | None = None
        self.may_hold_lock = False
        with suppress(AttributeError):  # the async cursors of SQLAlchemy's first 2.0 releases
            self.nextset = cursor.nextset

    def execute(self, *arguments: Any) -> object:
        """Send a statement."""
        if self.request is not None:
            self.request.be_polled()
        return self._execute(*arguments)

    def insert(self, statement: str, *parameters: Any, answers: int = 1) -> int:
        """The same as `DrawCursor.insert`."""
        self.execute(statement, *parameters)
        number: int = self._cursor.lastrowid or 0
        for _ in range(answers - 1):
            self.nextset()
            other = self._cursor.lastrowid
            if other and number:
                raise OutOfStep("expected one number")
            number = number or other or 0
        if answers > 1 and self.nextset():
            raise OutOfStep("expected no more answers")
        return number

    @property
    def lastrowid(self) -> Any:
        """The driver's ``lastrowid``."""
        return self._cursor.lastrowid

    @property
    def rowcount(self) -> int:
        """The driver's ``rowcount``."""
        return self._cursor.rowcount

    @property
    def description(self) -> Any:
        """The driver's ``description``."""
        return self._cursor.description


class CheckedCursor(TicketCursor):
    """A cursor that sends nothing while there is unread data.

    A repeated or late answer would pass for the next statement's answer. So a number of one sequence would become a
    ticket of another one.

    Args:
        dbapi: the driver's connection.
        wire: the connection's socket.
        poll: shows what has arrived on it.
        name: the server's name, for the log.
    """

    __slots__ = ("_buffer", "_has_read_ahead", "_insert", "_inserts_by_driver", "_name", "_poll")

    def __init__(self, dbapi: DBAPIConnection, wire: Wire, poll: Poll, name: str = "") -> None:
        super().__init__(dbapi)
        self._poll, self._buffer, self._name = poll, buffer_of(dbapi), name
        over_socket = insert_over_socket(dbapi, wire, poll)
        #: Whether an `insert` leaves it to the driver to read, which may read ahead.
        self._inserts_by_driver = over_socket is None
        #: Whether the driver may have read ahead.
        self._has_read_ahead = True
        self._insert = over_socket or _insert_of(dbapi)

    def execute(self, *arguments: Any) -> object:
        """Send a statement, unless there is unread data.

        Raises:
            OutOfStep: there is unread data; nothing was sent.
        """
        events = self._poll(0)
        if events or self._buffer():
            self._refuse(events)
        self._has_read_ahead = True
        return super().execute(*arguments)

    def insert(self, statement: str, *parameters: Any, answers: int = 1) -> int:
        """The same as `DrawCursor.insert`, unless there is unread data.

        Raises:
            OutOfStep: there is unread data, and nothing was sent; or the server generated two numbers.
        """
        if self._insert is None or parameters or (answers > 1 and self._inserts_by_driver):
            return super().insert(statement, *parameters, answers=answers)
        events = self._poll(0)
        if events or (self._has_read_ahead and self._buffer()):
            self._refuse(events)
        self._has_read_ahead = self._inserts_by_driver
        return self._insert(statement, self.request, answers)

    def _refuse(self, events: list[tuple[int, int]]) -> NoReturn:
        if events and events[0][1] & CLOSED:
            raise OutOfStep("the idle connection was closed")
        log.warning(
            "%s: closed a connection that had unread data before a statement was sent. Check whether a proxy repeats "
            "or delays answers: a late answer could be taken for the next one",
            self._name,
        )
        raise OutOfStep("unread data on an idle connection")


def _insert_of(dbapi: DBAPIConnection) -> Insert | None:
    """The same as `DrawCursor.insert` without the driver's cursor; None if only its cursor sends statements."""
    driver: Any = getattr(dbapi, "driver_connection", dbapi)
    modules = {base.__module__.partition(".")[0] for base in type(driver).__mro__}

    def insert(statement: str, request: Pollable | None, answers: int) -> int:
        if request is not None:
            request.be_polled()
        driver.query(statement.encode(driver.encoding))
        return int(driver.insert_id())

    def insert_async(statement: str, request: Pollable | None, answers: int) -> int:
        if request is not None:
            request.be_polled()
        await_only(driver.query(statement))
        return int(driver.insert_id())

    if modules & _LIKE_C_LIBRARY:
        return insert
    return insert_async if modules & _AWAITED else None
