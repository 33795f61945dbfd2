"""Metrics of ticket servers for Prometheus (``pip install 'sqla-tickets[prometheus]'``).

::

    from prometheus_client import REGISTRY
    from sqla_tickets.contrib.prometheus import TicketCollector

    REGISTRY.register(TicketCollector(tickets))

A scrape sends nothing to any server: it exports what this process knows from its draws, and what the pool's events
have counted since the collector was made. A fork counts its own events, from 0. Only the servers know the last ticket
of all processes: ``TicketCollector(tickets, ask=True)`` asks them, as ``sqla-tickets metrics`` does. Use it in one
process only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from sqlalchemy import event

from ..concurrency import process_id, threading
from ..errors import DrawAbandoned, TicketError
from ..maintenance.operations import names
from ..maintenance.status import TableStatus, ask_tables, known_tables

if TYPE_CHECKING:
    from ..draw.server import TicketServer
    from ..events import Draw
    from ..pool import TicketPool

__all__ = ["Counts", "TicketCollector"]

_PREFIX: Final = "sqla_tickets_"
_TABLE: Final = ("pool", "sequence", "server")
_SERVER: Final = ("pool", "server")
#: Upper bounds of the histogram's buckets: from a tenth of a millisecond, on loopback, to a time-out.
_BUCKETS_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # fmt: skip
_HEDGE_OUTCOMES: Final = ("won", "lost", "failed")
_INTEGRITY_KINDS: Final = ("residue", "regression", "duplicate_number")

Label = object  # a name, or a server, which is made a name when it is read
Key = tuple[Label, ...]


class Counts:
    """Counters of one process's events, by the values of the labels.

    Args:
        servers: each server, with the name of its pool. Counters of their rare events start at 0.

    Attributes:
        lock: held while something is counted or read.
        drawn: tickets, by pool, sequence and server.
        errors: failed draws, by pool, sequence, server and kind.
        failovers: draws that continued on another server, by pool and the server that failed.
        hedges: the number of hedges, by pool, server and outcome.
        discarded: tickets, by pool, sequence and reason.
        integrity_errors: the number of integrity errors, by pool, server and kind.
        seconds: the sum over answered draws, by pool and server.
        buckets: how many answered draws each bucket of the histogram has, by pool and server; the last
            bucket has no upper bound.
    """

    def __init__(self, servers: Sequence[tuple[str, TicketServer]]) -> None:
        self.lock = threading.Lock()
        self.drawn: Counter[Key] = Counter()
        self.errors: Counter[Key] = Counter()
        self.failovers: Counter[Key] = Counter(dict.fromkeys(servers, 0))
        self.hedges: Counter[Key] = Counter({(*s, o): 0 for s in servers for o in _HEDGE_OUTCOMES})
        self.discarded: Counter[Key] = Counter()
        self.integrity_errors: Counter[Key] = Counter(
            {(*s, kind): 0 for s in servers for kind in _INTEGRITY_KINDS}
        )
        self.seconds: dict[Key, float] = {}
        self.buckets: dict[Key, list[int]] = {}


class TicketCollector(Collector):
    """Metrics of some pools, one time series for each sequence and server.

    Args:
        pools: the pools to describe.
        ask: whether every scrape asks the servers for their last tickets, including those of tables that
            this process has not drawn from. A server that is down costs a time-out.
        sequences: further sequences to ask about.
    """

    def __init__(
        self, *pools: TicketPool, ask: bool = False, sequences: Iterable[str] = ()
    ) -> None:
        self._pools, self._ask, self._sequences = pools, ask, tuple(sequences)
        self._servers = [(pool.name, server) for pool in pools for server in pool.servers]
        self._counts: dict[int, Counts] = {}
        listeners: dict[str, Callable[..., None]] = {
            "drawn": self._count_draw,
            "failed_over": self._count_failover,
            "hedged": self._count_hedge,
            "discarded": self._count_discarded,
            "quarantined": self._count_integrity_error,
        }
        for pool in pools:
            for name, listener in listeners.items():
                event.listen(pool, name, listener)

    @property
    def counts(self) -> Counts:
        """The counts of this process; a fork has its own."""
        pid = process_id()
        return self._counts.get(pid) or self._counts.setdefault(pid, Counts(self._servers))

    # -- listeners

    def _count_draw(self, draw: Draw) -> None:
        counts = self.counts
        if draw.error is None:
            server = draw.pool, draw.server
            with counts.lock:
                counts.drawn[draw.pool, draw.sequence, draw.server] += draw.tickets
                counts.seconds[server] = counts.seconds.get(server, 0.0) + draw.seconds
                buckets = counts.buckets.setdefault(server, [0] * (len(_BUCKETS_SECONDS) + 1))
                buckets[bisect_left(_BUCKETS_SECONDS, draw.seconds)] += 1
        elif isinstance(draw.error, TicketError) and not isinstance(draw.error, DrawAbandoned):
            with counts.lock:
                counts.errors[draw.pool, draw.sequence, draw.server, draw.error.kind] += 1

    def _count_failover(
        self, pool: str, sequence: str, server: TicketServer, error: TicketError
    ) -> None:
        counts = self.counts
        with counts.lock:
            counts.failovers[pool, server] += 1

    def _count_hedge(self, pool: str, sequence: str, server: TicketServer, outcome: str) -> None:
        counts = self.counts
        with counts.lock:
            counts.hedges[pool, server, outcome] += 1

    def _count_discarded(self, pool: str, sequence: str, tickets: int, reason: str) -> None:
        counts = self.counts
        with counts.lock:
            counts.discarded[pool, sequence, reason] += tickets

    def _count_integrity_error(
        self, pool: str, sequence: str, server: TicketServer, error: TicketError
    ) -> None:
        counts = self.counts
        with counts.lock:
            counts.integrity_errors[pool, server, error.kind] += 1

    # -- scrapes

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that registering it asks no server."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every metric, with a sample for each known table or server."""
        yield from _table_metrics([s for pool in self._pools for s in self._status(pool)])
        yield from self._server_metrics()
        counts = self.counts
        with counts.lock:
            found = [*_counters(counts), _histogram(counts)]
        yield from found

    def _status(self, pool: TicketPool) -> list[TableStatus]:
        """The known tables; with ``ask``, with the last tickets that the servers show now."""
        if not self._ask:
            return known_tables(pool)
        asked = ask_tables(pool, {*self._sequences, *names(pool)})
        now = {(s.sequence, s.server): s for s in asked}
        return [
            replace(s, last_ticket=max(s.last_ticket or 0, n.last_ticket or 0), state=n.state)
            for s in known_tables(pool)
            for n in (now.get((s.sequence, s.server), s),)
        ]

    def _server_metrics(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            _PREFIX + "server_state",
            "1 for the state of the server's circuit breaker in this process.",
            labels=(*_SERVER, "state"),
        )
        in_flight = GaugeMetricFamily(
            _PREFIX + "draws_in_flight", "Draws that wait for the server now.", labels=_SERVER
        )
        for pool, server in self._servers:
            for each in ("closed", "open"):
                state.add_metric(
                    (pool, str(server), each), server.breaker.is_closed == (each == "closed")
                )
            in_flight.add_metric((pool, str(server)), len(server.in_flight))
        yield state
        yield in_flight


def _table_metrics(statuses: Sequence[TableStatus]) -> Iterator[Metric]:
    draws = CounterMetricFamily(
        _PREFIX + "draws", "Draws of this process that were answered.", labels=_TABLE
    )
    gauges = {
        name: GaugeMetricFamily(_PREFIX + name, text, labels=_TABLE)
        for name, text in (
            (
                "last_ticket",
                "The largest ticket that this process has seen, or that the high-water marks show.",
            ),
            ("lead", "How far last_ticket is above the lowest server's."),
            ("capacity_ratio", "The fraction of the numbers that is used, 0 to 1."),
            (
                "quarantined",
                "1 while the table is quarantined, or shows a smaller number than it has issued.",
            ),
        )
    }
    buffered = GaugeMetricFamily(
        _PREFIX + "buffered", "Tickets that this process has buffered.", labels=_TABLE[:2]
    )
    least: dict[tuple[str, str], int] = {}
    for s in statuses:
        number = s.last_ticket or 0
        least[s.pool, s.sequence] = min(number, least.get((s.pool, s.sequence), number))
    for s in statuses:
        labels, number = (s.pool, s.sequence, s.server), s.last_ticket or 0
        draws.add_metric(labels, s.draws)
        gauges["last_ticket"].add_metric(labels, number)
        gauges["lead"].add_metric(labels, number - least[s.pool, s.sequence])
        used = 1.0 if s.state == "used up" else number / s.largest
        gauges["capacity_ratio"].add_metric(labels, used)
        is_old = s.breaker == "quarantined" or s.state in ("set back", "quarantined")
        gauges["quarantined"].add_metric(labels, is_old)
    for sequence, tickets in {(s.pool, s.sequence): s.buffered for s in statuses}.items():
        buffered.add_metric(sequence, tickets)
    yield from (draws, *gauges.values(), buffered)


def _counters(counts: Counts) -> Iterator[Metric]:
    for name, text, labels, counted in (
        ("drawn", "Tickets that were drawn.", _TABLE, counts.drawn),
        ("errors", "Draws that failed.", (*_TABLE, "kind"), counts.errors),
        (
            "failovers",
            "Draws that failed on this server and continued on another one.",
            _SERVER,
            counts.failovers,
        ),
        (
            "hedges",
            "Draws sent to this server because another one was slow; won: its answer was the first.",
            (*_SERVER, "outcome"),
            counts.hedges,
        ),
        (
            "discarded",
            "Tickets that were drawn but never returned to a caller.",
            ("pool", "sequence", "reason"),
            counts.discarded,
        ),
        (
            "integrity_errors",
            "Promises that the server broke.",
            (*_SERVER, "kind"),
            counts.integrity_errors,
        ),
    ):
        family = CounterMetricFamily(_PREFIX + name, text, labels=labels)
        for values, count in counted.items():
            family.add_metric([str(value) for value in values], count)
        yield family


def _histogram(counts: Counts) -> Metric:
    family = HistogramMetricFamily(
        _PREFIX + "draw_seconds", "The duration of answered draws.", labels=_SERVER
    )
    bounds = (*map(str, _BUCKETS_SECONDS), "+Inf")
    for values, counted in counts.buckets.items():
        buckets = list(zip(bounds, accumulate(counted), strict=True))
        family.add_metric([str(value) for value in values], buckets, counts.seconds[values])
    return family
