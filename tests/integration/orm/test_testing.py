"""Servers in memory, for the tests of an application."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import URL, BigInteger, Column, MetaData, Table, create_engine, insert, select

from sqla_tickets import (
    PoolNotAttached,
    TicketArgumentError,
    TicketPool,
    TicketSequence,
    TicketServerError,
    TicketTableMissing,
)
from sqla_tickets.testing import servers_at, servers_in_memory
from tests.support.draws import run
from tests.support.servers import PASSWORD, ServerFixtures

REPOSITORY = Path(__file__).parents[3]
SERVERS = pytest.mark.ticket_servers("mariadb", "mysql", "postgresql")


@pytest.fixture
def metadata() -> MetaData:
    metadata = MetaData()
    Table("photos", metadata, Column("id", BigInteger, TicketSequence(), primary_key=True))
    other = TicketSequence(pool="media")
    Table("films", metadata, Column("id", BigInteger, other, primary_key=True))
    return metadata


def inserted(metadata: MetaData, table: str = "photos", rows: int = 3) -> list[int]:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        connection.execute(insert(metadata.tables[table]), [{}] * rows)
        found = list(connection.scalars(select(metadata.tables[table].c.id)))
    engine.dispose()
    return found


def test_they_serve_for_a_while(metadata: MetaData) -> None:
    with servers_in_memory(metadata) as pool:
        first = inserted(metadata)
        assert len(set(first)) == 3
        assert [s.last_ticket for s in pool.status() if s.sequence == "photos"]
    with pytest.raises(PoolNotAttached):
        inserted(metadata)
    with servers_in_memory(metadata):
        assert inserted(metadata) == first


def test_no_connection_to_memory_stays_open(metadata: MetaData) -> None:
    with servers_in_memory(metadata) as pool:
        inserted(metadata)
        raw = [server.engine.raw_connection().driver_connection for server in pool.servers]
    for connection in raw:
        assert isinstance(connection, sqlite3.Connection)
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_the_pool_that_was_there_comes_back(metadata: MetaData) -> None:
    with TicketPool(["sqlite://"], stride=16) as before:
        before.attach(metadata)
        with servers_in_memory(metadata, servers=3, stride=16):
            inserted(metadata)
        with pytest.raises(TicketTableMissing):
            inserted(metadata)
        before.create_all(metadata)
        assert inserted(metadata, rows=2) == [17, 33]


def test_pools_of_other_names(metadata: MetaData) -> None:
    with servers_in_memory(metadata), servers_in_memory(metadata, name="media", servers=1):
        assert inserted(metadata, "films") == [2, 3, 4]
        assert len(inserted(metadata)) == 3


@pytest.fixture
def real_urls(ticket_kind: str, servers: ServerFixtures) -> list[URL]:
    """Two servers, as users who may create databases."""
    found = [servers.shared(ticket_kind, n) for n in range(2)]
    return [server.url(user=server.root) for server in found]


def databases(url: URL) -> set[str]:
    is_postgresql = url.get_backend_name() == "postgresql"
    names = "SELECT datname FROM pg_database" if is_postgresql else "SHOW DATABASES"
    found = run(url.set(database="postgres" if is_postgresql else None), names)
    return {str(name) for (name,) in found if str(name).startswith("tickets_")}


@SERVERS
def test_fresh_databases_on_real_servers(real_urls: list[URL], metadata: MetaData) -> None:
    with servers_at(real_urls, metadata, stride=4) as pool:
        assert len({name for url in real_urls for name in databases(url)}) == 2
        with servers_at(real_urls, metadata):
            assert len(set(inserted(metadata))) == 3
        assert {number % 4 for number in pool.next_ids("photos", 10)} <= {1, 2}
        assert len(set(inserted(metadata))) == 3
    assert [databases(url) for url in real_urls] == [set(), set()]
    with pytest.raises(PoolNotAttached):
        inserted(metadata)


@SERVERS
def test_nothing_is_left_when_a_server_is_down(real_urls: list[URL], metadata: MetaData) -> None:
    nobody = real_urls[1].set(port=1)
    down = pytest.raises(TicketServerError, match="that the server is running")
    with down as told, servers_at([real_urls[0], nobody], metadata):
        pass
    assert PASSWORD not in str(told.value)
    assert databases(real_urls[0]) == set()


@pytest.mark.ticket_servers("mariadb", "mysql")
@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_database_left_on_a_stopped_server_is_named(
    how: str,
    ticket_kind: str,
    servers: ServerFixtures,
    real_urls: list[URL],
    metadata: MetaData,
) -> None:
    server = servers.shared(ticket_kind, 1)
    with (
        pytest.warns(UserWarning, match="database tickets_.* is left on") as told,
        servers_at(real_urls, metadata),
    ):
        getattr(server, how)()
    server.revive()
    assert databases(real_urls[0]) == set()
    (left,) = databases(real_urls[1])
    assert [left in str(warning.message) for warning in told] == [True]
    assert PASSWORD not in str(told[0].message)
    run(real_urls[1], f"DROP DATABASE {left}")


@pytest.mark.parametrize(
    ("urls", "why"),
    [
        ([], "servers_at.* needs a list"),
        ("mysql+pymysql://root:secret@h/x", "servers_at.* needs a list"),
        (["sqlite:///tickets.db"], "servers_at"),
        (["no URL"], "cannot be read"),
        (["other://root:secret@h/x"], "is unknown"),
    ],
)
def test_where_no_databases_are_created(urls: list[str], why: str) -> None:
    with pytest.raises(TicketArgumentError, match=why) as caught, servers_at(urls):
        pass
    assert "secret" not in str(caught.value)


@pytest.mark.ticket_servers("mariadb")
def test_the_example_tests_itself(real_urls: list[URL]) -> None:
    named = " ".join(url.render_as_string(False) for url in real_urls)
    for servers, outcome in ((named, "2 passed"), ("", "1 passed, 1 skipped")):
        pytest_alone = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull]
        done = subprocess.run(
            [
                *pytest_alone,
                "-p",
                "no:cacheprovider",
                "-p",
                "sqla_tickets.testing.pytest_plugin",
                "test_photos.py",
            ],
            cwd=REPOSITORY / "examples",
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "SQLA_TICKETS_TEST_SERVERS": servers},
            capture_output=True,
            text=True,
        )
        assert re.search(rf"^{outcome}", done.stdout, re.MULTILINE), done.stdout
