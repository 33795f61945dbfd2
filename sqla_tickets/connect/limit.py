"""The connection limit: draws wait for a new connection, or queue for one that another draw uses.

A server admits one or two hundred connections for all its clients. So hundreds of tasks that draw at once do not open
one each: most of them queue, and a draw takes a millisecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ..concurrency import TaskEvent, WeakRegistry, in_background, threading, time, within
from ..errors import TicketServerError
from .connection import Connection
from .timeouts import CONNECT_TIMING


class Pending(Protocol):
    """Something that a caller waits for: an answer, a pending connect, or a connection from the queue."""

    @property
    def patience(self) -> float:
        """The least patience in seconds."""
        ...

    @property
    def can_be_cancelled(self) -> bool:
        """Whether `cancel` can end this wait, and doing so helps."""
        ...

    @property
    def has_answer(self) -> bool:
        """Whether the wait has succeeded."""
        ...

    def cancel(self) -> None:
        """Release the caller, which continues without it; any thread may call this."""
        ...


class Waiter(Protocol):
    """A request that waits for a connection, and can be cancelled."""

    @property
    def cancelled(self) -> object:
        """Why it was cancelled; None while it waits."""
        ...

    @property
    def deadline(self) -> float:
        """When the wait of the request ends, by ``time.monotonic()``."""
        ...

    @property
    def is_server_down(self) -> bool:
        """Whether the server went down during the wait, so that no connection will be returned."""
        ...

    @property
    def is_patient(self) -> bool:
        """Whether it waits for this server, as the others were tried before."""
        ...

    @property
    def waits_for_probe(self) -> bool:
        """Whether it opens no connection yet, as a probe opens one that is then kept for a draw."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether the draws that have a connection get no answer."""
        ...

    def wait_on(self, pending: Pending, /) -> None:
        """Begin to wait for this."""
        ...

    def give_up(self) -> None:
        """Cancel its own wait, as its time is over, or its server is down."""
        ...


class _Wait:
    """The wait of one draw for a connection; any thread may end it.

    Args:
        in_a_task: whether a task of an event loop waits, and not a thread.

    Attributes:
        is_wanted: whether its draw still waits.
    """

    #: The least patience in seconds.
    patience: float = CONNECT_TIMING.several_round_trips_seconds

    def __init__(self, *, in_a_task: bool) -> None:
        self._over = TaskEvent() if in_a_task else threading.Event()
        self._lock = threading.Lock()
        self.is_wanted = True
        self._connection: Connection | None = None

    def cancel(self) -> None:
        """Release the waiting draw, without a connection."""
        self._over.set()

    def withdraw(self) -> Connection | None:
        """End the wait; returns the connection that has been delivered, if any."""
        with self._lock:
            self.is_wanted = False
            connection, self._connection = self._connection, None
            return connection


class ConnectionRequest(_Wait):
    """A place in the queue for a connection.

    Args:
        waiter: the waiting draw; None for work that is no draw.
        in_a_task: whether a task of an event loop waits, and not a thread.
    """

    def __init__(self, waiter: Waiter | None, *, in_a_task: bool) -> None:
        super().__init__(in_a_task=in_a_task)
        self._waiter = waiter

    @property
    def can_be_cancelled(self) -> bool:
        """Whether the draws before it get no answer, so that another server may be better."""
        return self._waiter is not None and self._waiter.is_stuck

    @property
    def waits_for_probe(self) -> bool:
        """Whether its draw opens no connection yet, as a probe opens one."""
        return self._waiter is not None and self._waiter.waits_for_probe

    @property
    def has_answer(self) -> bool:
        """Whether the connection has come."""
        return self._over.is_set()

    @property
    def is_waited_for(self) -> bool:
        """Whether the draw still waits for it."""
        return self.is_wanted and not self._over.is_set()

    def deliver(self, connection: Connection | None) -> bool:
        """Give the waiting draw a connection, or None for it to open one.

        Returns:
            False if the draw no longer waits.
        """
        with self._lock:
            if not self.is_waited_for:
                return False
            if connection is not None and self._waiter is None:
                # at once: on a busy machine, its thread sees it much later
                connection.lent_at = time.monotonic()
            self._connection = connection
            self._over.set()
            return True

    def wait(self, seconds: float) -> bool:
        """Wait for at most ``seconds``; returns whether the request was answered or cancelled."""
        return self._over.wait(seconds)


class PendingConnect(_Wait):
    """A connection that is opened in the background, and that its draw can abandon.

    No driver shows the socket of a pending connection, and a frozen server accepts one without an answer. So a
    background thread opens it, and the draw waits for it as for an answer. A late connection is kept for another
    draw.

    Args:
        open_one: opens it.
        keep: called with the connection if no draw waits for it any more.
        ended: called when the attempt has ended, even if no draw waits for it any more.
        name: the server's name.
        seconds: when an attempt in an event loop is cancelled, as some drivers have no time-out.
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
        """Whether the connection is open, or has failed."""
        return self._connection is not None or self._error is not None

    def wait(self) -> Connection:
        """Wait for the connection, and return it.

        Raises:
            Exception: the driver's error, if it cannot be opened.
            TicketServerError: it was cancelled.
        """
        name = f"sqla_tickets connection to {self._name}"
        try:
            if not in_background(self._open, name, in_a_task=self._in_a_task):
                return self._open_in_time()
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
    """The idle connections of all threads, or of one event loop, and the number of all their connections.

    Attributes:
        connecting: the pending connections, whether a draw waits for them or not.
        full_until: when the server may admit another one, by ``time.monotonic()``.
        queue: the callers that wait for one, in order of arrival.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: WeakRegistry[Connection] = WeakRegistry()
        self.connecting: WeakRegistry[PendingConnect] = WeakRegistry()
        self.queue: deque[ConnectionRequest] = deque()
        self.full_until = 0.0

    def has_made(self, connection: Connection) -> None:
        """Count a connection, idle or not, until it is closed. An abandoned one is not counted."""
        self._made.add(connection)

    def has_room(self) -> bool:
        """Whether a draw that finds none idle may open another one."""
        there, connecting = self._count_open(), list(self.connecting)
        if (there or connecting) and time.monotonic() < self.full_until:
            return False
        waited_for = sum(connect.is_wanted for connect in connecting)
        is_room = len(connecting) + there < CONNECT_TIMING.max_connections
        return is_room and waited_for < CONNECT_TIMING.max_connecting

    def can_do_without(self) -> bool:
        """The server admits no more: return whether there are other connections to wait for, open or pending."""
        self.full_until = time.monotonic() + CONNECT_TIMING.server_full_seconds
        return bool(self._count_open() or self.connecting.refs)

    @property
    def are_several(self) -> bool:
        """Whether more than one is open, idle or not."""
        return self._count_open() > 1

    @property
    def are_drawing(self) -> bool:
        """Whether a draw waits for its answer over one of them; one that still inspects its table does not count."""
        return any(each.under_way.locked() and not each.is_closed for each in self._made)

    @property
    def are_lent(self) -> bool:
        """Whether none is idle, as work that is no draw has just taken one, for a statement or two."""
        since = time.monotonic() - CONNECT_TIMING.recheck_seconds
        return not self and any(each.lent_at > since and not each.is_closed for each in self._made)

    def _count_open(self) -> int:
        return sum(not connection.is_closed for connection in self._made)

    def take_unused(self) -> list[Connection]:
        """Remove connections that no draw has taken since the last call, except the next one to be taken."""
        unused: list[Connection] = []
        try:
            idle = list(self)
        except RuntimeError:  # free-threaded: a draw has just taken one; the next call goes on
            return unused
        for connection in idle:
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
        """Let the first waiting draw open a connection, if there is room for one."""
        while (request := self._first_waiting()) is not None and self.has_room():
            if request.waits_for_probe or request.deliver(None):
                return

    def _first_waiting(self) -> ConnectionRequest | None:
        """The first request that still waits; it stays in the queue until its connection has come."""
        while self.queue:
            with suppress(IndexError, ValueError):  # others were faster
                request = self.queue[0]
                if request.is_waited_for:
                    return request
                self.queue.remove(request)
        return None
