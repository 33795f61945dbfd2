"""With every driver, a server that is silent or gone is given up in the same short time."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine

from sqla_tickets import NoTicketServer, TicketError, TicketPool
from sqla_tickets.connect.sockets import socket_of
from sqla_tickets.draw import server as server_module
from sqla_tickets.tables.context import StatementContext
from tests.support.draws import (
    PATIENCE,
    OpenPool,
    connections_to,
    draw_from,
    mysql_like,
    until,
)
from tests.support.drivers import Route, routes
from tests.support.servers import ServerFixtures, ServerRegistry
from tests.support.timing import set_timing

#: How long a draw may take on a loaded machine, by the pool's time-out, in seconds. Drivers that take whole seconds
#: would wait for two in either case: one for an answer, and one for a lock.
LONGEST = {0.2: 1.5, 1.0: 1.9}
#: How long five draws may take after one that failed: none of them waits anew.
LATER = 2.5
#: What a loaded machine may add, in seconds.
SLACK = 6.0
#: How often a draw is timed at most: a loaded machine may delay one, and hardly each of them.
TRIALS = 4


class Draws:
    """How long the first draws by one route took, in seconds, and how they ended.

    Attributes:
        reused: on a connection that had been used before.
        fresh: on a pool that had none yet.
        later: five more, after the first one had failed.
    """

    def __init__(self) -> None:
        self.reused = self.fresh = self.later = math.inf
        self.errors: list[TicketError] = []

    def are_in_time(self, timeout: float) -> bool:
        """Whether no draw took longer than it may."""
        return max(self.reused, self.fresh) < LONGEST[timeout] and self.later < LATER

    def time(self, pool: TicketPool) -> float:
        """How long a draw takes to fail; for ever, when it does not."""
        begun = time.monotonic()
        try:
            pool.next_id("photos")
        except TicketError as error:
            self.errors.append(error)
            return time.monotonic() - begun
        return math.inf


class Silence:
    """What every driver does when its server freezes, all of them at once, since they wait."""

    def __init__(self, server_registry: ServerRegistry, folder: Path, *, require_all: bool) -> None:
        self._server_registry, self._folder, self._require_all = (
            server_registry,
            folder,
            require_all,
        )
        self._measured: dict[tuple[str, float], dict[Route, Draws]] = {}

    def measured_by(self, route: Route, timeout: float) -> Draws:
        """Freeze the kind of server that a route leads to, for each time-out until its draws were in time."""
        pytest.importorskip(route.module)
        measured = self._measured.setdefault((route.kind, timeout), {})
        for _ in range(TRIALS):
            if route in measured and measured[route].are_in_time(timeout):
                break
            here = [each for each in routes(route.kind) if find_spec(each.module.split(".")[0])]
            late = [r for r in here if r not in measured or not measured[r].are_in_time(timeout)]
            fixtures = ServerFixtures(self._server_registry, require_all=self._require_all)
            try:
                measured |= self._meet(late, timeout, fixtures)
            finally:
                fixtures.give_back()
        return measured[route]

    def _meet(
        self, these: list[Route], timeout: float, fixtures: ServerFixtures
    ) -> dict[Route, Draws]:
        server = fixtures.shared(these[0].kind)
        measured = {route: Draws() for route in these}
        ready, go = threading.Barrier(len(measured) + 1), threading.Event()

        def use(route: Route, url: URL) -> None:
            draws = measured[route]
            with TicketPool([url], timeout=timeout) as pool:
                until(
                    lambda: _is_ready(pool)
                )  # while so many begin at once, 0.2 s may be too short
                ready.wait(PATIENCE)
                go.wait(PATIENCE)
                draws.reused = draws.time(pool)
                draws.later = sum(draws.time(pool) for _ in range(5))

        def come(route: Route, url: URL) -> None:
            with TicketPool([url], timeout=timeout) as pool:
                go.wait(PATIENCE)
                measured[route].fresh = measured[route].time(pool)

        threads = [
            threading.Thread(target=route.run, args=(functools.partial(work, route, url),))
            for route in measured
            for url in [route.fresh_database(fixtures, self._folder)]
            for work in (use, come)
        ]
        for thread in threads:
            thread.start()
        ready.wait(PATIENCE)
        server.freeze()
        # Its threads stop one by one.
        time.sleep(0.2)
        go.set()
        end = time.monotonic() + timeout + SLACK
        for thread in threads:
            thread.join(max(0, end - time.monotonic()))
        server.thaw()
        for thread in threads:
            thread.join()
        gc.collect()  # PostgreSQL drops no database while a client keeps one connection half open
        return measured


def _is_ready(pool: TicketPool) -> bool:
    with contextlib.suppress(TicketError):
        pool.create_table("photos")
        return bool(pool.next_id("photos"))
    return False


@pytest.fixture(scope="module")
def silence(
    server_registry: ServerRegistry,
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
) -> Silence:
    required = bool(pytestconfig.getoption("--require-all-servers"))
    return Silence(server_registry, tmp_path_factory.mktemp("silence"), require_all=required)


@pytest.mark.parametrize("timeout", LONGEST)
@pytest.mark.parametrize("route", routes("mariadb", "postgresql"), ids=str)
def test_frozen_server_is_given_up_after_the_time_out(
    silence: Silence, route: Route, timeout: float
) -> None:
    measured = silence.measured_by(route, timeout)
    assert timeout < measured.reused < LONGEST[timeout]
    assert timeout < measured.fresh < LONGEST[timeout]
    assert measured.later < LATER, "each draw waits anew"
    assert {type(error) for error in measured.errors} == {NoTicketServer}


@pytest.mark.parametrize("route", routes("mariadb"), ids=str)
def test_lock_that_is_held_is_no_silence(
    servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    """A draw waits for it beyond the time-out, and not beyond both; the server counts as alive."""
    url = route.fresh_database(servers, tmp_path)
    server = mysql_like(servers, "mariadb")

    def work() -> None:
        with (
            TicketPool([url], timeout=10.0) as first,
            server.administrator() as cursor,
        ):
            first.create_table("photos", layout="counter")
            first.next_id("photos")

            def unlock() -> None:
                try:
                    until(lambda: bool(connections_to(server, url, "lock")))
                    time.sleep(1.3)
                finally:
                    cursor.execute("UNLOCK TABLES")

            with TicketPool([url], timeout=1.0, lock_wait=20.0) as patient:
                until(lambda: _is_ready(patient))
                cursor.execute(f"LOCK TABLES `{url.database}`.photos WRITE")
                free = threading.Thread(target=unlock)
                free.start()
                assert patient.next_id("photos") > 1
                free.join()

            def is_given_up_in_time() -> bool:
                with TicketPool([url], timeout=0.3, lock_wait=0.9) as pool:
                    until(lambda: _is_ready(pool))
                    cursor.execute(f"LOCK TABLES `{url.database}`.photos WRITE")
                    seconds = Draws().time(pool)
                    cursor.execute("UNLOCK TABLES")
                    return seconds < 1.9 and pool.servers[0].breaker.is_closed

            assert any(is_given_up_in_time() for _ in range(TRIALS))

    route.run(work)


@pytest.mark.parametrize("route", routes("mariadb", "postgresql"), ids=str)
def test_frozen_server_is_given_up_while_a_table_is_inspected(
    servers: ServerFixtures, route: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a while without a draw, on a connection that is there, whatever its driver can."""
    url = route.fresh_database(servers, tmp_path)
    server = servers.shared(route.kind)

    def seconds() -> float:
        with TicketPool([url]) as pool:
            until(lambda: _is_ready(pool))
            server.freeze()
            thaw = threading.Timer(20, server.thaw)
            thaw.start()
            try:
                return Draws().time(pool)
            finally:
                thaw.cancel()
                server.thaw()

    set_timing(monkeypatch, server_module, idle_seconds=0.0)
    assert any(route.run(seconds) < LONGEST[1.0] for _ in range(TRIALS))


@pytest.mark.parametrize("route", routes("sqlite"), ids=str)
def test_a_file_that_another_process_keeps_locked(
    servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    url = route.fresh_database(servers, tmp_path)

    def work() -> float:
        with TicketPool([url]) as pool:
            pool.create_table("photos")
            assert url.database is not None
            with contextlib.closing(sqlite3.connect(url.database)) as other:
                other.execute("BEGIN EXCLUSIVE")
                return Draws().time(pool)

    assert route.run(work) < 2 + SLACK


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_the_system_ends_what_a_driver_waits_for_without_end(
    servers: ServerFixtures, driver: str
) -> None:
    """Such as a write of marks over a connection that was lost without a word: the monitor does not poll it."""
    url = servers.fresh_database(servers.postgresql()).set(drivername=f"postgresql+{driver}")
    connection = TicketPool([url], timeout=0.5).servers[0].connect()
    number = socket_of(connection.dbapi)
    assert number is not None
    with contextlib.closing(connection.dbapi), socket.socket(fileno=os.dup(number)) as wire:
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2000
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize("route", routes("mariadb", "postgresql"), ids=str)
def test_a_refused_connection_is_told_at_once(
    servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    url = route.fresh_database(servers, tmp_path).set(port=1)

    def work() -> float:
        with TicketPool([url], timeout=10 * SLACK) as pool:
            return Draws().time(pool)

    assert route.run(work) < SLACK


#: What a ticket connection has otherwise than those of the application.
SETTINGS = {
    "mysql": (
        "SELECT @@SESSION.lock_wait_timeout, @@SESSION.innodb_lock_wait_timeout,"
        " @@SESSION.autocommit, @@SESSION.sql_mode"
    ),
    "postgresql": (
        "SELECT current_setting('lock_timeout'), current_setting('synchronous_commit'),"
        " current_setting('transaction_isolation')"
    ),
}


@pytest.mark.ticket_servers("mariadb", "mysql", "postgresql")
def test_time_outs_are_those_of_ticket_connections_alone(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """Also where the pool is given the very Engine that the application uses."""
    engines = [create_engine(url) for url in ticket_urls]
    ask = SETTINGS[ticket_urls[0].get_backend_name()]

    def settings_of_the_application() -> object:
        engines[0].dispose()  # for a new connection
        with engines[0].connect() as connection:
            return connection.exec_driver_sql(ask).one()

    before = settings_of_the_application()
    pool = open_pool(engines)
    pool.create_table("photos")
    draw_from(pool, 1)
    assert settings_of_the_application() == before

    def see(context: StatementContext) -> object:
        context.cursor.execute(ask, ())
        return tuple(context.cursor.fetchall()[0])

    assert pool.servers[0].do("photos", see) != tuple(before)  # type: ignore[arg-type]  # a row
    for engine in engines:
        engine.dispose()


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_status_of_a_server_that_freezes_ends(servers: ServerFixtures, kind: str) -> None:
    """Over an idle connection, whose driver may wait for ever."""
    server = servers.shared(kind)
    url = servers.fresh_database(server)
    with TicketPool([url], timeout=0.2, lock_wait=0.2) as pool:
        pool.create_table("photos")
        assert {status.state for status in pool.status()} == {"up"}
        server.freeze()
        with ThreadPoolExecutor(1) as executor:
            asked = executor.submit(pool.status)
            try:
                assert {status.state for status in asked.result(PATIENCE / 3)} == {"down"}
            finally:
                server.thaw()
