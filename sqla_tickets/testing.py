"""Ticket servers for the tests of an application, which then need no database server.

::

    import pytest
    from sqla_tickets.testing import servers_in_memory

    @pytest.fixture(autouse=True)
    def tickets():
        with servers_in_memory(Base.metadata) as pool:
            yield pool

They are real ones, of SQLite: what is drawn, checked, refused and raised is what a pair in production does.
They live in this process and are gone at the end.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from sqlalchemy import MetaData

from .pool import TicketPool

__all__ = ["servers_in_memory"]


@contextmanager
def servers_in_memory(
    *metadatas: MetaData, servers: int = 2, stride: int | None = None, name: str = "default"
) -> Generator[TicketPool]:
    """A pool of servers in memory that serves some MetaDatas for a while; their sequences begin anew.

    At the end each MetaData is served again by the pool that it had before.

    Args:
        metadatas: whose sequences are created and served.
        servers: how many.
        stride: as of the pool that stands in production; None for the number of servers.
        name: of the pool.
    """
    with (
        TicketPool(["sqlite://"] * servers, stride=stride, name=name) as pool,
        ExitStack() as served,
    ):
        for metadata in metadatas:
            served.enter_context(pool.attached(metadata))
            pool.create_all(metadata)
        yield pool
