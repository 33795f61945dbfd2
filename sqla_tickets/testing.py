"""Ticket servers for the tests of an application: in memory, or fresh databases on real servers.

::

    import pytest
    from sqla_tickets.testing import servers_in_memory

    @pytest.fixture(autouse=True)
    def tickets():
        with servers_in_memory(Base.metadata) as pool:
            yield pool

Those in memory are real ones, of SQLite: what is drawn, checked, refused and raised is what a pair in
production does. They live in this process and are gone at the end. `servers_at` is the same on servers of
the kind that stands in production, wherever they are; `sqla_tickets.fixtures` has both for pytest.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from sqlalchemy import URL, Engine, MetaData, create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from .errors import TicketArgumentError, TicketServerError
from .pool import TicketPool

__all__ = ["servers_at", "servers_in_containers", "servers_in_memory"]

#: What creates databases for a driver that cannot do it outside of an event loop.
_SYNCHRONOUS = {
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
    "postgresql": "postgresql+psycopg",
}


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
    with _serving(["sqlite://"] * servers, metadatas, stride, name) as pool:
        yield pool


@contextmanager
def servers_at(
    urls: Sequence[str | URL],
    *metadatas: MetaData,
    stride: int | None = None,
    name: str = "default",
) -> Generator[TicketPool]:
    """The same on servers of yours: in a fresh database on each, which is dropped at the end.

    Two runs at the same time do not meet, and nothing that was there is touched.

    Args:
        urls: of the servers, of MySQL, MariaDB or PostgreSQL. Their users may create databases named
            ``tickets_...``, and drop them. The database of a URL is only connected to, if it has one.
        metadatas: whose sequences are created and served.
        stride: as of the pool that stands in production; None for the number of servers.
        name: of the pool.

    Raises:
        TicketArgumentError: there is no URL, or one of another kind of server.
        TicketServerError: a database cannot be created there.
    """
    if not urls:
        raise TicketArgumentError("servers_at() needs the URL of one server or more")
    with ExitStack() as created:
        fresh = [created.enter_context(_fresh_database(make_url(url))) for url in urls]
        yield created.enter_context(_serving(fresh, metadatas, stride, name))


@contextmanager
def servers_in_containers(image: str = "mysql:8.4", servers: int = 2) -> Generator[list[str]]:
    """MySQL in Docker, for `servers_at`: the URLs of new containers, which are removed at the end.

    Needs ``pip install testcontainers`` and a Docker engine. It takes seconds: once in a run of tests.

    Args:
        image: of MySQL.
        servers: how many.

    Raises:
        ImportError: testcontainers is not installed.
    """
    from testcontainers.community.mysql import MySqlContainer  # noqa: PLC0415  # optional

    with ExitStack() as started:
        password = secrets.token_hex(8)
        yield [
            str(
                started.enter_context(
                    MySqlContainer(
                        image, dialect="pymysql", username="root", root_password=password
                    )
                ).get_connection_url()
            )
            for _ in range(servers)
        ]


@contextmanager
def _serving(
    servers: Sequence[str | URL], metadatas: Sequence[MetaData], stride: int | None, name: str
) -> Generator[TicketPool]:
    with TicketPool(servers, stride=stride, name=name) as pool, ExitStack() as served:
        for metadata in metadatas:
            served.enter_context(pool.attached(metadata))
            pool.create_all(metadata)
        yield pool


@contextmanager
def _fresh_database(url: URL) -> Generator[URL]:
    backend = url.get_backend_name()
    if backend not in _SYNCHRONOUS:
        raise TicketArgumentError(
            f"servers_at() creates databases on MySQL, MariaDB and PostgreSQL, not on {backend}:"
            " servers_in_memory() needs no server"
        )
    name = f"tickets_{secrets.token_hex(6)}"
    drivername = _SYNCHRONOUS[backend] if url.get_dialect().is_async else url.drivername
    database = url.database or ("postgres" if backend == "postgresql" else None)
    # PostgreSQL does not drop a database that somebody is connected to.
    force = " WITH (FORCE)" if backend == "postgresql" else ""
    engine = create_engine(
        url.set(drivername=drivername, database=database),
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
    )
    try:
        _send(engine, f"CREATE DATABASE {name}")
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", error)).replace(str(url.password), "***")
        raise TicketServerError(
            f"no database for tests on {backend}://{url.host}: {said}: is it running, and may its user"
            " create databases named tickets_...?"
        ) from None
    try:
        yield url.set(database=name)
    finally:
        _send(engine, f"DROP DATABASE {name}{force}")


def _send(engine: Engine, statement: str) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
