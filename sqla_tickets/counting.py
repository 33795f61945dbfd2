"""Counting what pools tell by their events, for `metrics`; a fork counts for itself, from 0."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sqlalchemy import event

from .errors import GivenUp, TicketError

if TYPE_CHECKING:
    from .events import Draw
    from .pool import TicketPool
    from .server import TicketServer

__all__ = ["BOUNDS", "Counting", "Counts", "Key"]

#: Seconds of a draw, for the histogram: a tenth of a millisecond on loopback, and up to a time-out.
BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # fmt: skip

_OUTCOMES: Final = ("won", "lost", "failed")
_KINDS: Final = ("residue", "regression", "conflict")

Label = object  # a name, or a server, which is made a name when it is read
Key = tuple[Label, ...]


class Counts:
    """What one process has counted, by the values of the labels.

    Args:
        places: each server, with the name of its pool; what seldom happens is counted there from 0 on.

    Attributes:
        drawn: tickets, by pool, sequence and server.
        errors: draws that failed, by pool, sequence, server and kind.
        failovers: draws that went on to another server, by pool and the server that was left.
        hedges: by pool, server and outcome.
        discarded: tickets, by pool, sequence and reason.
        violations: by pool, server and kind.
        seconds: of answered draws in all, by pool and server.
        within: how many draws took no longer than each of the `BOUNDS`, but longer than the one
            before; at last those that took longer than all.
    """

    def __init__(self, places: Sequence[tuple[str, TicketServer]]) -> None:
        self.lock = threading.Lock()
        self.drawn: Counter[Key] = Counter()
        self.errors: Counter[Key] = Counter()
        self.failovers: Counter[Key] = Counter(dict.fromkeys(places, 0))
        self.hedges: Counter[Key] = Counter({(*p, o): 0 for p in places for o in _OUTCOMES})
        self.discarded: Counter[Key] = Counter()
        self.violations: Counter[Key] = Counter({(*p, k): 0 for p in places for k in _KINDS})
        self.seconds: dict[Key, float] = {}
        self.within: dict[Key, list[int]] = {}


class Counting:
    """Listens to pools from now on.

    Args:
        pools: that are listened to.
    """

    def __init__(self, pools: Sequence[TicketPool]) -> None:
        self._places = [(pool.name, server) for pool in pools for server in pool.servers]
        self._counts: dict[int, Counts] = {}
        listeners = (
            self.drawn,
            self.failed_over,
            self.hedged,
            self.discarded,
            self.violated,
        )
        for pool in pools:
            for listener in listeners:
                event.listen(pool, listener.__name__, listener)

    @property
    def counts(self) -> Counts:
        """Those of this process."""
        pid = os.getpid()
        return self._counts.get(pid) or self._counts.setdefault(pid, Counts(self._places))

    def drawn(self, draw: Draw) -> None:
        """Count a draw that was answered, or has failed."""
        counts = self.counts
        if draw.error is None:
            place = draw.pool, draw.server
            with counts.lock:
                counts.drawn[draw.pool, draw.sequence, draw.server] += draw.tickets
                counts.seconds[place] = counts.seconds.get(place, 0.0) + draw.seconds
                within = counts.within.setdefault(place, [0] * (len(BOUNDS) + 1))
                within[bisect_left(BOUNDS, draw.seconds)] += 1
        elif isinstance(draw.error, TicketError) and not isinstance(draw.error, GivenUp):
            with counts.lock:
                counts.errors[draw.pool, draw.sequence, draw.server, draw.error.kind] += 1

    def failed_over(
        self, pool: str, sequence: str, server: TicketServer, error: TicketError
    ) -> None:
        """Count a draw that has left a server."""
        counts = self.counts
        with counts.lock:
            counts.failovers[pool, server] += 1

    def hedged(self, pool: str, sequence: str, server: TicketServer, outcome: str) -> None:
        """Count a hedge."""
        counts = self.counts
        with counts.lock:
            counts.hedges[pool, server, outcome] += 1

    def discarded(self, pool: str, sequence: str, tickets: int, reason: str) -> None:
        """Count tickets that nobody gets."""
        counts = self.counts
        with counts.lock:
            counts.discarded[pool, sequence, reason] += tickets

    def violated(self, pool: str, sequence: str, server: TicketServer, error: TicketError) -> None:
        """Count a broken promise."""
        counts = self.counts
        with counts.lock:
            counts.violations[pool, server, error.kind] += 1
