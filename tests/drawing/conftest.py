"""Pools that close what they opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from sqlalchemy import URL, Engine

from sqla_tickets import TicketPool, TicketServer

OpenPool = Callable[..., TicketPool]


@pytest.fixture
def open_pool() -> Iterator[OpenPool]:
    """Make a pool as ``TicketPool`` does, closed after the test.

    It does not hedge, unless a test asks for it: how many draws are sent, and to which server, must not
    depend on how busy the machine is.
    """
    pools: list[TicketPool] = []

    def make(
        servers: Sequence[str | URL | Engine | TicketServer],
        stride: int | None = None,
        *,
        hedge: bool | None = False,
    ) -> TicketPool:
        pools.append(TicketPool(servers, stride=stride, hedge=hedge))
        return pools[-1]

    yield make
    for pool in pools:
        pool.dispose()


@pytest.fixture
def pool(ticket_urls: list[URL], open_pool: OpenPool) -> TicketPool:
    """A pool of two servers of each kind, with an empty sequence ``photos``."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos")
    return pool
