"""The socket under each driver's connection, and that cutting it ends a wait."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from typing import Any, cast

import pytest
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from sqla_tickets.sockets import socket_of
from tests.drawing.tools import run
from tests.drivers import Driver, drivers
from tests.servers import Borrower

#: Far longer than a test waits for a connection that was cut.
SLEEP = {"mysql": "SELECT SLEEP(60)", "postgresql": "SELECT pg_sleep(60)"}
SLEEPERS = {
    "mysql": "SELECT COUNT(*) FROM information_schema.processlist"
    " WHERE db = DATABASE() AND state = 'User sleep'",
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event = 'PgSleep'",
}
NETWORKED = drivers("mariadb", "postgresql")


def engine_for(url: URL, driver: Driver, **arguments: object) -> Engine:
    url = url.set(drivername=driver.name)
    if driver.is_async:
        return create_async_engine(url, poolclass=NullPool, connect_args=arguments).sync_engine
    return create_engine(url, poolclass=NullPool, connect_args=arguments)


def cut_while_it_sleeps(engine: Engine, url: URL) -> None:
    """Begin a long statement, cut the connection from another thread, see it raise."""
    backend = url.get_backend_name()

    def cut() -> None:
        while run(url, SLEEPERS[backend]) == [(0,)]:
            time.sleep(0.02)
        with socket.socket(fileno=duplicate) as ours:
            ours.shutdown(socket.SHUT_RDWR)

    connection = engine.raw_connection()
    assert connection.dbapi_connection is not None
    found = socket_of(connection.dbapi_connection)
    assert found is not None
    duplicate = os.dup(found)
    cutting = threading.Thread(target=cut)
    cursor = connection.cursor()
    cutting.start()
    begun = time.monotonic()
    with pytest.raises(Exception, match=r".") as raised:
        cursor.execute(SLEEP[backend])
    assert not isinstance(raised.value, AssertionError)
    assert time.monotonic() - begun < 20
    cutting.join()
    connection.invalidate()


def visible(driver: Driver) -> Driver:
    driver.require()
    if driver.module == "mysql.connector" and pytest.importorskip("mysql.connector").HAVE_CEXT:
        pytest.skip("its C extension hides the socket")
    return driver


@pytest.mark.parametrize("driver", NETWORKED, ids=str)
def test_cutting_a_connection_ends_a_wait(servers: Borrower, driver: Driver) -> None:
    url = servers.fresh_database(servers.shared(visible(driver).kinds[0]))
    driver.run(lambda: cut_while_it_sleeps(engine_for(url, driver), url))


def tls(driver: Driver) -> dict[str, object]:
    """A driver's arguments for TLS with a server whose certificate nobody has signed."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    arguments: dict[str, dict[str, object]] = {
        "MySQLdb": {"ssl": {"cipher": "ALL"}},
        "mysql.connector": {},
    }
    return arguments.get(driver.module, {"ssl": context})


@pytest.mark.parametrize("driver", drivers("mysql"), ids=str)
def test_cutting_a_connection_with_tls(servers: Borrower, driver: Driver) -> None:
    """MySQL makes itself a certificate at its first start."""
    url = servers.fresh_database(servers.mysql())
    engine = engine_for(url, visible(driver), **tls(driver))
    encrypted: list[bool] = []

    @event.listens_for(engine, "connect")
    def look(connection: Any, record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        encrypted.append(bool(cursor.fetchone()[1]))

    driver.run(lambda: cut_while_it_sleeps(engine, url))
    assert encrypted == [True]


@pytest.mark.parametrize("driver", drivers(), ids=str)
def test_a_closed_connection_has_no_socket(
    servers: Borrower, driver: Driver, tmp_path: os.PathLike[str]
) -> None:
    driver.require()
    kind = driver.kinds[0]
    if kind == "sqlite":
        url = URL.create(driver.name, database=os.path.join(tmp_path, "tickets.db"))
    else:
        url = servers.fresh_database(servers.shared(kind))

    def look() -> None:
        connection = engine_for(url, driver).raw_connection()
        assert connection.dbapi_connection is not None
        dbapi = connection.dbapi_connection
        dbapi.close()
        assert socket_of(dbapi) is None
        connection.invalidate()

    driver.run(look)


def test_what_is_no_socket_is_not_taken_for_one() -> None:
    with open(os.devnull) as file:
        assert socket_of(cast("Any", file)) is None
    assert socket_of(cast("Any", object())) is None
