"""What a process knows of its ticket servers, for Prometheus (``pip install 'sqla-tickets[prometheus]'``).

::

    from prometheus_client import REGISTRY
    from sqla_tickets.metrics import TicketCollector

    REGISTRY.register(TicketCollector(tickets))

A scrape sends nothing to any server: it reads what the draws have left behind, and what was counted
since the collector was made (`TicketEvents`). A fork counts for itself, from 0. What only the servers
know, such as the last ticket that anybody drew, is asked for where that is wanted: ``TicketCollector(
tickets, ask=True)``, in one process for all, as ``sqla-tickets metrics`` does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .counting import BOUNDS, Counting, Counts
from .health import BreakerState
from .moves import names
from .statements import largest_ticket
from .survey import last_tickets

if TYPE_CHECKING:
    from .pool import TicketPool
    from .server import TicketServer
    from .ticket_table import TicketTable

__all__ = ["TicketCollector"]

_PREFIX: Final = "sqla_tickets_"
_STATES: tuple[BreakerState, ...] = ("closed", "open", "quarantined")
_LABELS: Final = ("pool", "sequence", "server")
#: Seconds over which a rate is measured, at least; at most twice that.
_WINDOW: Final = 1800.0
#: Seconds beyond which no end is told: a thousand years.
_FAR: Final = 1000 * 365.25 * 86400


class _Seen(NamedTuple):
    number: int
    at: float


class TicketCollector(Collector):
    """Metrics of some pools, one time series per sequence and server.

    Args:
        pools: whose servers they are about.
        ask: whether every scrape asks the servers for their last tickets, those of tables that
            this process has not drawn from included. A server that is down costs a time-out.
        sequences: more names to ask for.
    """

    def __init__(
        self, *pools: TicketPool, ask: bool = False, sequences: Iterable[str] = ()
    ) -> None:
        self._pools, self._ask, self._sequences = pools, ask, tuple(sequences)
        self._counting = Counting(pools)
        self._rates: dict[tuple[str, str, str], tuple[_Seen, _Seen]] = {}

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering it asks no server."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One record of each kind, for every table that is known."""
        last: dict[tuple[str, str, str], int] = {}
        for pool in self._pools if self._ask else ():
            answers = last_tickets(pool, {*self._sequences, *names(pool)})
            for (name, server), answer in answers.items():
                last[pool.name, name, str(server)] = answer if isinstance(answer, int) else 0
        yield from self._of_tables(last)
        yield from self._of_servers()
        counts = self._counting.counts
        with counts.lock:
            found = [*_counters(counts), _histogram(counts)]
        yield from found

    def _of_tables(self, last: Mapping[tuple[str, str, str], int]) -> Iterator[Metric]:
        draws = CounterMetricFamily(
            _PREFIX + "draws", "Draws of this process that were answered.", labels=_LABELS
        )
        gauges = {
            name: GaugeMetricFamily(_PREFIX + name, text, labels=_LABELS)
            for name, text in (
                ("last_id", "The largest ticket that this process has seen or heard of."),
                ("lead", "How far it is above the server that is the least far."),
                ("capacity_ratio", "Which part of the numbers is used; 1 is the end."),
                ("exhaustion_timestamp_seconds", "When the end is reached at the present rate."),
                ("quarantined", "Whether the table broke a promise, and is not drawn from."),
            )
        }
        remaining = GaugeMetricFamily(
            _PREFIX + "range_remaining",
            "Tickets that this process has in hand.",
            labels=("pool", "sequence"),
        )
        for pool in self._pools:
            tables = _tables(pool)
            for name in sorted({table.name for _, table in tables}):
                remaining.add_metric((pool.name, name), pool.in_hand(name))
            numbers = {
                (server, table.name): max(
                    table.known, last.get((pool.name, table.name, str(server)), 0)
                )
                for server, table in tables
            }
            for server, table in tables:
                labels = pool.name, table.name, str(server)
                number = numbers[server, table.name]
                least = min(n for (_, name), n in numbers.items() if name == table.name)
                largest = largest_ticket(table.note.bits if table.note else 64)
                end = self._end(labels, number, largest)
                draws.add_metric(labels, table.draws)
                gauges["last_id"].add_metric(labels, number)
                gauges["lead"].add_metric(labels, number - least)
                gauges["capacity_ratio"].add_metric(labels, number / largest)
                gauges["quarantined"].add_metric(labels, table.breaker.state == "quarantined")
                if end is not None:
                    gauges["exhaustion_timestamp_seconds"].add_metric(labels, end)
        yield from (draws, *gauges.values(), remaining)

    def _end(self, labels: tuple[str, str, str], number: int, largest: int) -> float | None:
        """When a table has no number left, at the rate since an earlier scrape; None if unknown."""
        now = _Seen(number, time.time())
        since, later = self._rates.get(labels, (now, now))
        if now.at - later.at > _WINDOW:
            since, later = later, now
        self._rates[labels] = since, later
        drawn, seconds = number - since.number, now.at - since.at
        if drawn <= 0 or seconds <= 0 or (largest - number) * seconds / drawn > _FAR:
            return None
        return now.at + (largest - number) * seconds / drawn

    def _of_servers(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            _PREFIX + "server_state",
            "1 for the state that the server is in, as this process sees it.",
            labels=("pool", "server", "state"),
        )
        flights = GaugeMetricFamily(
            _PREFIX + "draws_in_flight", "Draws that wait for it now.", labels=("pool", "server")
        )
        for pool in self._pools:
            for server in pool.servers:
                for each in _STATES[:2]:
                    state.add_metric((pool.name, str(server), each), server.breaker.state == each)
                flights.add_metric((pool.name, str(server)), len(server.flights))
        yield state
        yield flights


def _counters(counts: Counts) -> Iterator[Metric]:
    for name, text, labels, counted in (
        ("drawn", "Tickets that were drawn.", _LABELS, counts.drawn),
        ("errors", "Draws that failed.", (*_LABELS, "kind"), counts.errors),
        (
            "failovers",
            "Draws that this server has failed, and another was asked.",
            ("pool", "server"),
            counts.failovers,
        ),
        (
            "hedges",
            "Draws sent to this server as another kept them waiting; won: it was the first.",
            ("pool", "server", "outcome"),
            counts.hedges,
        ),
        (
            "discarded",
            "Tickets that were drawn and are given to nobody.",
            ("pool", "sequence", "reason"),
            counts.discarded,
        ),
        (
            "violations",
            "Promises that the server broke.",
            ("pool", "server", "kind"),
            counts.violations,
        ),
    ):
        family = CounterMetricFamily(_PREFIX + name, text, labels=labels)
        for values, count in counted.items():
            family.add_metric([str(value) for value in values], count)
        yield family


def _histogram(counts: Counts) -> Metric:
    family = HistogramMetricFamily(
        _PREFIX + "draw_seconds", "How long answered draws took.", labels=("pool", "server")
    )
    for values, within in counts.within.items():
        bounds = (*map(str, BOUNDS), "+Inf")
        buckets = list(zip(bounds, accumulate(within), strict=True))
        family.add_metric([str(value) for value in values], buckets, counts.seconds[values])
    return family


def _tables(pool: TicketPool) -> list[tuple[TicketServer, TicketTable]]:
    return [
        (server, table)
        for server in pool.servers
        for table in server.known_tables()
        if table.name and (table.known or table.errors)
    ]
