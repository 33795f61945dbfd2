"""Opening a connection so that its caller can go on without it.

No driver shows the socket of a connection that is not open yet, and a frozen server accepts one without
a word. So it is opened beside the traffic, and waited for as an answer is; when it comes too late it is
kept for another draw.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sqlalchemy.util import await_only

from .aio import within
from .beside import beside
from .errors import TicketServerError

if TYPE_CHECKING:
    from .connections import Connection, Connections

__all__ = ["Opening"]


class Opening:
    """A connection on its way, as a `Flight` boards it.

    Args:
        connections: where it is opened, and kept when nobody waits for it any more.
        name: of the server.
        seconds: after which an attempt in an event loop ends, as not every driver does by itself.
        ended: is called when the attempt has ended, although nobody may wait for it any more.

    Attributes:
        is_waited_for: whether its caller has not gone on yet, with or without it.
    """

    #: Seconds that it is given at least, since it takes several round trips.
    patience: Final = 0.05
    can_be_cut: Final = True

    def __init__(
        self,
        connections: Connections,
        name: str,
        seconds: float,
        ended: Callable[[Opening], object],
    ) -> None:
        self._connections, self._name, self._seconds = connections, name, seconds
        self._ended = ended
        self._in_a_task = connections.dialect.is_async
        self._over = asyncio.Event() if self._in_a_task else threading.Event()
        self._lock = threading.Lock()
        self.is_waited_for = True
        self._connection: Connection | None = None
        self._error: BaseException | None = None

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
            if not beside(self._open, name, in_a_task=self._in_a_task):
                return self._open_in_time()
            if isinstance(self._over, asyncio.Event):
                await_only(self._over.wait())
            else:
                self._over.wait()
        except BaseException:  # a cancelled task, an interrupt
            connection = self._take()
            if connection is not None:
                self._connections.keep(connection)
            raise
        connection = self._take()
        if connection is not None:
            return connection
        raise self._error or TicketServerError(f"{self._name}: no connection in time")

    def _take(self) -> Connection | None:
        with self._lock:
            self.is_waited_for = False
            connection, self._connection = self._connection, None
            return connection

    def cut(self) -> None:
        """Let whoever waits go on without it."""
        self._over.set()

    def _open(self) -> None:
        try:
            connection = self._open_in_time()
        except Exception as error:  # noqa: BLE001  # it is raised where the connection is waited for
            self._error = error
        else:
            with self._lock:
                wanted = self.is_waited_for
                self._connection = connection if wanted else None
            if not wanted:
                self._connections.keep(connection)
        finally:
            self._over.set()

    def _open_in_time(self) -> Connection:
        try:
            if self._in_a_task:
                return within(self._seconds, self._connections.open)
            return self._connections.open()
        finally:
            self._ended(self)
