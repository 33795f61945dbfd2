"""The metrics of one worker: its requests, and its pools' metrics if prometheus_client is installed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ..concurrency import process_id
from ..contrib.prometheus import TicketCollector
from ..pool import TicketPool

_PREFIX: Final = "sqla_tickets_http_"


class Metrics:
    """The metrics that a scrape exports.

    Args:
        pools: the pool that draws, and those to which its sequences may move.
        is_one_of_many: whether other workers answer at the same address; then each sample has the label
            ``worker``, with the number of the process.
    """

    def __init__(self, pools: Iterable[TicketPool], *, is_one_of_many: bool) -> None:
        self._registry, own = CollectorRegistry(), CollectorRegistry()
        own.register(TicketCollector(*pools))
        requests = Counter(
            _PREFIX + "requests", "Requests for tickets.", ("sequence", "code"), registry=own
        )
        tickets = Counter(
            _PREFIX + "tickets",
            "Tickets in responses, whether a client has received them or not.",
            ("sequence",),
            registry=own,
        )
        # the names are those of sequences that are there
        self._requests_of = functools.cache(requests.labels)
        self._tickets_of = functools.cache(tickets.labels)
        self._registry.register(_OfWorker(own) if is_one_of_many else own)

    def count(self, sequence: str, code: int, tickets: int = 0) -> None:
        """Count a request.

        Args:
            sequence: its name; empty if there is no such sequence.
            code: the status code of the response.
            tickets: how many are in it.
        """
        self._requests_of(sequence, code).inc()
        if tickets:
            self._tickets_of(sequence).inc(tickets)

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """The metrics, and their content type, in the format that the client accepts."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _OfWorker(Collector):
    """Metrics with a label for the process that has counted them."""

    def __init__(self, inner: Collector) -> None:
        self._inner = inner

    def collect(self) -> Iterator[Metric]:
        worker = {"worker": str(process_id())}
        for metric in self._inner.collect():
            metric.samples = [
                sample._replace(labels={**sample.labels, **worker}) for sample in metric.samples
            ]
            yield metric
