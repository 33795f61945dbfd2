"""Pools whose processes make ids, with short leases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool

#: ``open_pool(urls, node_lease=...)``, with the table of node numbers, closed after the test.
OpenPool = Callable[..., TicketPool]


@pytest.fixture
def open_pool() -> Iterator[OpenPool]:
    pools: list[TicketPool] = []

    def make(urls: list[URL], node_lease: float = 60.0) -> TicketPool:
        pools.append(TicketPool(urls, node_lease=node_lease))
        pools[-1].create_node_table()
        return pools[-1]

    yield make
    for pool in pools:
        pool.dispose()


@pytest.fixture
def files(tmp_path: Path) -> list[URL]:
    """Two ticket servers that cost no time to start."""
    return [URL.create("sqlite", database=str(tmp_path / f"tickets{n}.db")) for n in (1, 2)]


@pytest.fixture
def pool(files: list[URL], open_pool: OpenPool) -> TicketPool:
    return open_pool(files)
