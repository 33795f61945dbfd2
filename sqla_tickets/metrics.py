"""What a process knows of its ticket servers, for Prometheus (``pip install 'sqla-tickets[prometheus]'``).

::

    from prometheus_client import REGISTRY
    from sqla_tickets.metrics import TicketCollector

    REGISTRY.register(TicketCollector(tickets))

A scrape sends nothing to any server: it reads what the draws have left behind. What only the servers know,
such as the last ticket that anybody drew, is asked for where that is wanted: ``TicketCollector(tickets,
ask=True)``, in one process for all, as ``sqla-tickets metrics`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .health import BreakerState
from .moves import names
from .statements import largest_ticket

if TYPE_CHECKING:
    from .pool import TicketPool
    from .server import TicketServer, TicketTable

__all__ = ["TicketCollector"]

_PREFIX: Final = "sqla_tickets_"
_STATES: tuple[BreakerState, ...] = ("closed", "open", "quarantined")
_LABELS: Final = ("pool", "sequence", "server")


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

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering it asks no server."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One record of each kind, for every table that is known."""
        last: dict[tuple[str, str, str], int] = {}
        for pool in self._pools if self._ask else ():
            for record in pool.status({*self._sequences, *names(pool)}):
                last[pool.name, record.sequence, record.server] = record.last_ticket or 0
        yield from self._of_tables(last)
        yield from self._of_servers()

    def _of_tables(self, last: Mapping[tuple[str, str, str], int]) -> Iterator[Metric]:
        counters = {
            "draws": CounterMetricFamily(
                _PREFIX + "draws", "Draws of this process that were answered.", labels=_LABELS
            ),
            "errors": CounterMetricFamily(
                _PREFIX + "errors", "Draws of this process that failed.", labels=_LABELS
            ),
        }
        gauges = {
            name: GaugeMetricFamily(_PREFIX + name, text, labels=_LABELS)
            for name, text in (
                ("last_id", "The largest ticket that this process has seen or heard of."),
                ("lead", "How far it is above the server that is the least far."),
                ("capacity_ratio", "Which part of the numbers is used; 1 is the end."),
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
                    table.high_water, last.get((pool.name, table.name, str(server)), 0)
                )
                for server, table in tables
            }
            for server, table in tables:
                labels = pool.name, table.name, str(server)
                number = numbers[server, table.name]
                least = min(n for (_, name), n in numbers.items() if name == table.name)
                largest = largest_ticket(table.note.bits if table.note else 64)
                counters["draws"].add_metric(labels, table.draws)
                counters["errors"].add_metric(labels, table.errors)
                gauges["last_id"].add_metric(labels, number)
                gauges["lead"].add_metric(labels, number - least)
                gauges["capacity_ratio"].add_metric(labels, number / largest)
                gauges["quarantined"].add_metric(labels, table.breaker.state == "quarantined")
        yield from (*counters.values(), *gauges.values(), remaining)

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


def _tables(pool: TicketPool) -> list[tuple[TicketServer, TicketTable]]:
    return [
        (server, table)
        for server in pool.servers
        for table in server.known_tables()
        if table.name and (table.high_water or table.errors)
    ]
