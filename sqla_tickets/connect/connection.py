"""One connection to a ticket server: a driver's connection, and a cursor that never mistakes an old answer for a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, cast

from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.pool import PoolProxiedConnection

from ..concurrency import OwnerMark
from ..errors import OutOfStep
from .identity import Identity
from .sockets import CLOSED, Poll, Wire, buffer_of, wire_of

log = logging.getLogger(__name__)


class _Cursor:
    """A driver's cursor that sends nothing while there is unread data.

    A repeated or late answer would pass for the next statement's answer. So a number of one sequence would become a
    ticket of another one.

    Args:
        cursor: the driver's.
        poll: shows what has arrived on the connection's socket.
        buffer: shows whether the driver has read more than it has returned.
        name: the server's name, for the log.
    """

    # no `__getattr__`: with one, Python looks up every attribute the slow way
    __slots__ = ("_buffer", "_cursor", "_execute", "_name", "_poll", "close", "fetchall", "nextset")

    def __init__(
        self, cursor: DBAPICursor, poll: Poll, buffer: Callable[[], object], name: str
    ) -> None:
        self._name = name
        self._cursor, self._buffer, self._poll = cursor, buffer, poll
        self._execute, self.fetchall, self.close = cursor.execute, cursor.fetchall, cursor.close
        with suppress(AttributeError):  # the async cursors of SQLAlchemy's first 2.0 releases
            self.nextset = cursor.nextset

    def execute(self, *arguments: Any) -> object:
        """Send a statement, unless there is unread data.

        Raises:
            OutOfStep: there is unread data; nothing was sent.
        """
        events = self._poll(0)
        if events or self._buffer():
            self._refuse(bool(events and events[0][1] & CLOSED))
        return self._execute(*arguments)

    def _refuse(self, is_closed: bool) -> NoReturn:
        if is_closed:
            raise OutOfStep("the idle connection was closed")
        log.warning(
            "%s: closed a connection that had unread data before a statement was sent. Check whether a proxy repeats "
            "or delays answers: a late answer could be taken for the next one",
            self._name,
        )
        raise OutOfStep("unread data on an idle connection")

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


class Connection:
    """A driver's connection and one cursor of it.

    Attributes:
        cursor: the cursor that every statement is sent with.
        dbapi: the driver's connection.
        lease: the checkout of a shared connection from the engine's pool; else None.
        is_owner_process: its byte 0 is 0 in a process that did not open the connection.
        known_tables: the sequences whose tables were inspected through this connection. Another
            connection may lead to another server: behind a proxy, after a change of DNS.
        reused: whether it was idle before, and so may be broken.
        is_unused: whether no draw has taken it since `Connections.close_unused` saw it idle.
        is_closed: whether it is closed.
        begun: the logical timestamp of its opening, or of the start of the background call that opened it.
        identity: the server that it leads to; None if unknown.
        generation: the server's generation at the last check; 0 before the first.
    """

    #: The least patience in seconds.
    patience: float = 0.0

    __slots__ = (
        "__weakref__",
        "_wire",
        "begun",
        "cursor",
        "dbapi",
        "generation",
        "identity",
        "is_closed",
        "is_owner_process",
        "is_unused",
        "known_tables",
        "lease",
        "reused",
    )

    def __init__(
        self,
        dbapi: DBAPIConnection,
        lease: PoolProxiedConnection | None,
        begun: int,
        owner: OwnerMark,
        server: str = "",
    ) -> None:
        self.dbapi, self.begun, self.is_owner_process = dbapi, begun, owner
        self.cursor: DBAPICursor = dbapi.cursor()
        self.reused = self.is_unused = self.is_closed = False
        self.known_tables: set[str] = set()
        self.lease = lease
        self.identity: Identity | None = None
        self.generation = 0
        self._wire: Wire | None = wire_of(dbapi)
        poll = None if self._wire is None else self._wire.poller()
        if poll is not None:
            checked = _Cursor(self.cursor, poll, buffer_of(dbapi), server)
            self.cursor = cast("DBAPICursor", checked)

    @property
    def can_be_cancelled(self) -> bool:
        """Whether it has a socket that its driver shows."""
        return self._wire is not None

    @property
    def has_answer(self) -> bool:
        """Whether there is data that the driver has not read yet."""
        # a function of its own: no two threads may use one at the same time
        poll = None if self._wire is None else self._wire.poller()
        return poll is not None and bool(poll(0))

    def cancel(self) -> None:
        """Shut the socket down, from any thread: a driver that waits for an answer raises at once."""
        if self._wire is not None:
            self._wire.shut_down()

    def let_go_of_socket(self) -> None:
        """Keep the socket open no longer than the driver does."""
        wire, self._wire = getattr(self, "_wire", None), None
        if wire is not None:
            wire.close()

    __del__ = let_go_of_socket
