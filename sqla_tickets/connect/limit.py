"""The connection limit: draws wait for a new connection, or in a queue for another draw's.

A server lets in a hundred connections or two, for all its clients. Hundreds of tasks that draw at once do not
open one each: the rest of them queue, and a draw takes a millisecond.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from sqlalchemy.util import await_only

from ..concurrency import WeakRegistry, in_background, in_time, threading, time, within
from ..errors import TicketServerError
from .connection import Connection
from .timeouts import CONNECT_TIMING


class Pending(Protocol):
    """Something that a caller waits for: an answer, a pending connect, a connection from the queue."""

    @property
    def patience(self) -> float:
        """Seconds that it is given at least."""
        ...

    @property
    def can_be_cancelled(self) -> bool:
        """Whether `cancel` can end this wait, and doing so helps."""
        ...

    @property
    def has_answer(self) -> bool:
        """Whether what is waited for has come."""
        ...

    def cancel(self) -> None:
        """Release the caller, which goes on without it; called by any thread."""
        ...


class Waiter(Protocol):
    """A request for a connection, which can be cancelled."""

    @property
    def cancelled(self) -> object:
        """Why it was cancelled; None while it waits."""
        ...

    @property
    def deadline(self) -> float:
        """When it has waited for long enough, by ``time.monotonic()``."""
        ...

    @property
    def is_server_down(self) -> bool:
        """Whether connections are known not to come back."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether the draws that have a connection get no answer."""
        ...

    def wait_on(self, pending: Pending, /) -> None:
        """Wait for this from now on."""
        ...


class _Wait:
    """The wait of one draw for a connection; any thread may end it.

    Args:
        in_a_task: whether a task of an event loop waits, and not a thread.

    Attributes:
        is_wanted: whether its draw has not gone on yet, with a connection or without one.
    """

    #: Seconds that it is given at least.
    patience: float = CONNECT_TIMING.several_round_trips_seconds

    def __init__(self, *, in_a_task: bool) -> None:
        self._over = asyncio.Event() if in_a_task else threading.Event()
        self._lock = threading.Lock()
        self.is_wanted = True
        self._connection: Connection | None = None

    def cancel(self) -> None:
        """Release the waiting draw, without a connection."""
        self._over.set()

    def withdraw(self) -> Connection | None:
        """Wait no longer; returns what has been given."""
        with self._lock:
            self.is_wanted = False
            connection, self._connection = self._connection, None
            return connection


class ConnectionRequest(_Wait):
    """A place in the queue for a connection.

    Args:
        waiter: the waiting draw.
        in_a_task: whether a task of an event loop waits, and not a thread.
    """

    def __init__(self, waiter: Waiter, *, in_a_task: bool) -> None:
        super().__init__(in_a_task=in_a_task)
        self._waiter = waiter

    @property
    def can_be_cancelled(self) -> bool:
        """Whether the draws before it get no answer, so that another server may be better."""
        return self._waiter.is_stuck

    @property
    def has_answer(self) -> bool:
        """Whether it has come."""
        return self._over.is_set()

    @property
    def is_waited_for(self) -> bool:
        """Whether it has not come, and is wanted."""
        return self.is_wanted and not self._over.is_set()

    def deliver(self, connection: Connection | None) -> bool:
        """Give the waiting draw a connection, or None for it to open one.

        Returns:
            False when no draw waits any more.
        """
        with self._lock:
            if not self.is_waited_for:
                return False
            self._connection = connection
            self._over.set()
            return True

    def wait(self, seconds: float) -> bool:
        """Wait for no longer than that; whether the request was answered or cancelled."""
        if not isinstance(self._over, asyncio.Event):
            return self._over.wait(seconds)
        try:
            await_only(in_time(self._over.wait(), seconds))
        except TimeoutError:
            return False
        return True


class PendingConnect(_Wait):
    """A connection that is being opened in the background, and that its draw can abandon.

    No driver shows the socket of a connection that is not open yet, and a frozen server accepts one without
    a word. So a background thread opens it, and the draw waits for it as for an answer. When it comes too late
    it is kept for another draw.

    Args:
        open_one: opens it.
        keep: gets it when no draw waits for it any more.
        ended: is called when the attempt has ended, even if no draw waits for it any more.
        name: the server's name.
        seconds: after which an attempt in an event loop ends, as not every driver does by itself.
        in_a_task: whether the driver is asynchronous.

    Attributes:
        since: when it began, by ``time.monotonic()``.
    """

    can_be_cancelled: bool = True

    def __init__(
        self,
        open_one: Callable[[], Connection],
        keep: Callable[[Connection], None],
        ended: Callable[[PendingConnect], None],
        *,
        name: str,
        seconds: float,
        in_a_task: bool,
    ) -> None:
        super().__init__(in_a_task=in_a_task)
        self._open_one, self._keep, self._ended = open_one, keep, ended
        self._name, self._seconds, self._in_a_task = name, seconds, in_a_task
        self._error: BaseException | None = None
        self.since = time.monotonic()

    @property
    def has_answer(self) -> bool:
        """Whether it is open, or has failed."""
        return self._connection is not None or self._error is not None

    def wait(self) -> Connection:
        """The open connection.

        Raises:
            Exception: the driver's, when it cannot be opened.
            TicketServerError: it was cut.
        """
        name = f"sqla_tickets connection to {self._name}"
        try:
            if not in_background(self._open, name, in_a_task=self._in_a_task):
                return self._open_in_time()
            if isinstance(self._over, asyncio.Event):
                await_only(self._over.wait())
            else:
                self._over.wait()
        except BaseException:  # a cancelled task, an interrupt
            connection = self.withdraw()
            if connection is not None:
                self._keep(connection)
            raise
        connection = self.withdraw()
        if connection is not None:
            return connection
        raise self._error or TicketServerError(f"{self._name}: no connection in time")

    def _open(self) -> None:
        try:
            connection = self._open_in_time()
        except Exception as error:  # noqa: BLE001  # it is raised where the connection is waited for
            self._error = error
        else:
            with self._lock:
                wanted = self.is_wanted
                self._connection = connection if wanted else None
            if not wanted:
                self._keep(connection)
        finally:
            self._over.set()

    def _open_in_time(self) -> Connection:
        try:
            if self._in_a_task:
                return within(self._seconds, self._open_one)
            return self._open_one()
        finally:
            self._ended(self)


class IdleConnections(deque[Connection]):
    """The idle connections of all threads, or of one event loop; and how many there are in all.

    Attributes:
        connecting: those that are being opened now, whether a draw waits for them or not.
        full_until: when it may be worth to open another one, by ``time.monotonic()``.
        queue: the callers that wait for one, in order of arrival.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: WeakRegistry[Connection] = WeakRegistry()
        self.connecting: WeakRegistry[PendingConnect] = WeakRegistry()
        self.queue: deque[ConnectionRequest] = deque()
        self.full_until = 0.0

    def has_made(self, connection: Connection) -> None:
        """Count a connection, idle or not, until it is closed. A draw that abandons it does not count it."""
        self._made.add(connection)

    def has_room(self) -> bool:
        """Whether another one is to be opened for a draw that finds none idle."""
        there = self._count_open()
        if there and time.monotonic() < self.full_until:
            return False
        connecting = list(self.connecting)
        waited_for = sum(connect.is_wanted for connect in connecting)
        is_room = len(connecting) + there < CONNECT_TIMING.max_connections
        return is_room and waited_for < CONNECT_TIMING.max_connecting

    def can_do_without(self) -> bool:
        """Whether there are others to wait for, now that the server lets in no more."""
        self.full_until = time.monotonic() + CONNECT_TIMING.server_full_seconds
        return bool(self._count_open())

    def _count_open(self) -> int:
        return sum(not connection.is_closed for connection in self._made)

    def take_unused(self) -> list[Connection]:
        """Remove those that no draw has taken since the last call; the one that is taken next stays."""
        unused: list[Connection] = []
        for connection in list(self):
            if connection.is_unused and len(self) > 1:
                with suppress(ValueError):  # others were faster
                    self.remove(connection)
                    unused.append(connection)
            connection.is_unused = True
        return unused

    def serve(self) -> None:
        """Give idle connections to the waiting draws."""
        while (request := self._first_waiting()) is not None:
            try:
                connection = self.pop()
            except IndexError:
                return
            if not request.deliver(connection):  # others were faster
                self.append(connection)

    def replace(self) -> None:
        """Let the first waiting draw open a connection, where there is room for one."""
        while (request := self._first_waiting()) is not None and self.has_room():
            if request.deliver(None):
                return

    def _first_waiting(self) -> ConnectionRequest | None:
        """The first that is waited for; it stays in the queue until it has come, whatever comes between."""
        while self.queue:
            with suppress(IndexError, ValueError):  # others were faster
                request = self.queue[0]
                if request.is_waited_for:
                    return request
                self.queue.remove(request)
        return None
