"""A pool whose tickets no database would make by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import MetaData

from sqla_tickets import TicketPool

#: The first ticket of each sequence: far above what a database numbers, and what a library invents.
FIRST = 10**12


class Tickets(NamedTuple):
    """A pool, and how to serve a library's MetaDatas with it."""

    pool: TicketPool
    urls: list[str]
    serve: Callable[..., None]

    def assert_issued(self, ids: Iterable[object], sequence: str) -> None:
        """Check that ids are tickets of a sequence, each of them once."""
        found = list(ids)
        assert found
        assert len(set(found)) == len(found), f"an id twice: {found}"
        statuses = [each for each in self.pool.status([sequence]) if each.sequence == sequence]
        largest = max(status.last_ticket or 0 for status in statuses)
        assert all(isinstance(n, int) and FIRST <= n <= largest for n in found), found


@pytest.fixture
def tickets(tmp_path: Path) -> Iterator[Tickets]:
    """Two ticket servers, in files of SQLite."""
    urls = [f"sqlite:///{tmp_path}/tickets{n}.db" for n in (1, 2)]
    with ExitStack() as served, TicketPool(urls, stride=4) as pool:

        def serve(*metadatas: MetaData) -> None:
            """Attach the pool until the end of the test, and create its sequences."""
            served.enter_context(pool.attached(*metadatas))
            for name in pool.declared_sequences():
                pool.create_table(name, start=FIRST)

        yield Tickets(pool, urls, serve)
