"""Two pools of two servers each, as before and after a move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from tests.support.servers import ServerFixtures


@pytest.fixture
def media_urls(ticket_kind: str, servers: ServerFixtures, tmp_path: Path) -> list[URL]:
    """Two more empty ticket databases, on the servers of `ticket_urls`."""
    if ticket_kind == "sqlite":
        files = [tmp_path / f"media{n}.db" for n in range(2)]
        return [URL.create("sqlite+pysqlite", database=str(file)) for file in files]
    return [servers.fresh_database(servers.shared(ticket_kind, n)) for n in range(2)]


@pytest.fixture
def default(ticket_urls: list[URL]) -> Iterator[TicketPool]:
    with TicketPool(ticket_urls) as pool:
        yield pool


@pytest.fixture
def media(media_urls: list[URL]) -> Iterator[TicketPool]:
    with TicketPool(media_urls, name="media") as pool:
        yield pool
