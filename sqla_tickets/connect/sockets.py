"""The socket under a driver's connection, and the data that the driver has read ahead.

The monitor cancels a request through its socket while a thread waits on it. An unexpected answer is in the socket, or
in the driver's buffer. Each driver keeps these in a different undocumented place, so what is found is checked before it
is used.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import socket
import ssl
import stat
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from sqlalchemy.engine.interfaces import DBAPIConnection

#: The poll events of a closed end, if the system distinguishes it from one with data.
CLOSED: Final[int] = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)

#: Waits for a number of milliseconds; returns events as ``select.poll().poll`` does.
Poll: TypeAlias = "Callable[[float], list[tuple[int, int]]]"

_SOCKET_FINDERS: Final[tuple[Callable[[Any], int], ...]] = (
    lambda c: c.fileno(),  # mysqlclient, psycopg, psycopg2
    lambda c: c._sock.fileno(),  # PyMySQL
    lambda c: c._socket.sock.fileno(),  # mysql-connector; its C extension shows none
    lambda c: c._get_socket(),  # mariadb; a caller of its `socket` closes it later
    lambda c: c._transport.get_extra_info("socket").fileno(),  # asyncmy, asyncpg
    lambda c: c._writer.get_extra_info("socket").fileno(),  # aiomysql
)


class Wire(Protocol):
    """The socket of a connection, for threads other than the driver's."""

    def poller(self) -> Poll | None:
        """A poll function for one thread; None if the system has none, as under eventlet."""
        ...

    def shut_down(self) -> None:
        """End the connection, from any thread: a driver that waits for an answer raises at once."""
        ...

    def close(self) -> None:
        """Keep the socket open no longer than the driver does."""
        ...


class SocketWire:
    """A socket under a duplicated descriptor: the driver may close its own, and the system reuse that number.

    Args:
        number: the number of the driver's socket.

    Attributes:
        socket: the socket without a time-out, so that Python does not poll it before each call. Where the driver has set
            one, the system's calls do not wait.

    Raises:
        OSError: there is no number left.
    """

    def __init__(self, number: int) -> None:
        own = os.dup(number)
        was_blocking = os.get_blocking(own)
        self.socket = socket.socket(fileno=own)
        self.socket.settimeout(None)  # nor that of `socket.setdefaulttimeout`
        # both descriptors share the flag, which has just been changed
        os.set_blocking(own, was_blocking)

    def poller(self) -> Poll | None:
        if not hasattr(select, "poll"):
            return None
        poll = select.poll()
        poll.register(self.socket, select.POLLIN | CLOSED)
        return poll.poll

    def shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()


def wire_of(dbapi_connection: DBAPIConnection) -> Wire | None:
    """The socket under a connection, as `socket_of` finds it.

    Returns:
        None if there is none, or at the limit of open files; the monitor then cannot poll it.
    """
    number = socket_of(dbapi_connection)
    if number is not None:
        with contextlib.suppress(OSError):
            return SocketWire(number)
    return None


def socket_of(dbapi_connection: DBAPIConnection) -> int | None:
    """The file descriptor of a connection's socket, with or without TLS.

    It is the driver's own. Duplicate it (``os.dup``) before another thread uses it, since the number may be another
    connection's once the driver has closed it.

    Args:
        dbapi_connection: a driver's connection, or SQLAlchemy's adapter around an async driver's.

    Returns:
        None where there is none, or it cannot be found: SQLite, a closed connection, a driver that
        hides it.
    """
    connection = getattr(dbapi_connection, "driver_connection", dbapi_connection)
    for find in _SOCKET_FINDERS:
        try:
            found = find(connection)
            if stat.S_ISSOCK(os.fstat(found).st_mode):
                return found
        except Exception:  # noqa: BLE001, S112  # another driver, or one that has closed it
            continue
    return None


def clear_tls_errors() -> None:
    """Clear what OpenSSL remembers of this thread's last error.

    OpenSSL keeps errors in a queue for each thread. From OpenSSL 3.4 on, Python leaves a broken connection's error there
    (python/cpython#148594), and every other TLS connection that the thread reads from then fails, too.
    """
    # Python clears the queue before it makes a TLS object, and nowhere else that has no side effect.
    _tls_context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """A context that verifies nothing and connects to nothing."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def buffer_of(dbapi_connection: DBAPIConnection) -> Callable[[], object]:
    """A function that shows, without a system call, whether the driver has read more than it has returned.

    Args:
        dbapi_connection: a driver's connection, or SQLAlchemy's adapter around an async driver's.

    Returns:
        A function whose result is true while it has. The result is always false for a driver without a buffer, or one
        that hides it, as drivers written in C do.
    """
    connection = getattr(dbapi_connection, "driver_connection", dbapi_connection)
    for find in _BUFFERS:
        try:
            buffer = find(connection)
            buffer()
        except Exception:  # noqa: BLE001, S112  # another driver
            continue
        return buffer
    return _nothing


def _peeked(connection: Any) -> Callable[[], object]:
    """Give PyMySQL a buffered reader that can peek into its buffer without reading the socket.

    It reads from the socket itself. The `socket.SocketIO` between the two would check five times that it is open.
    """
    reader: Any = connection._rfile
    raw: Any = reader.raw
    if (type(reader), type(raw)) != (io.BufferedReader, socket.SocketIO):
        raise TypeError
    receive = raw.readinto = raw._sock.recv_into

    def peek() -> object:
        try:
            raw.readinto = _receive_nothing
            return reader.peek(1)
        finally:
            raw.readinto = receive

    return peek


#: Returns None, as a socket does that would block.
_receive_nothing: Final[Callable[[object], None]] = deque[object](maxlen=0).append


def _streamed(connection: Any) -> Callable[[], object]:
    """The buffer of aiomysql, and of the first releases of asyncmy."""
    reader = connection._reader
    return lambda: reader._buffer


def _received(connection: Any) -> Callable[[], object]:
    """The buffer of later releases of asyncmy."""
    protocol = connection._proto
    return lambda: protocol.length > protocol.pos


def _decrypted(connection: Any) -> Callable[[], object]:
    """The buffer of mysql-connector: TLS's, the only one that it has."""
    encrypted = connection._socket.sock
    if not isinstance(encrypted, ssl.SSLSocket):
        raise TypeError
    return encrypted.pending


def _nothing() -> None:
    return None


_BUFFERS: Final = (_peeked, _streamed, _received, _decrypted)
