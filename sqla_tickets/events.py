"""What a pool tells those who listen, by SQLAlchemy's events.

::

    from sqlalchemy import event

    @event.listens_for(tickets, "violated")  # or TicketPool, for every pool
    def call_somebody(pool, sequence, server, error):
        ...

They are told of draws, and of what goes wrong: never of a ticket that was in hand already. Where nobody listens
that costs nothing. Listeners are called in the midst of a draw, by any thread or task, a few at a
time: they have to be quick, and draw no tickets themselves. One that fails is logged, and stops nobody.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import event

from .errors import TicketError

if TYPE_CHECKING:
    from .flight import Flight
    from .server import TicketServer

__all__ = ["Draw", "Moments", "TicketEvents"]

log = logging.getLogger(__name__)

HedgeOutcome = Literal["won", "lost", "failed"]
DiscardReason = Literal["age", "dropped", "hedge"]


class Draw(NamedTuple):
    """One draw on one server, which has ended.

    Attributes:
        pool: the pool's name.
        sequence: its name.
        server: that was asked.
        wanted: how many tickets.
        blocks: that it has given; empty when it failed.
        seconds: from the question to its end, the opening of a connection included.
        error: why it failed; None when it was answered. A `TicketError`, or what has ended the caller.
        is_hedge: whether it repeats a draw that another server left waiting.
    """

    pool: str
    sequence: str
    server: TicketServer
    wanted: int
    blocks: Sequence[range]
    seconds: float
    error: BaseException | None
    is_hedge: bool

    @property
    def tickets(self) -> int:
        """How many it has given."""
        return sum(map(len, self.blocks))


class TicketEvents(event.Events[event.EventTarget]):
    """What can be listened to on a `TicketPool`, or on the class for all of them."""

    _target_class_doc = "tickets"

    def drawn(self, draw: Draw) -> None:
        """A draw on one server has ended, with an answer or an error."""

    def failed_over(
        self, pool: str, sequence: str, server: TicketServer, error: TicketError
    ) -> None:
        """A draw goes on to another server after this one has failed."""

    def hedged(self, pool: str, sequence: str, server: TicketServer, outcome: HedgeOutcome) -> None:
        """A server was asked since another one kept a draw waiting, and was the first or not."""

    def discarded(self, pool: str, sequence: str, tickets: int, reason: DiscardReason) -> None:
        """Tickets that were drawn are given to nobody.

        They became too old in hand (``age``), were dropped as the sequence was raised, dropped or
        distrusted (``dropped``), or another server had answered before (``hedge``).
        """

    def violated(self, pool: str, sequence: str, server: TicketServer, error: TicketError) -> None:
        """A server broke a promise, and is not drawn from again; ``error.kind`` says which."""


class Moments:
    """Tells those who listen to one pool.

    Args:
        pool: its name.
        dispatch: of its listeners.
    """

    def __init__(self, pool: str, dispatch: Any) -> None:
        self._pool, self._dispatch = pool, dispatch

    def tell(self, moment: str, *what: object) -> None:
        """Call the listeners to a moment with the name of the pool and what has happened."""
        for listener in tuple(getattr(self._dispatch, moment)):  # they may change meanwhile
            _call(listener, self._pool, *what)

    def discarded(self, sequence: str, tickets: int, reason: DiscardReason) -> None:
        """Tell of tickets that nobody gets, if there are any."""
        if tickets:
            self.tell("discarded", sequence, tickets, reason)

    def draw(self, flight: Flight, draw: Callable[[Flight], list[range]]) -> list[range]:
        """Do a draw, and tell of it where somebody listens, or reads the log."""
        if not self._dispatch.drawn and not log.isEnabledFor(logging.DEBUG):
            return draw(flight)
        began = time.monotonic()
        if flight.context is None:
            flight.context = copy_context()
        try:
            blocks = draw(flight)
        except BaseException as error:
            self._drawn(flight, began, [], error)
            raise
        self._drawn(flight, began, blocks, None)
        return blocks

    def _drawn(
        self, flight: Flight, began: float, blocks: list[range], error: BaseException | None
    ) -> None:
        seconds, asked = time.monotonic() - began, (flight.table.name, flight.server, flight.n)
        draw = Draw(self._pool, *asked, blocks, seconds, error, flight.is_hedge)
        found = str(error) if error else draw.tickets
        log.debug("%r from %s, in %.1f ms: %s", draw.sequence, draw.server, 1000 * seconds, found)
        for listener in tuple(self._dispatch.drawn):
            if flight.context is not None:
                flight.context.copy().run(_call, listener, draw)


def _call(listener: Callable[..., object], *what: object) -> None:
    try:
        listener(*what)
    except Exception:
        log.exception("%r has failed", listener)
