"""Pools whose processes make ids, with short leases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import NodeLeases, TicketPool

#: ``open_pool(urls, duration=...)``, with the table of node numbers, closed after the test.
OpenPool = Callable[..., TicketPool]


@pytest.fixture
def open_pool() -> Iterator[OpenPool]:
    pools: list[TicketPool] = []

    def make(urls: list[URL], duration: float = 60.0) -> TicketPool:
        pools.append(TicketPool(urls))
        NodeLeases(pools[-1], duration=duration).create_table()
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
