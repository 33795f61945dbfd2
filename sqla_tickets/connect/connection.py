"""One connection to a ticket server: a driver's connection with its cursor, its socket and what is known of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import cast

from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import PoolProxiedConnection

from ..concurrency import OwnerMark, threading
from .cursor import CheckedCursor, DrawCursor, TicketCursor
from .identity import Identity
from .sockets import wire_of


class Connection:
    """A driver's connection and one cursor of it.

    Attributes:
        cursor: the cursor that every statement is sent with.
        dbapi: the driver's connection.
        lease: the checkout of a shared connection from the engine's pool; else None.
        is_owner_process: its byte 0 is 0 in a process that did not open the connection.
        lent_at: when work that is no draw has taken it, by ``time.monotonic()``; 0 if it is idle, or a draw uses it.
        known_tables: the sequences whose tables were inspected through this connection. Another
            connection may lead to another server: behind a proxy, after a change of DNS.
        reused: whether it was idle before, and so may be broken.
        is_unused: whether no draw has taken it since `Connections.close_unused` saw it idle.
        is_closed: whether it is closed.
        under_way: a lock that a draw over it holds until it ends.
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
        "lent_at",
        "reused",
        "under_way",
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
        self.reused = self.is_unused = self.is_closed = False
        self.known_tables: set[str] = set()
        self.lease = lease
        self.under_way = threading.Lock()
        self.identity: Identity | None = None
        self.generation, self.lent_at = 0, 0.0
        self._wire = wire = wire_of(dbapi)
        poll = None if wire is None else wire.poller()
        cursor = TicketCursor(dbapi)
        if wire is not None and poll is not None:
            cursor = CheckedCursor(dbapi, wire, poll, server)
        self.cursor = cast("DrawCursor", cursor)

    @property
    def can_be_cancelled(self) -> bool:
        """Whether it has a socket that its driver shows."""
        return self._wire is not None

    @property
    def has_answer(self) -> bool:
        """Whether there is data that the driver has not read yet."""
        # a function of its own: no two threads may use one at the same time
        wire = self._wire
        try:
            poll = None if wire is None else wire.poller()
            return poll is not None and bool(poll(0))
        except (OSError, ValueError):  # its draw has just closed it
            return True

    def cancel(self) -> None:
        """Shut the socket down, from any thread: a driver that waits for an answer raises at once."""
        wire = self._wire
        if wire is not None:
            wire.shut_down()

    @contextmanager
    def cut_after(self, seconds: float) -> Generator[None]:
        """A context that shuts the socket down if it takes longer, as the driver may wait for ever."""
        end = threading.Timer(seconds, self.cancel)
        end.daemon = True
        is_timed = False
        try:
            with suppress(RuntimeError):  # at exit, or at a limit, no thread can be started
                end.start()
                is_timed = True
            yield
        finally:
            end.cancel()
            if is_timed:
                end.join()  # the system may reuse the number of the socket

    def let_go_of_socket(self) -> None:
        """Keep the socket open no longer than the driver does."""
        wire, self._wire = getattr(self, "_wire", None), None
        if wire is not None:
            wire.close()

    __del__ = let_go_of_socket
