"""With every driver, a server that is silent or gone is given up in the same short time."""

from __future__ import annotations

import contextlib
import functools
import math
import sqlite3
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.engine.interfaces import DBAPICursor

from sqla_tickets import NoTicketServer, TicketError, TicketPool
from sqla_tickets.engines import LOCK_WAIT
from sqla_tickets.place import Place
from tests.drawing.conftest import OpenPool
from tests.drawing.tools import draw_from
from tests.drivers import Route, routes
from tests.servers import Borrower, Fleet

TIMEOUT = 1.0
#: What a loaded machine may add, in seconds, and a second connection when the first was an old one.
SLACK = 6.0
LONGEST = TIMEOUT + LOCK_WAIT + SLACK


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

    def __init__(self, fleet: Fleet, folder: Path, *, require_all: bool) -> None:
        self._fleet, self._folder, self._require_all = fleet, folder, require_all
        self._met: dict[str, dict[Route, Draws]] = {}

    def met_by(self, route: Route) -> Draws:
        """Freeze the kind of server that a route leads to, once."""
        pytest.importorskip(route.module)
        if route.kind not in self._met:
            borrower = Borrower(self._fleet, require_all=self._require_all)
            try:
                self._met[route.kind] = self._meet(route.kind, borrower)
            finally:
                borrower.give_back()
        return self._met[route.kind][route]

    def _meet(self, kind: str, borrower: Borrower) -> dict[Route, Draws]:
        server = borrower.shared(kind)
        met = {route: Draws() for route in routes(kind) if find_spec(route.module.split(".")[0])}
        ready, go = threading.Barrier(len(met) + 1), threading.Event()

        def use(route: Route, url: URL) -> None:
            draws = met[route]
            with TicketPool([url], timeout=TIMEOUT) as pool:
                pool.create_table("photos")
                pool.next_id("photos")
                ready.wait(60)
                go.wait()
                draws.reused = draws.time(pool)
                draws.later = sum(draws.time(pool) for _ in range(5))

        def come(route: Route, url: URL) -> None:
            with TicketPool([url], timeout=TIMEOUT) as pool:
                go.wait()
                met[route].fresh = met[route].time(pool)

        threads = [
            threading.Thread(target=route.run, args=(functools.partial(work, route, url),))
            for route in met
            for url in [route.fresh_database(borrower, self._folder)]
            for work in (use, come)
        ]
        for thread in threads:
            thread.start()
        ready.wait(60)
        server.freeze()
        # Its threads stop one by one.
        time.sleep(0.2)
        go.set()
        end = time.monotonic() + TIMEOUT + LOCK_WAIT + SLACK
        for thread in threads:
            thread.join(max(0, end - time.monotonic()))
        server.thaw()
        for thread in threads:
            thread.join()
        return met


@pytest.fixture(scope="module")
def silence(
    fleet: Fleet, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Silence:
    required = bool(pytestconfig.getoption("--require-all-servers"))
    return Silence(fleet, tmp_path_factory.mktemp("silence"), require_all=required)


@pytest.mark.parametrize("route", routes("mariadb", "postgresql"), ids=str)
def test_a_frozen_server_is_given_up(silence: Silence, route: Route) -> None:
    met = silence.met_by(route)
    assert met.reused < LONGEST
    assert met.fresh < LONGEST
    assert met.later < 5 * TIMEOUT / 2, "each draw waits anew"
    assert {type(error) for error in met.errors} == {NoTicketServer}


@pytest.mark.parametrize("route", routes("sqlite"), ids=str)
def test_a_file_that_another_process_keeps_locked(
    servers: Borrower, route: Route, tmp_path: Path
) -> None:
    url = route.fresh_database(servers, tmp_path)

    def work() -> float:
        with TicketPool([url], timeout=TIMEOUT) as pool:
            pool.create_table("photos")
            assert url.database is not None
            with contextlib.closing(sqlite3.connect(url.database)) as other:
                other.execute("BEGIN EXCLUSIVE")
                return Draws().time(pool)

    assert route.run(work) < LONGEST


@pytest.mark.parametrize("route", routes("mariadb", "postgresql"), ids=str)
def test_a_refused_connection_is_told_at_once(
    servers: Borrower, route: Route, tmp_path: Path
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

    def see(cursor: DBAPICursor, _: Place) -> object:
        cursor.execute(ask, ())
        return tuple(cursor.fetchall()[0])

    assert pool.servers[0].do("photos", see) != tuple(before)  # type: ignore[arg-type]  # a row
    for engine in engines:
        engine.dispose()
