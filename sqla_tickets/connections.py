"""The connections to one ticket server: opened for tickets alone, in autocommit, kept while idle.

An ordinary pool of SQLAlchemy's costs a ROLLBACK per checkout and a share of a millisecond of
Python; a draw is one round trip of that length. So a connection, once opened by way of the engine
(its URL, creator, events and TLS), is detached from it and kept here with a cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Dialect, Engine
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.pool import PoolProxiedConnection

from .engines import LOCK_WAIT, in_memory
from .errors import TicketServerError
from .faults import Fault, fault_of
from .forks import Mark, mark
from .identity import Identity, identify
from .opening import Opening
from .sockets import socket_of
from .turns import KEPT, Stock, Turn

if TYPE_CHECKING:
    from .flight import Flight

__all__ = ["Connection", "Connections"]

#: After how many seconds who waits for one looks whether there is still one to wait for.
LOOK_AGAIN: Final = 0.25

# A lax server would store the largest number that fits and answer with the one that does not. Between
# the two halves of a REPLACE there is no row to be seen. What the driver was told to do about autocommit
# it leaves undone where a server's init_connect has switched that off behind its back.
_MYSQL: Final = (
    f"SET SESSION autocommit = 1, lock_wait_timeout = {LOCK_WAIT}, innodb_lock_wait_timeout = {LOCK_WAIT},"
    " sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES'), {} = 'REPEATABLE-READ'"
)
# A ticket that a crash forgets is issued again.
_POSTGRESQL: Final = (
    "SELECT set_config('synchronous_commit', 'on', false),"
    f" set_config('lock_timeout', '{LOCK_WAIT * 1000}', false)"
)


class Connection:
    """A driver's connection and one cursor of it.

    Attributes:
        cursor: the cursor that every statement is sent with.
        dbapi: the driver's connection.
        lease: what keeps a shared connection checked out of the engine's pool; else None.
        alone: the lock that is held while a shared connection is in use; else None.
        here: its byte 0 is 0 in a process that has not opened it.
        known_tables: the sequences whose tables were looked at through this connection. Another
            connection may lead to another server: behind a proxy, after a change of DNS.
        reused: whether it was idle before, and so may have been cut off meanwhile.
        is_closed: whether it is of no use any more.
        closings: how often all connections had been closed when this one was begun to be opened.
        identity: which server it leads to, where that can be told.
    """

    #: Seconds that an answer is given at least.
    patience: Final = 0.0

    __slots__ = (
        "__weakref__",
        "_wire",
        "alone",
        "closings",
        "cursor",
        "dbapi",
        "here",
        "identity",
        "is_closed",
        "known_tables",
        "lease",
        "reused",
    )

    def __init__(
        self, dbapi: DBAPIConnection, lease: PoolProxiedConnection | None, closings: int, here: Mark
    ) -> None:
        self.dbapi, self.closings, self.here = dbapi, closings, here
        self.cursor: DBAPICursor = dbapi.cursor()
        self.reused = self.is_closed = False
        self.known_tables: set[str] = set()
        self.lease = lease
        self.identity: Identity | None = None
        self.alone: threading.Lock | None = None
        self._wire: int | None = None
        number = socket_of(dbapi)
        if number is not None:
            # a number of its own: the driver may close its one, and the system give it to somebody else
            # without one, at the limit of open files, it is drawn with and not watched
            with contextlib.suppress(OSError):
                self._wire = os.dup(number)

    @property
    def can_be_cut(self) -> bool:
        """Whether it has a socket, and its driver has told which."""
        return self._wire is not None

    @property
    def has_answer(self) -> bool:
        """Whether something has come in that the driver has not read yet."""
        if self._wire is None:
            return False
        poll = select.poll()
        poll.register(self._wire, select.POLLIN)
        return bool(poll.poll(0))

    def cut(self) -> None:
        """Shut the socket down, from any thread: a driver that waits for an answer raises at once."""
        if self._wire is not None:
            with contextlib.suppress(OSError):
                wire = socket.socket(fileno=self._wire)
                try:
                    wire.shutdown(socket.SHUT_RDWR)
                finally:
                    wire.detach()

    def let_go_of_socket(self) -> None:
        """Keep the socket open no longer than the driver does."""
        wire, self._wire = getattr(self, "_wire", None), None
        if wire is not None:
            os.close(wire)

    __del__ = let_go_of_socket


class Connections:
    """Idle connections to one server, one stock per event loop and one for all threads.

    No lock is held while the server is waited for; taking and giving back are single operations
    of a deque.

    Attributes:
        closings: how often all were closed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._is_async = engine, engine.dialect.is_async
        self._shared = in_memory(engine)
        self._source = engine.pool if self._shared else engine.pool.recreate()
        self._forked = False
        self.closings = 0
        self._here: Mark = b"\0"
        self.abandon()

    @property
    def has_idle(self) -> bool:
        """Whether one can be taken without another being opened."""
        return bool(self._idle())

    @property
    def dialect(self) -> Dialect:
        """The engine's dialect; it knows the server's version from the first connection on."""
        return self._engine.dialect

    def take(self, flight: Flight | None = None) -> Connection:
        """An idle connection, or a new one.

        Args:
            flight: of the draw that it is for; it does not wait for a new one longer than it has to.

        Raises:
            Exception: the driver's, when there is none and none can be opened.
        """
        if not self._here[0]:  # a fork that Python was not told of
            self.abandon()
        alone = self._alone
        if alone is None:
            return self._idle_or_new(flight)
        alone.acquire()
        try:
            connection = self._idle_or_new(flight)
        except BaseException:
            alone.release()
            raise
        connection.alone = alone
        return connection

    def _idle_or_new(self, flight: Flight | None) -> Connection:
        try:
            connection = self._idle().pop()
        except IndexError:
            if flight is None or self.dialect.name == "sqlite":
                return self.open()
            end = time.monotonic() + flight.server.timeout + 2 * LOCK_WAIT
            while (given := self._given_back(flight, end)) is None:
                try:
                    return self._opened(flight)
                except Exception as error:
                    is_full = fault_of(error) is Fault.FULL and self._idle().can_do_without()
                    if not is_full or time.monotonic() > end:
                        raise
            connection = given
        connection.reused = True
        return connection

    def _opened(self, flight: Flight) -> Connection:
        stock, longest = self._idle(), flight.server.timeout + 2 * LOCK_WAIT
        opening = Opening(self, str(flight.server), longest, stock.coming.discard)
        stock.coming.add(opening)
        flight.board(opening)
        try:
            return opening.wait()
        finally:
            stock.replace()

    def _given_back(self, flight: Flight, end: float) -> Connection | None:
        """A connection of another draw's; None where one is to be opened."""
        stock, server = self._idle(), flight.server
        if stock.has_room():
            return None
        turn = Turn(server, in_a_task=self._is_async)
        flight.board(turn)
        stock.turns.append(turn)
        try:
            stock.serve()
            while not turn.wait(LOOK_AGAIN):
                stock.serve()
                if stock.has_room() or not server.breaker.is_closed or time.monotonic() > end:
                    break
        except BaseException:  # a cancelled task, an interrupt
            self._pass_on(turn)
            raise
        if flight.was_cut is not None:
            self._pass_on(turn)
            raise TicketServerError(f"{server}: no connection in time")
        return turn.leave()

    def _pass_on(self, turn: Turn) -> None:
        connection = turn.leave()
        if connection is not None:
            self.keep(connection)
        else:
            self._idle().replace()

    def idle_one_answers(self, seconds: float) -> bool:
        """Ping an idle connection; False where there is none, or it was cut off meanwhile.

        Args:
            seconds: after which it is given up: the driver waits for longer, or for ever.
        """
        if self._shared or not self._here[0]:  # or, in a fork, they are the parent's
            return False
        try:
            connection = self._idle().pop()
        except IndexError:
            return False
        end = threading.Timer(seconds, connection.cut)
        end.daemon = True
        try:
            end.start()
            try:
                self.dialect.do_ping(connection.dbapi)
            finally:
                end.cancel()
                end.join()  # the number of the socket may be somebody else's soon
        except Exception:  # noqa: BLE001  # any of the driver's: another one is opened, which tells more
            self.discard(connection)
            return False
        self.keep(connection)
        return True

    def give(self, connection: Connection) -> None:
        """Keep a connection whose last statement ended well."""
        alone = connection.alone
        self.keep(connection)
        if alone is not None:
            alone.release()

    def keep(self, connection: Connection) -> None:
        """Keep a connection, unless all were closed since it was opened."""
        idle = self._idle()
        is_of_now = connection.closings == self.closings and connection.here[0]
        if is_of_now and len(idle) < KEPT:
            idle.append(connection)
            if idle.turns:
                idle.serve()
        else:
            self._close(connection)
            idle.replace()

    def keep_spare(self, connection: Connection) -> None:
        """Keep a connection that no draw has asked for, unless there is an idle one already."""
        if self._idle():
            self._close(connection)
        else:
            self.keep(connection)

    def discard(self, connection: Connection) -> None:
        """Close a connection that may hold a lock, or an answer that nobody has read."""
        alone = connection.alone
        self._close(connection)
        self._idle().replace()
        if alone is not None:
            alone.release()

    def _close(self, connection: Connection) -> None:
        if not connection.here[0]:
            _of_another_process.append(connection)
            return
        connection.is_closed = True
        connection.let_go_of_socket()
        if connection.lease is not None:
            connection.lease.close()
            return
        close = self.dialect.do_terminate if self.dialect.has_terminate else self.dialect.do_close
        try:
            if self.dialect.name == "sqlite":
                # a statement that was not read to its end locks the file until somebody collects its cursor,
                # which SQLAlchemy 2.0 has in a frame, where a cancelled task's traceback keeps it
                with contextlib.suppress(Exception):
                    connection.cursor.close()
                traceback.clear_frames(sys.exc_info()[2])
        finally:
            with contextlib.suppress(Exception):  # it is broken anyway
                close(connection.dbapi)

    def close_idle(self) -> None:
        """Close what is idle, as the server may have been restarted, or keeps silent."""
        self._close_each(self._idle(), patience=0)

    def close_all(self) -> None:
        """Close what is idle in every event loop, too."""
        self.closings += 1
        for idle in (self._threads, *self._loops.values()):
            self._close_each(idle, patience=0.5)

    def _close_each(self, idle: deque[Connection], patience: float) -> None:
        """Close them, politely for some seconds: asyncpg waits for two until a good-bye is answered."""
        end = time.monotonic() + patience
        with contextlib.suppress(IndexError):
            while True:
                connection = idle.pop()
                if time.monotonic() >= end:
                    connection.cut()
                self._close(connection)

    def __del__(self) -> None:
        if not self._is_async:  # there may be no loop left to close them in
            self.close_all()

    def abandon(self) -> None:
        """Forget every connection without a word to the server: in a fork they are the parent's.

        They are kept from the garbage collector, since closing says good-bye on the parent's socket.
        Those that this process has opened stay.
        """
        if self._here[0]:
            return
        if hasattr(self, "_threads"):
            _of_another_process.append((self._source, self._threads, self._loops))
            self._forked = True
            self._source = self._engine.pool.recreate()
        # The one connection of a database in memory is for one thread at a time.
        shared = self._shared and not self._is_async
        self._alone = threading.Lock() if shared else None
        self._threads: Stock = Stock()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Stock]
        self._loops = WeakKeyDictionary()
        self._here = mark()  # the last, as it says that all is done

    def _idle(self) -> Stock:
        if not self._is_async:
            return self._threads
        return self._loops.setdefault(asyncio.get_running_loop(), Stock())

    def open(self) -> Connection:
        """A new connection.

        Raises:
            Exception: the driver's, when none can be opened.
        """
        if not self._here[0]:
            self.abandon()
        if self._forked and self._shared:
            raise RuntimeError("an in-memory database does not cross a fork: each side has a copy")
        closings, here = self.closings, self._here
        lease = self._source.connect()
        dbapi = lease.dbapi_connection
        assert dbapi is not None  # a connection that was just checked out
        if not self._shared:
            lease.detach()
        connection = Connection(dbapi, lease if self._shared else None, closings, here)
        self._idle().has_made(connection)
        try:
            self._prepare(connection)
        except BaseException:
            self._close(connection)
            raise
        return connection

    def _prepare(self, connection: Connection) -> None:
        dbapi, cursor = connection.dbapi, connection.cursor
        self.dialect.set_isolation_level(dbapi, "AUTOCOMMIT")
        if self.dialect.name in ("mysql", "mariadb"):
            cursor.execute(_MYSQL.format(_isolation(self.dialect)), ())
        elif self.dialect.name == "postgresql":
            cursor.execute(_POSTGRESQL, ())
            cursor.fetchall()
        elif getattr(dbapi, "autocommit", None) is False:  # sqlite3 from Python 3.12 on
            setattr(dbapi, "autocommit", True)  # noqa: B010  # not of every driver
        connection.identity = identify(cursor, self.dialect)


def _isolation(dialect: Dialect) -> str:
    """What the variable of the isolation level is called, by the manuals of MariaDB and MySQL."""
    version = tuple(dialect.server_version_info or (99,))
    since = (11, 1, 1) if getattr(dialect, "is_mariadb", False) else (5, 7, 20)
    return "transaction_isolation" if version >= since else "tx_isolation"


_of_another_process: list[Any] = []
