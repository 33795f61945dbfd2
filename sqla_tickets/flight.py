"""A draw that is under way on one server, as the watch sees it."""

from __future__ import annotations

import enum
import threading
import time
from contextvars import Context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from .connections import Connection
    from .opening import Opening
    from .server import TicketServer
    from .ticket_table import TicketTable
    from .turns import Turn

__all__ = ["Cut", "Flight"]


class Cut(enum.Enum):
    """Why a draw was cut off from the server that it waited for."""

    BEATEN = "another server has answered the same draw"
    RELEASED = "another draw waits for this silent server already"
    TIMED_OUT = "the time is over"


class Flight:
    """One draw on one server; its attempts may take one connection after the other.

    Attributes:
        server: that it waits for.
        table: of the sequence.
        n: how many tickets it wants.
        loop: the event loop of the caller; None where it is a thread.
        is_hedge: whether it is itself the second try of another draw.
        is_patient: whether it waits for this server, since the others were asked before.
        since: when its last statement was sent, by ``time.monotonic()``.
        was_cut: why it was cut off from the server; None while it was not.
        is_looked_at: whether its event loop was told to see to it, and has not done so yet.
        hedged: whether another server has been asked, too.
        suspected: whether a sign of life was asked of the server.
        answer: the blocks that another server has given in its place.
        context: the caller's context variables, in which its end is told, where somebody listens.
    """

    # what hardly any draw has to say is not put into each
    is_hedge = is_patient = is_looked_at = hedged = suspected = False
    since = 0.0
    was_cut: Cut | None = None
    answer: list[range] | None = None
    context: Context | None = None
    _connection: Connection | Opening | Turn | None = None

    def __init__(
        self,
        server: TicketServer,
        table: TicketTable,
        n: int,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.server, self.table, self.n, self.loop = server, table, n, loop
        self._lock = threading.Lock()

    def board(self, connection: Connection | Opening | Turn) -> None:
        """From now on the draw waits for an answer on this connection, or for it to be there."""
        with self._lock:
            self._connection, self.since = connection, time.monotonic()

    def leave(self) -> None:
        """It waits no longer."""
        with self._lock:
            self._connection = None

    def waits(self, seconds: float, now: float) -> bool:
        """Whether it has waited for so long, for an answer that has not even come in."""
        age = now - self.since
        if age <= seconds:
            return False
        with self._lock:
            connection = None if self.was_cut else self._connection
            if connection is None or not connection.can_be_cut or age <= connection.patience:
                return False
            return not connection.has_answer

    def cut(self, why: Cut, answer: list[range] | None = None) -> bool:
        """Let the caller go on: with an answer, or to the next server.

        Returns:
            False when it does not wait any more; the answer is not used, and is a gap.
        """
        with self._lock:
            if self._connection is None or self.was_cut is not None:
                return False
            self.was_cut, self.answer = why, answer
            self._connection.cut()
            return True
