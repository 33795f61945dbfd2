"""Ticket servers for the tests of an application: in memory, or fresh databases on real servers.

::

    import pytest
    from sqla_tickets.testing import servers_in_memory

    @pytest.fixture(autouse=True)
    def tickets():
        with servers_in_memory(Base.metadata) as pool:
            yield pool

Servers in memory are real ones, on SQLite: they issue, check and refuse tickets as servers in production do. They
live in this process until the end. `servers_at` creates fresh databases on servers of the kind that runs in
production; `pytest_plugin` in this package has fixtures for both.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from sqlalchemy import URL, Engine, MetaData
from sqlalchemy.exc import SQLAlchemyError

from ..connect.engines import engine_for
from ..connect.failures import without_password
from ..connect.timeouts import Timeouts
from ..dialects import class_of
from ..errors import TicketArgumentError, TicketServerError
from ..pool import TicketPool

__all__ = ["servers_at", "servers_in_memory"]

#: Of the connections that create and drop databases: enough for a busy server, and an end for one that was stopped.
_TIMEOUTS: Final = Timeouts(timeout_seconds=5.0, lock_wait_seconds=5.0)


@contextmanager
def servers_in_memory(
    *metadatas: MetaData, servers: int = 2, stride: int | None = None, name: str = "default"
) -> Generator[TicketPool]:
    """A pool of servers in memory that serves some MetaDatas; their sequences begin anew.

    At the end, the previous pools serve the MetaDatas again.

    Args:
        metadatas: whose sequences are created and served.
        servers: how many.
        stride: the stride of the pool in production; None for the number of servers.
        name: the pool's name.
    """
    with _serving(["sqlite://"] * servers, metadatas, stride, name) as pool:
        yield pool


@contextmanager
def servers_at(
    urls: Sequence[str | URL],
    *metadatas: MetaData,
    stride: int | None = None,
    name: str = "default",
) -> Generator[TicketPool]:
    """A pool on your own servers, with a fresh database on each, which is dropped at the end.

    Simultaneous runs do not affect each other, and existing databases are not changed.

    Args:
        urls: the URLs of MySQL, MariaDB or PostgreSQL servers. Their users may create databases named
            ``tickets_...``, and drop them. If a URL names a database, it is only used to connect.
        metadatas: whose sequences are created and served.
        stride: the stride of the pool in production; None for the number of servers.
        name: the pool's name.

    Raises:
        TicketArgumentError: there is no URL, or one cannot be read, or is of another kind of server.
        TicketServerError: a database cannot be created there.
    """
    if not urls or isinstance(urls, (str, URL)):
        raise TicketArgumentError("servers_at() needs a list of the URLs of one or more servers")
    with ExitStack() as created:
        known = [engine_for(url, _TIMEOUTS).url for url in urls]
        fresh = [created.enter_context(_fresh_database(url)) for url in known]
        yield created.enter_context(_serving(fresh, metadatas, stride, name))


class _PoolInOrder(TicketPool):
    """A pool that begins with its first server, so that a test gets the same ids in each run."""

    _random_start = staticmethod(lambda: 0)


@contextmanager
def _serving(
    servers: Sequence[str | URL], metadatas: Sequence[MetaData], stride: int | None, name: str
) -> Generator[TicketPool]:
    pool = _PoolInOrder(servers, stride=stride, name=name)
    try:
        with pool, ExitStack() as served:
            for metadata in metadatas:
                served.enter_context(pool.attached(metadata))
                pool.create_all(metadata)
            yield pool
    finally:
        for server in pool.servers:  # a database in memory lives in its engine's connection
            server.engine.dispose()


@contextmanager
def _fresh_database(url: URL) -> Generator[URL]:
    backend = url.get_backend_name()
    dialect = class_of(url.get_dialect().name)
    if dialect.is_embedded:
        raise TicketArgumentError(
            f"servers_at() creates databases on servers, not on {backend}:"
            " servers_in_memory() needs no server"
        )
    name = f"tickets_{secrets.token_hex(6)}"
    drivername = url.drivername
    if url.get_dialect().is_async:
        drivername = f"{backend}+{dialect.synchronous_driver}"
    database = url.database or dialect.maintenance_database
    engine = engine_for(url.set(drivername=drivername, database=database), _TIMEOUTS)
    engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    try:
        _send(engine, f"CREATE DATABASE {name}")
    except SQLAlchemyError as error:
        raise TicketServerError(
            f"no database for tests on {backend}://{url.host}: {_reason(error, url)}: check that the server is running,"
            " and that its user may create databases named tickets_..."
        ) from None
    try:
        yield url.set(database=name)
    finally:
        try:
            _send(engine, dialect.drop_database.format(name))
        except SQLAlchemyError as error:  # a test may have stopped the server
            left = f"the database {name} is left on {backend}://{url.host}: {_reason(error, url)}"
            warnings.warn(left, stacklevel=2)


def _send(engine: Engine, statement: str) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)


def _reason(error: SQLAlchemyError, url: URL) -> str:
    return without_password(str(getattr(error, "orig", error)), url)
