"""The connections to one ticket server: opened for tickets only, in autocommit, kept while idle.

SQLAlchemy's own pool costs a ROLLBACK for each checkout and a fraction of a millisecond of Python, and a draw is one
round trip of that length. So a connection is opened through the engine (its URL, creator, events and TLS), then
detached from it and kept here with a cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Dialect, Engine
from sqlalchemy.pool import PoolProxiedConnection

from ..concurrency import (
    OwnerMark,
    begun,
    in_background,
    in_event_loop,
    owner_mark,
    pause,
    running_loop,
    threading,
    time,
    timestamps,
)
from ..dialects import ErrorKind, dialect_of
from ..errors import TicketServerError
from .connection import Connection
from .engines import in_memory
from .identity import Identity, identify
from .limit import ConnectionRequest, IdleConnections, PendingConnect, Waiter
from .sockets import clear_tls_errors
from .timeouts import CONNECT_TIMING, Timeouts


class Connections:
    """Idle connections to one server, one deque per event loop and one for all threads.

    No lock is held during a wait for the server; taking and returning are single operations of a deque.

    Args:
        engine: the engine that opens them.
        server: the server's name, for the log.
        timeouts: the server's time-outs.

    Attributes:
        of_threads: the idle ones of all threads.
        alone: a lock to hold, in a ``with``, while the single shared connection is used; None if each user has its
            own.
        closed_at: the logical timestamp when all were last closed; 0 if they never were.
    """

    def __init__(self, engine: Engine, server: str, timeouts: Timeouts) -> None:
        self._server, self._timeouts = server, timeouts
        self._name_of_closing = f"sqla_tickets closes connections to {server}"
        self._engine, self._is_async = engine, engine.dialect.is_async
        self._shared = in_memory(engine)
        self._source = engine.pool if self._shared else engine.pool.recreate()
        self._forked = False
        self._last_identity: Identity | None = None
        self.closed_at = 0
        self._has_first = False
        self._is_owner_process: OwnerMark = b"\0"
        self.abandon()

    @property
    def has_idle(self) -> bool:
        """Whether an idle connection can be taken."""
        return bool(self._idle())

    @property
    def are_lent(self) -> bool:
        """Whether this caller finds none idle, as work that is no draw has just taken one."""
        if not self._is_owner_process[0] or (self._is_async and not in_event_loop()):
            return False
        return self._idle().are_lent

    @property
    def connecting_since(self) -> float:
        """When a thread began to open the latest pending connection; 0 if none is pending."""
        return max((connect.since for connect in self.of_threads.connecting), default=0.0)

    def can_do_without_more(self) -> bool:
        """The server admits no more; return whether this process has other connections to it."""
        loops = [loop for loop in self._known_loops() if not loop.is_closed()]
        of_all = [self.of_threads, *(self._loops.get(loop) for loop in loops)]
        has_others = [idle.can_do_without() for idle in of_all if idle is not None]
        return any(has_others)

    def were_closed_since(self, connection: Connection) -> bool:
        """Whether all connections were closed since this one was opened."""
        return connection.begun <= self.closed_at

    @property
    def dialect(self) -> Dialect:
        """The engine's dialect, which knows the server's version after the first connection."""
        return self._engine.dialect

    def of_greenlet(self, loop: asyncio.AbstractEventLoop) -> IdleConnections | None:
        """The idle ones of an event loop; None if this code must not use them: it cannot wait, or the driver blocks."""
        return self._loops.get(loop) if self._is_async and in_event_loop() else None

    def acquire(self, waiter: Waiter | None = None) -> Connection:
        """Take an idle connection, or open a new one.

        A connection that an interrupt keeps from its caller is closed by the garbage collector.

        Args:
            waiter: the request that waits, which may give up early; None for work that is no draw. That takes a
                connection from a draw that ends soon, and opens one only if there is none.

        Raises:
            Exception: the driver's error, if none is idle and none can be opened.
        """
        if not self._is_owner_process[0]:  # a fork that Python did not notice
            self.abandon()
        try:
            connection = (self._idle() if self._is_async else self.of_threads).pop()
        except IndexError:
            if dialect_of(self.dialect).is_embedded:
                connection = self.open()
            elif waiter is None:
                connection = self._opened_or_given_back()
            else:
                connection = self._given_back_or_opened(waiter)
        if waiter is None:
            connection.lent_at = time.monotonic()
        return connection

    def _given_back_or_opened(self, waiter: Waiter) -> Connection:
        end = waiter.deadline
        while True:
            given = self._given_back(waiter)
            if given is not None:
                return given
            try:
                return self._opened(waiter)
            except Exception as error:
                if not self._can_wait_after(error) or time.monotonic() > end:
                    raise

    def _can_wait_after(self, error: Exception) -> bool:
        """Whether the server is full, and this process has other connections to wait for."""
        kind = dialect_of(self.dialect).error_kind(error)
        return kind is ErrorKind.TOO_MANY_CONNECTIONS and self._idle().can_do_without()

    def _opened(self, waiter: Waiter) -> Connection:
        idle = self._idle()
        pending = PendingConnect(
            self.open,
            self.release,
            idle.connecting.discard,
            name=self._server,
            seconds=self._timeouts.cancel_seconds,
            in_a_task=self._is_async,
        )
        idle.connecting.add(pending)
        waiter.wait_on(pending)
        try:
            return pending.wait()
        finally:
            idle.replace()

    def _given_back(self, waiter: Waiter) -> Connection | None:
        """Wait for another connection; None if there is room for a new one, and none comes soon.

        To open one takes longer than one is lent for, and costs a server more that is too busy to answer a probe.

        Raises:
            TicketServerError: the wait was cancelled, or has taken too long.
        """
        idle = self._idle()
        if idle.has_room() and not idle.are_lent and not waiter.waits_for_probe:
            return None
        request = ConnectionRequest(waiter, in_a_task=self._is_async)
        try:
            waiter.wait_on(request)
            # one that has queued before is not overtaken by those that come back
            join = idle.queue.appendleft if waiter.is_patient else idle.queue.append
            join(request)
            idle.serve()
            while not request.wait(CONNECT_TIMING.recheck_seconds):
                idle.serve()
                if idle.has_room() and not waiter.waits_for_probe:
                    break
                if waiter.is_server_down or time.monotonic() > waiter.deadline:
                    waiter.give_up()
            if waiter.cancelled is None:
                return request.withdraw()
        except BaseException:  # a cancelled task, an interrupt
            self._pass_on(request)
            raise
        self._pass_on(request)
        raise TicketServerError(f"{self._server}: no connection in time")

    def _opened_or_given_back(self) -> Connection:
        """A connection that a draw gives back soon, before those that queue; else a new one.

        To open one takes longer than a draw. If the server is full, it waits for longer.

        Raises:
            Exception: the driver's error, if none is given back in time, or this process has no other.
        """
        if self._idle().are_drawing:
            given = self._next_given_back(CONNECT_TIMING.recheck_seconds)
            if given is not None:
                return given
        try:
            return self.open()
        except Exception as error:
            if not self._can_wait_after(error):
                raise
            given = self._next_given_back(self._timeouts.timeout_seconds)
            if given is None:
                raise
            return given

    def _next_given_back(self, seconds: float) -> Connection | None:
        idle, request = self._idle(), ConnectionRequest(None, in_a_task=self._is_async)
        try:
            idle.queue.appendleft(request)
            idle.serve()
            request.wait(seconds)
        except BaseException:  # a cancelled task, an interrupt
            self._pass_on(request)
            raise
        connection = request.withdraw()
        if connection is None:
            idle.replace()
        return connection

    def _pass_on(self, request: ConnectionRequest) -> None:
        connection = request.withdraw()
        if connection is not None:
            self.release(connection)
        else:
            self._idle().replace()

    def idle_one_answers(self, seconds: float) -> bool:
        """Ping an idle connection; False if there is none, or it is broken.

        Args:
            seconds: when to give up; the driver waits for longer, or for ever.
        """
        if self._shared or not self._is_owner_process[0]:  # or, in a fork, they are the parent's
            return False
        try:
            connection = self._idle().pop()
        except IndexError:
            return False
        try:
            with connection.cut_after(seconds):
                connection.cursor.execute(dialect_of(self.dialect).ping)
                connection.cursor.fetchall()
        except Exception:  # noqa: BLE001  # any of the driver's: another one is opened, which tells more
            self.discard(connection)
            return False
        self.release(connection)
        return True

    def release(self, connection: Connection) -> None:
        """Return a connection whose last statement succeeded.

        It is closed instead if all were closed since it was opened, or since the background call that opened it
        began: after `dispose`, nothing stays open for a running call.
        """
        idle = self._idle() if self._is_async else self.of_threads
        is_of_now = connection.begun > self.closed_at and connection.is_owner_process[0]
        if is_of_now and len(idle) < CONNECT_TIMING.max_connections:
            connection.reused, connection.is_unused, connection.lent_at = True, False, 0.0
            idle.append(connection)
            if idle.queue:
                idle.serve()
        else:
            self._close(connection)
            idle.replace()

    def keep_spare(self, connection: Connection) -> None:
        """Keep a connection that no draw asked for, unless one is idle already."""
        if self._idle():
            self._close(connection)
        else:
            self.release(connection)

    def discard(self, connection: Connection) -> None:
        """Close a connection that may hold a lock, or an unread answer."""
        self._close(connection)
        self._idle().replace()

    def _close(self, connection: Connection) -> None:
        if not connection.is_owner_process[0]:
            _of_another_process.append(connection)
            return
        connection.is_closed = True
        connection.let_go_of_socket()
        if connection.lease is not None:
            connection.lease.close()
            return
        close = self.dialect.do_terminate if self.dialect.has_terminate else self.dialect.do_close
        try:
            if dialect_of(self.dialect).is_embedded:
                # an unfinished statement locks the file until its cursor is collected; SQLAlchemy 2.0 has that in a
                # frame, which a cancelled task's traceback keeps alive
                with contextlib.suppress(Exception):
                    connection.cursor.close()
                traceback.clear_frames(sys.exc_info()[2])
        finally:
            with contextlib.suppress(Exception):  # it is broken anyway
                close(connection.dbapi)
            clear_tls_errors()  # the closing, too, may have failed

    def close_idle(self) -> None:
        """Close idle connections, as the server may have been restarted, or is unresponsive."""
        self._close_each(self._idle(), patience=0)

    def close_unused(self) -> bool:
        """Close idle connections that no draw has taken since the last call, except one.

        A server admits a limited number for all clients, so after a burst one process would keep others out for ever.
        Connections are closed in the background, but never to a SQLite file, where a fork during that would be fatal.

        Returns:
            Whether the next call may close one.
        """
        if dialect_of(self.dialect).is_embedded or not self._is_owner_process[0]:
            return False
        if not self._is_async:
            return self._close_unused(self.of_threads)
        may_close_more = False
        for loop in self._known_loops():
            idle = self._loops.get(loop)
            if idle is not None and idle.are_several and not loop.is_closed():
                may_close_more = True
                with contextlib.suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(self._close_unused, idle)
        return may_close_more

    def _close_unused(self, idle: IdleConnections) -> bool:
        unused = idle.take_unused()

        def close() -> None:
            for connection in unused:
                self._close(connection)

        if unused:
            in_background(close, self._name_of_closing, in_a_task=self._is_async)
        return idle.are_several

    def close_all(self) -> None:
        """Close the idle connections of all threads and event loops."""
        self.closed_at = next(timestamps)
        self._close_each(self.of_threads, patience=0.5)
        here = running_loop()
        for loop in self._known_loops():
            idle = self._loops.get(loop, self.of_threads)
            if loop is not here and loop.is_running():
                with contextlib.suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(self._close_in_task, idle)
            else:
                # a stopped loop reads no goodbye
                self._close_each(idle, patience=0.5 if loop is here else 0)

    def call_in_a_loop(self, work: Callable[[], None]) -> bool:
        """Let an event loop that has connections call ``work`` soon; False if none runs."""
        for loop in self._known_loops():
            if loop.is_running():
                with contextlib.suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(work)
                    return True
        return False

    def _known_loops(self) -> list[asyncio.AbstractEventLoop]:
        return [loop for each in self._loops.keyrefs() if (loop := each()) is not None]

    def _close_in_task(self, idle: deque[Connection]) -> None:
        """Close connections of the current event loop."""

        def close() -> None:
            self._close_each(idle, patience=0.5)

        in_background(close, self._name_of_closing, in_a_task=True)

    def _close_each(self, idle: deque[Connection], patience: float) -> None:
        """Close connections, with a goodbye for ``patience`` seconds only: asyncpg waits two seconds for each answer."""
        end = time.monotonic() + patience
        with contextlib.suppress(IndexError):
            while True:
                connection = idle.pop()
                if time.monotonic() >= end:
                    connection.cancel()
                self._close(connection)

    def __del__(self) -> None:
        # there may be no loop left to close them in, and module names are gone when the interpreter ends
        if not self._is_async and globals()["timestamps"]:
            self.close_all()

    def abandon(self) -> None:
        """Forget every connection without a message to the server: in a fork they are the parent's.

        They are kept from the garbage collector, since closing them sends a goodbye on the parent's socket. Those
        that this process opened stay.
        """
        if self._is_owner_process[0]:
            return
        if hasattr(self, "of_threads"):
            _of_another_process.append((self._source, self.of_threads, self._loops))
            self._forked = True
            self._source = self._engine.pool.recreate()
        self._lock_of_first = threading.Lock()
        #: The event loops of the tasks that open the engine's first connection.
        self._opening_first: list[asyncio.AbstractEventLoop] = []
        # One thread at a time uses the connection of a database in memory.
        shared = self._shared and not self._is_async
        self.alone = threading.RLock() if shared else None
        self.of_threads: IdleConnections = IdleConnections()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, IdleConnections]
        self._loops = WeakKeyDictionary()
        self._is_owner_process = owner_mark()  # the last, as it says that all is done

    def _idle(self) -> IdleConnections:
        if not self._is_async:
            return self.of_threads
        loop = asyncio.get_running_loop()
        idle = self._loops.get(loop)
        if idle is None:
            idle = self._loops.setdefault(loop, IdleConnections())
            self._close_those_of_ended_loops()
        return idle

    def _close_those_of_ended_loops(self) -> None:
        """Close what closed event loops have left, which keeps these loops from the garbage collector."""
        # a fork while a task closes a file would be fatal
        is_at_once = dialect_of(self.dialect).is_embedded
        for loop in [loop for loop in self._known_loops() if loop.is_closed()]:
            close = partial(self._close_those_of, loop)
            if is_at_once:
                close()
            else:
                in_background(close, self._name_of_closing, in_a_task=True)

    def _close_those_of(self, loop: asyncio.AbstractEventLoop) -> None:
        idle = self._loops.get(loop)
        if idle is not None:
            self._close_each(idle, patience=0)
            # last: the next loop closes what is left by an end of this one
            self._loops.pop(loop, None)

    def open(self) -> Connection:
        """Open a new connection.

        Raises:
            Exception: the driver's error, if none can be opened.
        """
        if not self._is_owner_process[0]:
            self.abandon()
        if self._forked and self._shared:
            raise RuntimeError(
                "an in-memory database cannot be used after a fork, which copies it: open the pool in "
                "the child"
            )
        timestamp, owner = begun(), self._is_owner_process
        try:
            lease = self._check_out()
        except BaseException:
            clear_tls_errors()
            raise
        dbapi = lease.dbapi_connection
        assert dbapi is not None  # a connection that was just checked out
        if not self._shared:
            lease.detach()
        shared = lease if self._shared else None
        connection = Connection(dbapi, shared, timestamp, owner, self._server)
        self._idle().has_made(connection)
        try:
            self._prepare(connection)
        except BaseException:
            self._close(connection)
            raise
        return connection

    def _check_out(self) -> PoolProxiedConnection:
        """Check out a new connection of the engine's.

        While SQLAlchemy learns from the first one what the server is, it holds an ``asyncio.Lock``, for which only one
        event loop can wait. So the others wait until it is open.
        """
        if not self._is_async or self._has_first:
            return self._source.connect()
        loop = asyncio.get_running_loop()
        while not self._may_open_first(loop):
            pause(CONNECT_TIMING.first_recheck_seconds)
        try:
            lease = self._source.connect()
            self._has_first = True
            return lease
        finally:
            self._opening_first.remove(loop)

    @property
    def has_lost_first(self) -> bool:
        """Whether an event loop was closed while it opened the first connection: the engine's lock stays locked then."""
        return not self._has_first and any(loop.is_closed() for loop in self._opening_first)

    def _may_open_first(self, loop: asyncio.AbstractEventLoop) -> bool:
        with self._lock_of_first:
            is_free = all(other is loop or other.is_closed() for other in self._opening_first)
            if is_free or self._has_first:
                self._opening_first.append(loop)
                return True
        return False

    def _prepare(self, connection: Connection) -> None:
        dbapi, cursor, dialect = connection.dbapi, connection.cursor, dialect_of(self.dialect)
        self.dialect.set_isolation_level(dbapi, "AUTOCOMMIT")
        dialect.set_up_session(dbapi, cursor, self._timeouts.lock_wait_seconds)
        connection.identity = identify(cursor, dialect, self._last_identity)
        self._last_identity = connection.identity


_of_another_process: list[Any] = []
