"""The events of a pool and their dispatcher, based on SQLAlchemy's events.

::

    from sqlalchemy import event

    @event.listens_for(tickets, "quarantined")  # or TicketPool, for every pool
    def call_somebody(pool, sequence, server, error):
        ...

There are events for draws and errors, but not for buffered tickets. Without listeners they cost nothing. Listeners are
called during a draw, in any thread or task, several at a time, so they must be quick and draw no tickets. A listener's
error is logged, and the draw continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from sqlalchemy import Engine, event

from .errors import TicketError

__all__ = ["Dispatcher", "Draw", "TicketEvents"]

log = logging.getLogger(__name__)

HedgeOutcome = Literal["won", "lost", "failed"]
DiscardReason = Literal["age", "dropped", "hedge", "shared"]


class Server(Protocol):
    """A ticket server, one of ``pool.servers``."""

    @property
    def offset(self) -> int:
        """Its residue class."""
        ...

    @property
    def engine(self) -> Engine:
        """The engine that connects to it."""
        ...


class Draw(NamedTuple):
    """One finished draw on one server.

    Attributes:
        pool: the pool's name.
        sequence: its name.
        server: the server that was asked.
        wanted: how many tickets.
        blocks: the blocks that it gave; empty when it failed.
        seconds: how long the draw took, including the opening of a connection.
        error: why it failed: a `TicketError`, or the exception that ended the caller; None if it was answered.
        is_hedge: whether it repeats an overdue draw on another server.
    """

    pool: str
    sequence: str
    server: Server
    wanted: int
    blocks: Sequence[range]
    seconds: float
    error: BaseException | None
    is_hedge: bool

    @property
    def tickets(self) -> int:
        """How many tickets it gave."""
        return sum(map(len, self.blocks))


class TicketEvents(event.Events[event.EventTarget]):
    """The events of a `TicketPool`, or on the class for all of them."""

    _target_class_doc = "tickets"

    def drawn(self, draw: Draw) -> None:
        """A draw on one server has ended, with an answer or an error."""

    def failed_over(self, pool: str, sequence: str, server: Server, error: TicketError) -> None:
        """A draw continues on another server after this one failed."""

    def hedged(self, pool: str, sequence: str, server: Server, outcome: HedgeOutcome) -> None:
        """An overdue draw was also sent to this server; ``outcome`` says whether it answered first."""

    def discarded(self, pool: str, sequence: str, tickets: int, reason: DiscardReason) -> None:
        """Drawn tickets were discarded.

        They became too old in the buffer (``age``), their sequence was raised, dropped or distrusted (``dropped``),
        another server had answered first (``hedge``), or those who shared their draw no longer waited (``shared``).
        """

    def quarantined(self, pool: str, sequence: str, server: Server, error: TicketError) -> None:
        """A server broke a promise, and its table was quarantined; ``error.kind`` says which promise."""

    def disposing(self, pool: str) -> None:
        """``pool.dispose()`` was called, but has not closed any connection yet."""

    @classmethod
    def _accept_with(cls, target: Any, identifier: str) -> Any:
        # an AsyncTicketPool
        return super()._accept_with(getattr(target, "sync_pool", target), identifier)

    @classmethod
    def _listen(cls, event_key: Any, **options: bool) -> None:
        Dispatcher.has_listeners = True
        super()._listen(event_key, **options)


class Dispatcher:
    """The dispatcher of one pool's events.

    Args:
        pool: its name.
        dispatch: of its listeners.

    Attributes:
        logs_draws: whether the log took debug messages when it was asked last.
    """

    #: Whether any pool has ever had a listener: until then a draw need not look for its own.
    has_listeners: ClassVar[bool] = False

    def __init__(self, pool: str, dispatch: Any) -> None:
        self.pool, self.dispatch = pool, dispatch
        self.read_log_level()

    def read_log_level(self) -> None:
        """Read whether the log takes a message of each draw.

        Asking the log costs each draw two calls, so draws do it ten times a second.
        """
        self.logs_draws = log.isEnabledFor(logging.DEBUG)

    def is_told_of_draws(self) -> bool:
        """Whether listeners, or the log, are told of each draw."""
        self.read_log_level()
        return self.logs_draws or bool(self.has_listeners and self.dispatch.drawn)

    def dispatch_event(self, event_name: str, *what: object) -> None:
        """Call an event's listeners with the pool's name and the event's arguments."""
        for listener in tuple(getattr(self.dispatch, event_name)):  # another thread may change them
            _call(listener, self.pool, *what)

    def discarded(self, sequence: str, tickets: int, reason: DiscardReason) -> None:
        """Dispatch `discarded` if there are discarded tickets."""
        if tickets:
            self.dispatch_event("discarded", sequence, tickets, reason)

    def drawn(self, draw: Draw, context: Context) -> None:
        """Dispatch `drawn` for a finished draw, in its caller's context."""
        found = str(draw.error) if draw.error else draw.tickets
        log.debug(
            "%r from %s, in %.1f ms: %s", draw.sequence, draw.server, 1000 * draw.seconds, found
        )
        for listener in tuple(self.dispatch.drawn):
            context.copy().run(_call, listener, draw)


def _call(listener: Callable[..., object], *what: object) -> None:
    try:
        listener(*what)
    except Exception:
        log.exception("%r has failed", listener)
