"""An application's database of each kind, with tickets of two ticket servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, MetaData, create_engine

from sqla_tickets import TicketPool
from tests.support.counting import Site

Serve = Callable[[MetaData], Site]


@pytest.fixture
def app(app_url: URL) -> Iterator[Engine]:
    """An application's engine; the test runs once for each kind of database."""
    engine = create_engine(app_url)
    yield engine
    engine.dispose()


@pytest.fixture
def tickets(tmp_path: Path) -> Iterator[TicketPool]:
    """Two ticket servers that cost no time to start: files of SQLite."""
    files = [tmp_path / f"odd-and-even-{n}.db" for n in (1, 2)]
    with TicketPool([f"sqlite:///{file}" for file in files]) as pool:
        yield pool


@pytest.fixture
def serve(app: Engine, tickets: TicketPool) -> Iterator[Serve]:
    """Create an application's tables and serve their sequences."""
    served: list[MetaData] = []

    def serve(metadata: MetaData) -> Site:
        served.append(metadata)
        return Site(app, tickets, metadata)

    yield serve
    for metadata in served:
        tickets.detach(metadata)
