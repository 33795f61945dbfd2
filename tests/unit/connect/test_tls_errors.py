"""A broken connection leaves no error of OpenSSL behind, which the thread's next TLS connection would show as its own."""

from __future__ import annotations

import _ssl
import ctypes
import errno
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from sqla_tickets.connect.pool import Connections
from sqla_tickets.connect.sockets import clear_tls_errors
from sqla_tickets.connect.timeouts import Timeouts

#: The library number of errors of the system.
ERR_LIB_SYS = 2


class ErrorQueue:
    """This thread's errors in the OpenSSL that Python uses."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_ssl.__file__)
            self._library.ERR_set_error  # noqa: B018  # OpenSSL 3 has it
        except (AttributeError, OSError):
            pytest.skip("Python shows no OpenSSL 3")
        self._library.ERR_peek_error.restype = ctypes.c_ulong

    def add(self) -> None:
        """Leave an error, as Python does after a broken pipe."""
        self._library.ERR_new()
        self._library.ERR_set_error(ERR_LIB_SYS, errno.EPIPE, None)

    def is_empty(self) -> bool:
        """Whether no error is left."""
        return bool(self._library.ERR_peek_error() == 0)


@pytest.fixture
def queue() -> ErrorQueue:
    clear_tls_errors()
    return ErrorQueue()


def test_tls_errors_are_cleared(queue: ErrorQueue) -> None:
    assert queue.is_empty()
    queue.add()
    assert not queue.is_empty()
    clear_tls_errors()
    assert queue.is_empty()


def test_discarded_connection_leaves_no_tls_error(queue: ErrorQueue, tmp_path: Path) -> None:
    """The driver leaves it when a statement fails, or when it says goodbye to the server."""
    engine = create_engine(f"sqlite:///{tmp_path}/tickets.db")
    connections = Connections(engine, "server", Timeouts(1.0, 1.0))
    connection = connections.acquire()
    queue.add()
    connections.discard(connection)
    assert queue.is_empty()


def test_failed_connect_leaves_no_tls_error(queue: ErrorQueue, tmp_path: Path) -> None:
    def refuse() -> None:
        queue.add()
        raise OSError("refused")

    engine = create_engine(f"sqlite:///{tmp_path}/tickets.db", creator=refuse)
    connections = Connections(engine, "server", Timeouts(1.0, 1.0))
    with pytest.raises(OSError, match="refused"):
        connections.open()
    assert queue.is_empty()
