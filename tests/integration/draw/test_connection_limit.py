"""More draws at once than a process keeps connections: they queue for one, and no server turns them away."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.util import greenlet_spawn

from sqla_tickets import NoTicketServer, TicketError, TicketPool, TicketServer
from sqla_tickets.concurrency import owner_mark
from sqla_tickets.connect.connection import Connection
from sqla_tickets.connect.limit import IdleConnections
from sqla_tickets.connect.pool import Connections
from sqla_tickets.connect.timeouts import CONNECT_TIMING
from sqla_tickets.draw import hedging
from sqla_tickets.draw.health_check import probe
from sqla_tickets.high_water import service
from tests.support.draws import (
    OpenPool,
    assert_unique,
    connections_to,
    fresh_pair,
    mysql_like,
    setting,
    until,
)
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.servers.ports import free_port
from tests.support.tcp_proxy import Fault, TcpProxy
from tests.support.timing import set_timing

#: Longer than any loaded machine takes, in seconds: a slow draw is not to be sent elsewhere.
FOR_EVER = 30.0
TASKS, THREADS = 200, 100
#: Connections that are opened while others count them.
MANY = 500
#: Fewer connections than a process may keep; MariaDB takes no smaller number.
FEW = 10
#: As in production: other tests have their servers take turns.
ARE_LENT = Connections.are_lent
Pair = tuple[list[MySQLLike], list[URL]]


@pytest.fixture
def crowded(servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Two servers that let in few more connections than one process may keep."""
    set_timing(monkeypatch, hedging, first_patience_seconds=FOR_EVER)
    set_timing(monkeypatch, hedging, least_patience_seconds=FOR_EVER)
    first, second, urls = fresh_pair(servers, "mariadb")
    with TicketPool(urls) as pool:
        pool.create_table("photos", layout="counter")
    with ExitStack() as stack:
        for server in (first, second):
            stack.enter_context(
                setting(server, max_connections=CONNECT_TIMING.max_connections + 10)
            )
        yield [first, second], urls


def are_few(pair: Pair) -> bool:
    """Whether each server has no more connections than a process keeps, and one of a probe's."""
    servers, urls = pair
    return all(
        len(connections_to(server, url)) <= CONNECT_TIMING.max_connections + 1
        for server, url in zip(servers, urls, strict=True)
    )


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql", "pymysql"])
def test_hundreds_of_tasks(crowded: Pair, driver: str) -> None:
    _, urls = crowded

    async def draw() -> list[int]:
        with_driver = [url.set(drivername=f"mysql+{driver}") for url in urls]
        pool = TicketPool(with_driver, timeout=FOR_EVER)
        drawn: list[int] = []
        for _ in range(3):
            draws = [greenlet_spawn(pool.next_id, "photos") for _ in range(TASKS)]
            drawn += await asyncio.gather(*draws)
            assert await asyncio.to_thread(are_few, crowded)
        await greenlet_spawn(pool.dispose)
        return drawn

    assert_unique(asyncio.run(draw()))


def test_connections_are_counted_while_other_threads_open_some() -> None:
    idle, made = IdleConnections(), list[Connection]()
    dbapi: Any = sqlite3.connect(":memory:")

    def count() -> None:
        while len(made) < MANY:
            idle.has_room()

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with closing(dbapi), ThreadPoolExecutor(2) as threads:
            counting = [threads.submit(count) for _ in range(2)]
            for _ in range(MANY):
                made.append(Connection(dbapi, None, 0, owner_mark()))
                idle.has_made(made[-1])
    finally:
        sys.setswitchinterval(usual)
    for each in counting:
        each.result()


@pytest.mark.parametrize("driver", ["pymysql", "asyncmy", "aiomysql"])
def test_a_server_that_lets_in_fewer(servers: ServerFixtures, driver: str) -> None:
    server = mysql_like(servers, "mariadb")
    url = servers.fresh_database(server)
    with TicketPool([url]) as pool:
        pool.create_table("photos", layout="counter")

    async def draw() -> list[int]:
        pool = TicketPool([url.set(drivername=f"mysql+{driver}")], timeout=FOR_EVER)
        draws = [greenlet_spawn(pool.next_id, "photos") for _ in range(TASKS)]
        drawn = await asyncio.gather(*draws)
        await greenlet_spawn(pool.dispose)
        return drawn

    with setting(server, max_connections=FEW):
        assert_unique(asyncio.run(draw()))


def test_a_hundred_threads(crowded: Pair) -> None:
    _, urls = crowded
    together = threading.Barrier(THREADS)
    with TicketPool(urls, timeout=FOR_EVER) as pool, ThreadPoolExecutor(THREADS) as threads:

        def draw() -> list[int]:
            together.wait()
            return [pool.next_id("photos") for _ in range(5)]

        drawn = [threads.submit(draw) for _ in range(THREADS)]
        assert_unique([ticket for draws in drawn for ticket in draws.result()])
        assert are_few(crowded)


def test_connections_that_nobody_waits_for_any_more_are_few(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, hedging, first_patience_seconds=FOR_EVER)
    url = servers.fresh_database(mysql_like(servers, "mariadb"))

    async def draw(port: int) -> None:
        there = url.set(drivername="mysql+asyncmy", port=port)
        pool = TicketPool([there], timeout=FOR_EVER, hedge=False)
        for _ in range(2 * CONNECT_TIMING.max_connections):
            task = asyncio.ensure_future(greenlet_spawn(pool.next_id, "photos"))
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.wait([task])

    with TcpProxy(url.port) as proxy:
        proxy.do(Fault("freeze"))
        asyncio.run(draw(proxy.port))
        assert CONNECT_TIMING.max_connecting < proxy.connections <= CONNECT_TIMING.max_connections


def test_tasks_that_are_cancelled_while_they_queue(crowded: Pair) -> None:
    _, urls = crowded

    async def draw() -> list[int]:
        pool = TicketPool([url.set(drivername="mysql+asyncmy") for url in urls], timeout=FOR_EVER)
        tasks = [
            asyncio.ensure_future(greenlet_spawn(pool.next_id, "photos")) for _ in range(TASKS)
        ]
        await asyncio.sleep(0)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks[::2]:
            task.cancel()
        drawn = await asyncio.gather(*tasks, return_exceptions=True)
        drawn += await asyncio.gather(
            *(greenlet_spawn(pool.next_id, "photos") for _ in range(TASKS))
        )
        await greenlet_spawn(pool.dispose)
        others = [d for d in drawn if not isinstance(d, (int, asyncio.CancelledError))]
        assert others == []
        return [ticket for ticket in drawn if isinstance(ticket, int)]

    drawn = asyncio.run(draw())
    assert len(drawn) >= TASKS + TASKS // 2
    assert_unique(drawn)


def test_a_queue_that_takes_longer_than_a_draw_may_opens_no_more(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is slow, but serves all of them in time if none of them adds to its work."""
    set_timing(monkeypatch, hedging, first_patience_seconds=FOR_EVER)
    set_timing(monkeypatch, hedging, least_patience_seconds=FOR_EVER)
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with (
        TcpProxy(url.port) as proxy,
        TicketPool([url.set(port=proxy.port)], timeout=1.0, lock_wait=0.5) as pool,
        ThreadPoolExecutor(2 * THREADS) as threads,
    ):
        pool.create_table("photos", layout="counter")
        pool.next_id("photos")
        before = proxy.connections
        proxy.do(Fault("delay", 0.1))
        drawn = list(threads.map(lambda _: pool.next_id("photos"), range(2 * THREADS)))
        assert proxy.connections - before < CONNECT_TIMING.max_connections
    assert_unique(drawn)


def test_draws_queue_at_a_server_that_comes_back_slowly(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its circuit is still open when they begin to wait, which is no reason to give up."""
    set_timing(monkeypatch, hedging, first_patience_seconds=FOR_EVER)
    url, clients = servers.fresh_database(mysql_like(servers, "mariadb")), 20
    with (
        TcpProxy(url.port) as proxy,
        TicketPool([url.set(port=proxy.port)], timeout=2, lock_wait=2) as pool,
        ThreadPoolExecutor(clients) as threads,
    ):
        pool.create_table("photos", layout="counter")
        proxy.do(Fault("refuse"))
        with pytest.raises(NoTicketServer):
            pool.next_id("photos")
        proxy.do(Fault("delay", 0.1))
        drawn = list(threads.map(lambda _: pool.next_id("photos"), range(clients)))
    assert_unique(drawn)


def test_a_queue_that_moves_is_no_reason_to_fail(servers: ServerFixtures) -> None:
    """One server is down, and more clients wait at the other's row than it serves in two lock waits."""
    first, _, urls = fresh_pair(servers, "mariadb")
    with TicketPool(urls) as creator:
        creator.create_table("photos")
    with first.administrator() as cursor:
        cursor.execute(f"USE `{urls[0].database}`")
        cursor.execute("CREATE TRIGGER slow AFTER INSERT ON photos FOR EACH ROW DO SLEEP(0.2)")
    clients = 14
    with (
        TicketPool([urls[0], urls[1].set(port=free_port())]) as pool,
        ThreadPoolExecutor(clients) as threads,
    ):
        drawn = list(threads.map(lambda _: pool.next_id("photos"), range(clients)))
    assert_unique(drawn)


def test_marks_need_no_connection_of_their_own(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for the one that draws use, and the draws meanwhile go to the other server."""
    set_timing(monkeypatch, hedging, first_patience_seconds=FOR_EVER)
    set_timing(monkeypatch, hedging, least_patience_seconds=FOR_EVER)
    set_timing(monkeypatch, hedging, unused_seconds=FOR_EVER)
    set_timing(monkeypatch, service, interval_seconds=0.0)
    monkeypatch.setattr(Connections, "are_lent", ARE_LENT)
    _, _, urls = fresh_pair(servers, "mariadb")
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(url.port)) for url in urls]
        there = [url.set(port=proxy.port) for url, proxy in zip(urls, proxies, strict=True)]
        pool = stack.enter_context(TicketPool(there))
        pool.create_table("photos", layout="counter")
        pool.next_ids("photos", 2)
        connections = [server.connections for server in pool.servers]
        # the first draw takes longer, and a mark may need another connection then
        until(lambda: sum(each.close_unused() for each in connections) == 0)
        for proxy in proxies:
            proxy.do(Fault("delay", 0.005))
        assert_unique([pool.next_id("photos") for _ in range(100)])
        assert not any(each.of_threads.are_several for each in connections)


def make_idle(pool: TicketPool, count: int) -> None:
    """Leave so many idle connections to each server, as a burst of draws does."""
    for server in pool.servers:
        for connection in [server.connections.open() for _ in range(count)]:
            server.connections.release(connection)


def test_client_that_was_kept_out_gets_in_after_the_burst_of_another(
    servers: ServerFixtures, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where that other one draws no more."""
    set_timing(monkeypatch, hedging, unused_seconds=0.2)
    server = mysql_like(servers, "mariadb")
    url = servers.fresh_database(server)
    other, late = open_pool([url]), open_pool([url])
    other.create_table("photos")
    with setting(server, max_connections=FEW):
        make_idle(other, FEW - len(connections_to(server, url)))
        with pytest.raises(NoTicketServer, match="no more connections"):
            late.next_id("photos")
        other.next_id("photos")

        def is_let_in() -> bool:
            with contextlib.suppress(NoTicketServer):
                return bool(late.next_id("photos"))
            return False

        until(is_let_in)
        assert other.servers[0].connections.has_idle, "a draw now and then needs one"


def test_tasks_keep_one_idle_connection_after_a_burst(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, hedging, unused_seconds=0.2)
    server = mysql_like(servers, "mariadb")
    url = servers.fresh_database(server)
    with TicketPool([url]) as pool:
        pool.create_table("photos")

    async def draw() -> None:
        pool = TicketPool([url.set(drivername="mysql+asyncmy")])
        await greenlet_spawn(make_idle, pool, FEW)
        await greenlet_spawn(pool.next_id, "photos")
        until_one = asyncio.to_thread(until, lambda: len(connections_to(server, url)) == 1)
        await until_one
        await greenlet_spawn(pool.dispose)

    asyncio.run(draw())


def test_idle_connections_that_draws_take_stay(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    pool = open_pool([servers.fresh_database(mysql_like(servers, "mariadb"))])
    connections = pool.servers[0].connections
    make_idle(pool, 4)
    assert connections.close_unused()
    taken = [connections.acquire() for _ in range(3)]
    for connection in taken:
        connections.release(connection)
    assert connections.close_unused()  # the fourth
    assert [connections.acquire() for _ in range(3)] == taken[::-1]
    assert not connections.has_idle


def test_connections_that_were_in_use_at_the_first_check_are_closed_later(
    servers: ServerFixtures, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, hedging, unused_seconds=0.2)
    server = mysql_like(servers, "mariadb")
    url = servers.fresh_database(server)
    pool = open_pool([url])
    pool.create_table("photos")
    connections = pool.servers[0].connections
    in_use = [connections.acquire() for _ in range(4)]
    pool.next_id("photos")  # the monitor begins to check
    time.sleep(1)
    for connection in in_use:
        connections.release(connection)
    until(lambda: len(connections_to(server, url)) == 1)


def test_first_draws_queue_for_the_one_connection_that_a_server_has_left(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """Those that are refused one wait for the one that another draw is opening."""
    server = mysql_like(servers, "mariadb")
    url = servers.fresh_database(server)
    other, late = open_pool([url]), open_pool([url])
    other.create_table("photos")
    with setting(server, max_connections=FEW):
        make_idle(other, FEW - 1 - len(connections_to(server, url)))
        together = threading.Barrier(FEW)

        def draw(_: int) -> int:
            together.wait(FOR_EVER)
            return late.next_id("photos")

        with ThreadPoolExecutor(FEW) as threads:
            assert_unique(list(threads.map(draw, range(FEW))))


@contextlib.contextmanager
def filled(server: MySQLLike, there: TicketServer) -> Iterator[list[Connection]]:
    """A server that admits no more connections, with those that this process uses."""
    in_use = list[Connection]()

    def fill() -> None:
        while True:
            in_use.append(there.connections.acquire())

    with setting(server, max_connections=FEW):
        with pytest.raises(Exception, match="Too many connections"):
            fill()
        yield in_use
        for connection in in_use:
            there.connections.release(connection)


@pytest.mark.parametrize("ask", ["a probe", "the marks"])
def test_server_that_is_full_for_others_keeps_serving_this_process(
    servers: ServerFixtures, open_pool: OpenPool, ask: str
) -> None:
    """What finds no idle connection, and is refused a new one, says nothing against the open ones."""
    server = mysql_like(servers, "mariadb")
    url = servers.fresh_database(server)
    pool = open_pool([url])
    pool.create_table("photos")
    there = pool.servers[0]
    with filled(server, there):
        if ask == "a probe":
            probe(there)
            until(lambda: not there.probes.are_under_way)
        else:
            with pytest.raises(TicketError, match="no more connections"):
                there.use(lambda context: None)
        assert there.breaker.is_closed


def test_marks_are_read_from_a_peer_that_is_full(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """Over the next connection that a draw gives back: else numbers that others drew could be issued again."""
    server = mysql_like(servers, "mariadb")
    url = servers.fresh_database(server)
    pool = open_pool([url])
    pool.create_table("photos")
    there = pool.servers[0]
    with filled(server, there) as in_use:
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(there.use, lambda context: None)
            until(lambda: bool(there.connections.of_threads.queue))
            there.connections.release(in_use.pop())
            asked.result(FOR_EVER)
        assert there.breaker.is_closed
