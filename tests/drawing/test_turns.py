"""More draws at once than a process keeps connections: they queue for one, and no server turns them away."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.util import greenlet_spawn

from sqla_tickets import TicketPool, watch
from sqla_tickets.connections import Connection
from sqla_tickets.forks import mark
from sqla_tickets.turns import AT_ONCE, KEPT, Stock
from tests.drawing.relay import relay_to
from tests.drawing.tools import assert_unique, connections_to, fresh_pair, mysql_like, setting
from tests.servers import Borrower, MySQLLike
from tests.servers.ports import free_port

#: Longer than any loaded machine takes, in seconds: a slow draw is not to be sent elsewhere.
FOR_EVER = 30.0
TASKS, THREADS = 200, 100
#: Connections that are opened while others count them.
MANY = 500
#: Fewer connections than a process may keep; MariaDB takes no smaller number.
FEW = 10
Pair = tuple[list[MySQLLike], list[URL]]


@pytest.fixture
def crowded(servers: Borrower, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Two servers that let in few more connections than one process may keep."""
    monkeypatch.setattr(watch, "FIRST", FOR_EVER)
    monkeypatch.setattr(watch, "FLOOR", FOR_EVER)
    first, second, urls = fresh_pair(servers, "mariadb")
    with TicketPool(urls) as pool:
        pool.create_table("photos", layout="counter")
    with ExitStack() as stack:
        for server in (first, second):
            stack.enter_context(setting(server, max_connections=KEPT + 10))
        yield [first, second], urls


def are_few(pair: Pair) -> bool:
    """Whether each server has no more connections than a process keeps, and one of a probe's."""
    servers, urls = pair
    return all(
        len(connections_to(server, url)) <= KEPT + 1
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
    stock, made = Stock(), list[Connection]()
    dbapi: Any = sqlite3.connect(":memory:")

    def count() -> None:
        while len(made) < MANY:
            stock.has_room()

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with closing(dbapi), ThreadPoolExecutor(2) as threads:
            counting = [threads.submit(count) for _ in range(2)]
            for _ in range(MANY):
                made.append(Connection(dbapi, None, 0, mark()))
                stock.has_made(made[-1])
    finally:
        sys.setswitchinterval(usual)
    for each in counting:
        each.result()


@pytest.mark.parametrize("driver", ["pymysql", "asyncmy", "aiomysql"])
def test_a_server_that_lets_in_fewer(servers: Borrower, driver: str) -> None:
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
    servers: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FIRST", FOR_EVER)
    url = servers.fresh_database(mysql_like(servers, "mariadb"))

    async def draw(port: int) -> None:
        there = url.set(drivername="mysql+asyncmy", port=port)
        pool = TicketPool([there], timeout=FOR_EVER, hedge=False)
        for _ in range(2 * KEPT):
            task = asyncio.ensure_future(greenlet_spawn(pool.next_id, "photos"))
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.wait([task])

    with relay_to(url.port) as relay:
        relay.deaf = True
        asyncio.run(draw(relay.port))
        assert AT_ONCE < relay.lines <= KEPT


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


def test_a_queue_that_moves_is_no_reason_to_fail(servers: Borrower) -> None:
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
