"""Threads, forks and processes on one sequence: each ticket goes to one of them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy import Connection as SQLAlchemyConnection

from sqla_tickets import NoTicketServer, TicketError, TicketPool, TicketSequence
from sqla_tickets.dialects import LayoutName
from tests.support.draws import (
    PATIENCE,
    Lock,
    OpenPool,
    assert_unique,
    in_fork,
    in_processes,
    locks_of,
    residues,
    skip_unless_it_has,
)
from tests.support.drivers import Route, routes
from tests.support.servers import PostgreSQL, ServerFixtures

THREADS = 16
PHOTOS = TicketSequence("photos", block=10)
# A child that ends as programs do, with every object torn down, not by os._exit().
ENDS_LIKE_A_PROGRAM = """
import os, sys
from sqla_tickets import TicketPool
pool = TicketPool(sys.argv[1:])
before = pool.next_id("photos")
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
ids = [pool.next_id("photos") for _ in range(4)]
assert len({before, *ids}) == 5
assert [record.errors for record in pool.status()] == [0, 0], pool.status()
pool.dispose()
print("well")
"""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("layout", ["replace", "counter"])
def test_a_fork_shares_neither_blocks_nor_connections(
    ticket_urls: list[URL], ticket_kind: str, open_pool: OpenPool, layout: LayoutName
) -> None:
    skip_unless_it_has(layout, ticket_kind)
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout=layout)
    ids = [*pool.next_ids(PHOTOS, 3), pool.next_id("photos"), pool.next_id("photos")]
    children = [
        in_fork(lambda: json.dumps([t for _ in range(5) for t in pool.next_ids(PHOTOS, 3)]))
        for _ in range(3)
    ]
    ids += [t for _ in range(5) for t in pool.next_ids(PHOTOS, 3)]
    for answer in children:
        assert answer.startswith("["), answer
        ids += json.loads(answer)
    assert_unique(ids)
    assert {record.errors for record in pool.status()} == {0}


# SQLite itself does not survive a fork while another thread is inside of it.
@pytest.mark.ticket_servers("mariadb", "mysql", "postgresql")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks_while_threads_draw(pool: TicketPool) -> None:
    """A child may be made at any moment, even while a lock of the pool is held."""

    def draw(_: int) -> list[int]:
        return [t for _ in range(60) for t in pool.next_ids(PHOTOS, 2)]

    with ThreadPoolExecutor(4) as threads:
        drawing = [threads.submit(draw, n) for n in range(4)]
        answers = [
            in_fork(lambda: json.dumps([pool.next_id(PHOTOS) for _ in range(3)])) for _ in range(8)
        ]
        ids = [t for drawn in drawing for t in drawn.result()]
    for answer in answers:
        assert answer.startswith("["), answer
        ids += json.loads(answer)
    assert_unique(ids)


@contextmanager
def held(locks: list[Lock]) -> Iterator[None]:
    """Hold locks in a thread of their own."""
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        ours = [lock for lock in locks if lock.acquire(blocking=False)]
        ready.set()
        done.wait()
        for lock in ours:
            lock.release()

    holding = threading.Thread(target=hold)
    holding.start()
    try:
        assert ready.wait(PATIENCE)
        yield
    finally:
        done.set()
        holding.join()


@pytest.mark.ticket_servers("mariadb", "sqlite")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_every_lock_is_held(pool: TicketPool) -> None:
    ids = pool.next_ids(PHOTOS, 3) + pool.next_ids(PHOTOS, 8)
    modules = [vars(m) for name, m in sys.modules.items() if name.startswith("sqla_tickets")]
    locks = locks_of(pool, *modules)
    assert len(locks) > len(pool.servers)
    with held(locks):
        answer = in_fork(lambda: json.dumps([pool.next_ids(PHOTOS, 8) for _ in range(4)]))
    assert answer.startswith("["), answer
    assert_unique(ids + [ticket for drawn in json.loads(answer) for ticket in drawn])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_draws_of_a_fork_are_watched(
    servers: ServerFixtures, postgres: PostgreSQL, open_pool: OpenPool
) -> None:
    """Only the monitor can end a wait of libpq's, and its thread is the parent's."""
    pool = open_pool([servers.fresh_database(postgres)])
    pool.create_table("photos")
    pool.next_id("photos")

    server = psutil.Process(postgres.pid)

    def draw() -> str:
        pool.next_id("photos")
        for process in [server, *server.children(recursive=True)]:
            process.suspend()
        try:
            return str(pool.next_id("photos"))
        except NoTicketServer:
            return "given up"

    try:
        assert in_fork(draw) == "given up"
    finally:
        postgres.thaw()


@contextmanager
def first_connection_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The application makes an engine's first connection, and it takes long."""
    begun, done = threading.Event(), threading.Event()
    initialize = engine.dialect.initialize

    def initialize_late(connection: SQLAlchemyConnection) -> None:
        begun.set()
        assert done.wait(2 * PATIENCE)
        initialize(connection)

    def connect() -> None:
        engine.connect().close()

    monkeypatch.setattr(engine.dialect, "initialize", initialize_late)
    connecting = threading.Thread(target=connect)
    connecting.start()
    try:
        assert begun.wait(PATIENCE)
        monkeypatch.setattr(engine.dialect, "initialize", initialize)
        yield
    finally:
        done.set()
        connecting.join()


UNKNOWN_SERVER = pytest.mark.xfail(
    reason="SQLAlchemy learns once, from one connection, that a server is MariaDB"
)


@UNKNOWN_SERVER
@pytest.mark.ticket_servers("mariadb")
def test_an_engine_whose_first_connection_is_just_being_made(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_pool(ticket_urls).create_table("photos")
    engines = [create_engine(url) for url in ticket_urls]
    pool = open_pool(engines)
    with first_connection_of(engines[0], monkeypatch):
        ids = [pool.next_id("photos") for _ in range(4)]
    ids += [pool.next_id("photos") for _ in range(4)]
    for engine in engines:
        engine.dispose()
    assert_unique(ids)
    assert residues(ids) == {0, 1}
    assert {record.breaker for record in pool.status()} == {"closed"}


@UNKNOWN_SERVER
@pytest.mark.ticket_servers("mariadb")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_an_engine_s_first_connection_is_being_made(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_pool(ticket_urls).create_table("photos")
    engines = [create_engine(url) for url in ticket_urls]
    pool = open_pool(engines)

    def draw() -> str:
        ids = [pool.next_id("photos") for _ in range(4)]
        assert {record.breaker for record in pool.status()} == {"closed"}
        return json.dumps(ids)

    with first_connection_of(engines[0], monkeypatch):
        answer = in_fork(draw)
    for engine in engines:
        engine.dispose()
    assert answer.startswith("["), answer
    assert residues(json.loads(answer)) == {0, 1}


@pytest.mark.parametrize("driver", ["pymysql", "mysqldb", "mysqlconnector"])
def test_a_child_that_ends_says_no_good_bye_on_its_parents_connections(
    servers: ServerFixtures, open_pool: OpenPool, driver: str
) -> None:
    modules = {"mysqldb": "MySQLdb", "mysqlconnector": "mysql.connector"}
    pytest.importorskip(modules.get(driver, driver))
    urls = [servers.fresh_database(servers.mariadb(n)) for n in range(2)]
    open_pool(urls).create_table("photos")
    texts = [
        url.set(drivername=f"mysql+{driver}").render_as_string(hide_password=False) for url in urls
    ]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENDS_LIKE_A_PROGRAM, *texts],
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("well\n", "")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("route", routes("mariadb", "postgresql", is_async=True), ids=str)
def test_a_fork_in_an_event_loop(servers: ServerFixtures, route: Route, tmp_path: Path) -> None:
    """The child draws in a loop of its own, the parent goes on in the one that it had."""
    urls = [route.fresh_database(servers, tmp_path, number) for number in range(2)]
    pool = TicketPool(urls)

    def draw() -> list[int]:
        ids = [ticket for _ in range(4) for ticket in pool.next_ids(PHOTOS, 3)]
        ids += [pool.next_id("photos"), pool.next_id("photos")]
        pool.dispose()
        return ids

    def work() -> list[int]:
        pool.create_table("photos")
        ids = [*pool.next_ids(PHOTOS, 3), pool.next_id("photos"), pool.next_id("photos")]
        answer = in_fork(lambda: json.dumps(route.run(draw)))
        assert answer.startswith("["), answer
        return [*ids, *json.loads(answer), *draw()]

    assert_unique(route.run(work))
    assert {server.table("photos").errors for server in pool.servers} == {0}


@pytest.mark.ticket_servers("mariadb", "mysql", "postgresql")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_draw_leaves_its_connection_alone(pool: TicketPool) -> None:
    connections = pool.servers[0].connections
    connection = connections.acquire()

    def fail() -> str:
        connections.discard(connection)
        return "discarded"

    assert in_fork(fail) == "discarded"
    connection.cursor.execute("SELECT 1", ())
    assert connection.cursor.fetchall()[0][0] == 1
    connections.release(connection)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_in_memory_server_does_not_cross_a_fork(open_pool: OpenPool) -> None:
    pool = open_pool(["sqlite://", "sqlite://"])
    pool.create_table("photos")
    pool.next_id("photos")

    def draw() -> str:
        try:
            return str(pool.next_id("photos"))
        except TicketError as error:
            return str(error)

    answer = in_fork(draw)
    assert "fork" in answer
    assert not answer.isdigit()


@pytest.mark.parametrize("layout", ["replace", "counter"])
def test_threads(
    ticket_urls: list[URL], ticket_kind: str, open_pool: OpenPool, layout: LayoutName
) -> None:
    skip_unless_it_has(layout, ticket_kind)
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout=layout)

    def draw(thread: int) -> list[int]:
        ids: list[int] = []
        for n in (1, 7, 1, 30):
            drawn = pool.next_ids(PHOTOS if thread % 2 else "photos", n)
            assert len(drawn) == n
            ids += drawn
        return ids

    with ThreadPoolExecutor(THREADS) as threads:
        ids = [ticket for drawn in threads.map(draw, range(THREADS)) for ticket in drawn]
    assert len(ids) == THREADS * 39
    assert_unique(ids)
    assert residues(ids) == {0, 1}


def draw_in_process(urls: list[str], block: int) -> list[int]:
    with TicketPool(urls) as pool:
        sequence = TicketSequence("photos", block=block)
        return [t for n in (1, 3, 1, 20, 1) for t in pool.next_ids(sequence, n)]


def test_two_clients_at_once(pool: TicketPool, ticket_urls: list[URL]) -> None:
    texts = [url.render_as_string(hide_password=False) for url in ticket_urls]
    drawn = in_processes(draw_in_process, (texts, 1), (texts, 50))
    ids = [ticket for some in drawn for ticket in some] + pool.next_ids("photos", 5)
    assert len(ids) == 2 * 26 + 5
    assert_unique(ids)


def test_a_process_that_ends_loses_its_block_and_nothing_else(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    with TicketPool(ticket_urls) as other:
        ids = other.next_ids(PHOTOS, 3)
    ids += pool.next_ids(PHOTOS, 12)
    assert_unique(ids)
