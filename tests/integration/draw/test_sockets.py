"""The socket under each driver's connection, and that cutting it ends a wait."""

from __future__ import annotations

import importlib
import os
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from sqla_tickets.connect.sockets import socket_of
from tests.support.draws import run
from tests.support.drivers import Route, routes
from tests.support.servers import ServerFixtures

#: Longer than a test may take: only the cut ends it.
SLEEP = {"mysql": "SELECT SLEEP(600)", "postgresql": "SELECT pg_sleep(600)"}
SLEEPERS = {
    "mysql": "SELECT COUNT(*) FROM information_schema.processlist"
    " WHERE db = DATABASE() AND state = 'User sleep'",
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event = 'PgSleep'",
}


def engine_for(url: URL, **arguments: object) -> Engine:
    if url.get_dialect().is_async:
        return create_async_engine(url, poolclass=NullPool, connect_args=arguments).sync_engine
    return create_engine(url, poolclass=NullPool, connect_args=arguments)


def kill_while_it_sleeps(engine: Engine, url: URL) -> None:
    """Begin a long statement, cut the connection from another thread, see it raise."""
    backend = "mysql" if url.get_backend_name() == "mariadb" else url.get_backend_name()
    other = url.set(drivername={"mysql": "mysql+pymysql"}.get(backend, "postgresql+psycopg"))

    def kill() -> None:
        while run(other, SLEEPERS[backend]) == [(0,)]:
            time.sleep(0.02)
        with socket.socket(fileno=duplicate) as ours:
            ours.shutdown(socket.SHUT_RDWR)

    connection = engine.raw_connection()
    assert connection.dbapi_connection is not None
    found = socket_of(connection.dbapi_connection)
    assert found is not None
    duplicate = os.dup(found)
    killing = threading.Thread(target=kill)
    cursor = connection.cursor()
    killing.start()
    with pytest.raises(Exception, match=r".") as raised:
        cursor.execute(SLEEP[backend])
    assert not isinstance(raised.value, AssertionError)
    killing.join()
    connection.invalidate()


def fresh_visible(route: Route, servers: ServerFixtures, folder: Path) -> URL:
    url = route.fresh_database(servers, folder)
    if route.module == "mysql.connector" and importlib.import_module(route.module).HAVE_CEXT:
        pytest.skip("its C extension hides the socket")
    return url


@pytest.mark.parametrize("route", routes("mariadb", "postgresql"), ids=str)
def test_cutting_a_connection_ends_a_wait(
    servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    url = fresh_visible(route, servers, tmp_path)
    route.run(lambda: kill_while_it_sleeps(engine_for(url), url))


def tls(route: Route) -> dict[str, object]:
    """A driver's arguments for TLS with a server whose certificate nobody has signed."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    arguments: dict[str, dict[str, object]] = {
        "MySQLdb": {"ssl": {"cipher": "ALL"}},
        "mysql.connector": {},
    }
    return arguments.get(route.module, {"ssl": context})


@pytest.mark.parametrize("route", routes("mysql"), ids=str)
def test_cutting_a_connection_with_tls(
    servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    """MySQL makes itself a certificate at its first start."""
    url = fresh_visible(route, servers, tmp_path)
    engine = engine_for(url, **tls(route))
    encrypted: list[bool] = []

    @event.listens_for(engine, "connect")
    def record_cipher(connection: Any, record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        encrypted.append(bool(cursor.fetchone()[1]))

    route.run(lambda: kill_while_it_sleeps(engine, url))
    assert encrypted == [True]


@pytest.mark.parametrize("route", routes("mariadb", "postgresql", "sqlite"), ids=str)
def test_a_closed_connection_has_no_socket(
    servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    url = route.fresh_database(servers, tmp_path)

    def close() -> None:
        connection = engine_for(url).raw_connection()
        dbapi = connection.dbapi_connection
        assert dbapi is not None
        dbapi.close()
        assert socket_of(dbapi) is None
        connection.invalidate()

    route.run(close)
