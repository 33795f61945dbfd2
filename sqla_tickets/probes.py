"""Asking a server that failed whether it is back, beside the traffic and never in it.

A probe is the only one that waits for a server which keeps silent; it ends by itself after the
server's time-outs. It is sent over a connection that is idle, where there is one, as to open one costs both
sides as much as dozens of draws; when that keeps silent, one is opened. What it was sent over may stay silent although
the server is back by then: so one that has waited for a while does not stand in the way of the next.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from .beside import beside
from .engines import LOCK_WAIT
from .errors import TicketError

if TYPE_CHECKING:
    from .server import TicketServer

__all__ = ["STALE_IN_NEED", "Probes", "probe"]

log = logging.getLogger(__name__)

#: Seconds after which a probe is not waited for any longer, and where a draw has no other hope.
STALE, STALE_IN_NEED = 0.5, 0.1
#: How many are under way at most, as each ends by itself.
MOST: Final = 16


class Probes:
    """Those of one server that are under way, since when; an answer to one ends all that are older."""

    def __init__(self) -> None:
        self._since: dict[object, float] = {}
        self._lock = threading.Lock()

    @property
    def are_under_way(self) -> bool:
        """Whether a sign of life may come any moment."""
        return bool(self._since)

    def are_awaited(self, alive_at: float) -> bool:
        """Whether one is under way, and nothing was heard of the server since it has begun."""
        return any(since > alive_at for since in list(self._since.values()))

    def begin(self, stale: float) -> object | None:
        """A new one; None while another one is to be waited for.

        Args:
            stale: seconds after which one is not waited for any longer.
        """
        now, token = time.monotonic(), object()
        with self._lock:
            if self._since and now - max(self._since.values()) < stale:
                return None
            self._since[token] = now
            return token

    def counts(self, token: object, alive_at: float) -> bool:
        """Whether its failure tells anything: nothing was heard since, and no later one may be answered."""
        with self._lock:
            since = self._since.get(token)
            return since is not None and since >= max(alive_at, *self._since.values())

    def answered(self, token: object) -> None:
        """No older one says anything new, nor does this one any more."""
        with self._lock:
            since = self._since.get(token, 0.0)
            self._since = {t: s for t, s in self._since.items() if s > since}

    def ended(self, token: object) -> None:
        """This one has ended, however it did."""
        with self._lock:
            self._since.pop(token, None)


def probe(server: TicketServer, stale: float = STALE) -> None:
    """Begin to ask the server, unless it is being asked; its breaker closes when it answers.

    Args:
        server: that has failed, or is suspected to.
        stale: seconds after which what was asked before is not waited for any longer.
    """
    afresh = server.probes.are_under_way
    token = server.probes.begin(max(stale, (server.timeout + LOCK_WAIT) / MOST))
    if token is None:
        return
    server.breaker.postpone()
    name = f"sqla_tickets probe of {server}"
    # never a task: an event loop may end with the draw that has begun the probe, and end the probe
    if not beside(lambda: _ask(server, token, afresh), name, in_a_task=False):
        server.probes.ended(token)
        server.breaker.slow = False  # nobody else can find out: a draw without another hope has to


def _ask(server: TicketServer, token: object, afresh: bool) -> None:
    probes = server.probes
    try:
        server.say_hello(lambda: probes.counts(token, server.alive_at), afresh=afresh)
        probes.answered(token)
        log.info("%s answers again", server)
    except TicketError as error:
        log.info("still no ticket server: %s", error)
    finally:
        probes.ended(token)
