"""AsyncTicketPool: what is cancelled, killed, forked or in another event loop repeats no ticket, and leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from sqlalchemy import URL, event
from sqlalchemy.util import greenlet_spawn

from sqla_tickets import (
    AsyncTicketPool,
    TicketArgumentError,
    TicketError,
    TicketPool,
    TicketSequence,
)
from sqla_tickets.dialects import class_of
from sqla_tickets.events import Draw
from tests.support.draws import (
    PATIENCE,
    assert_unique,
    fresh_pair,
    in_fork,
    locks_of,
    residues,
    run,
    until,
)
from tests.support.drivers import Route, drivers
from tests.support.servers import ServerFixtures
from tests.support.tcp_proxy import Fault, TcpProxy

TASKS = 200
#: Drawn one by one, and in blocks of which most is buffered.
SEQUENCES = [TicketSequence("photos"), TicketSequence("photos", block=20)]
ROUTES = [
    *drivers(is_async=True),
    Route("mysql+pymysql", "mariadb"),
    Route("sqlite+pysqlite", "sqlite"),
]
#: The connections to a database but the one that asks.
OTHERS = {
    "mysql": "SELECT id FROM information_schema.processlist"
    " WHERE db = DATABASE() AND id <> CONNECTION_ID()",
    "postgresql": "SELECT pid FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
}

Draws = Callable[[AsyncTicketPool, random.Random], Awaitable[list[int]]]
ON_ROUTES = pytest.mark.parametrize("route", ROUTES, ids=str)
#: The transports of a loop that has ended are closed when they are collected, and aiosqlite's thread may have an answer
#: for it.
WHAT_ENDED_LOOPS_LEAVE = pytest.mark.filterwarnings(
    "ignore:.nclosed:ResourceWarning",
    r"ignore:Exception in thread .*_connection_worker_thread:pytest.PytestUnhandledThreadExceptionWarning",
)


@pytest.fixture
def urls(servers: ServerFixtures, tmp_path: Path, route: Route) -> list[URL]:
    return [route.fresh_database(servers, tmp_path, number) for number in (0, 1)]


def connections_at(url: URL) -> int:
    """How many connections to a database there are; 0 for a file."""
    kind = class_of(url.get_backend_name())
    if kind.is_embedded:
        return 0
    synchronous = url.set(drivername=f"{url.get_backend_name()}+{kind.synchronous_driver}")
    return len(run(synchronous, OTHERS[url.get_backend_name()]))


def assert_closed(urls: list[URL]) -> None:
    """See that no connection stays open; a server needs a moment to notice the end of one."""
    until(lambda: not any(connections_at(url) for url in urls))


async def draw_on(pool: AsyncTicketPool, chooser: random.Random, ids: list[int]) -> None:
    """Draw until cancelled; for some time where Python 3.10 loses that."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with suppress(TicketError):
            sequence = chooser.choice(SEQUENCES)
            if chooser.random() < 0.5:
                ids.append(await pool.next_id(sequence))
            else:
                ids.extend(await pool.next_ids(sequence, chooser.randrange(1, 40)))
        await asyncio.sleep(0)


async def cancel_at_random(
    pool: AsyncTicketPool, seconds: float, seed: int, tasks: int = TASKS
) -> list[int]:
    """What many tasks draw, each of which is cancelled at a moment of its own."""
    ids: list[int] = []
    chooser, loop = random.Random(seed), asyncio.get_running_loop()
    drawing = [asyncio.create_task(draw_on(pool, chooser, ids)) for _ in range(tasks)]
    while not ids and not all(task.done() for task in drawing):  # noqa: ASYNC110  # it draws in the meantime
        await asyncio.sleep(0.001)
    for task in drawing:
        loop.call_later(chooser.uniform(0, seconds), task.cancel)
    ended = await asyncio.wait_for(asyncio.gather(*drawing, return_exceptions=True), PATIENCE)
    lost = {type(None)} if sys.version_info < (3, 11) else set()
    assert {type(each) for each in ended} - lost == {asyncio.CancelledError}
    return ids


@ON_ROUTES
async def test_cancelled_tasks_leave_nothing(route: Route, urls: list[URL]) -> None:
    """No ticket twice, no lock of this process or of a server, no connection."""
    async with AsyncTicketPool(urls) as pool, AsyncTicketPool(urls) as other:
        await pool.create_table("photos")
        ids = await cancel_at_random(pool, 1.0, seed=len(route.drivername))
        assert ids
        for _ in range(4):  # blocks, for which the server locks the table
            ids += await pool.next_ids("photos", 10)
            ids += await other.next_ids("photos", 10)
        assert_unique(ids)
        assert residues(ids) == {0, 1}
        assert {status.state for status in await pool.status()} == {"up"}
    for lock in locks_of(pool.sync_pool):
        assert lock.acquire(blocking=False)
        lock.release()  # for threads whose draws were cancelled, which end by themselves
    await asyncio.to_thread(assert_closed, urls)  # the loop may have some to close


@WHAT_ENDED_LOOPS_LEAVE
@ON_ROUTES
def test_loops_of_threads_and_closed_loops_share_a_pool(route: Route, urls: list[URL]) -> None:
    """A pool that one loop closes goes on in the others; what a loop has left open is closed later."""
    pool = AsyncTicketPool(urls)
    asyncio.run(pool.create_table("photos"))
    began = threading.Barrier(4)

    async def draw(number: int) -> list[int]:
        ids = await pool.next_ids("photos", 3)
        await asyncio.to_thread(began.wait, PATIENCE)
        for _ in range(10):
            ids += await cancel_at_random(pool, 0.1, seed=number, tasks=10)
            if number == 0:
                await pool.dispose()
        if number != 1:
            await pool.dispose()
        return ids

    with ThreadPoolExecutor(4) as threads:
        ids = [
            key for drawn in threads.map(lambda n: asyncio.run(draw(n)), range(4)) for key in drawn
        ]
    ids += asyncio.run(pool.next_ids("photos", 3))
    assert_unique(ids)
    asyncio.run(pool.dispose())
    gc.collect()  # not in a test that is warned of it
    assert_closed(urls)


# a cancelled closing of aiosqlite's may wait for ever for its thread, with any pool
@WHAT_ENDED_LOOPS_LEAVE
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("route", [r for r in ROUTES if r.kind != "sqlite"], ids=str)
def test_loops_that_begin_together_share_a_pool(route: Route, urls: list[URL]) -> None:
    """Each waits for another one's first connection, where SQLAlchemy lets only one event loop wait."""
    maker = AsyncTicketPool(urls)
    asyncio.run(maker.create_table("photos"))
    asyncio.run(maker.dispose())
    pool, began = AsyncTicketPool(urls), threading.Barrier(4)

    async def draw() -> list[int]:
        began.wait(PATIENCE)
        ids = await asyncio.gather(*(pool.next_id("photos") for _ in range(5)))
        await pool.dispose()
        return ids

    with ThreadPoolExecutor(4) as threads:
        drawn = threads.map(lambda _: asyncio.run(draw()), range(4))
        assert_unique([key for ids in drawn for key in ids])
    gc.collect()  # not in a test that is warned of it


@WHAT_ENDED_LOOPS_LEAVE
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("route", [r for r in ROUTES if r.kind != "sqlite"], ids=str)
def test_loop_that_is_closed_during_the_first_connection_leaves_the_others_one(
    route: Route, urls: list[URL]
) -> None:
    """SQLAlchemy's lock of the first connection stays locked, as no task of that loop goes on."""
    maker = AsyncTicketPool(urls)
    asyncio.run(maker.create_table("photos"))
    asyncio.run(maker.dispose())
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(url.port)) for url in urls]
        pool = AsyncTicketPool(
            [url.set(port=proxy.port) for url, proxy in zip(urls, proxies, strict=True)]
        )
        for proxy in proxies:
            proxy.do(Fault("delay", 0.05))  # so that it is reading the server's version for a while
        for seconds in (0.1, 0.2, 0.3, 0.4):
            loop = asyncio.new_event_loop()
            draws = [loop.create_task(pool.next_id("photos")) for _ in range(5)]
            loop.call_later(seconds, loop.stop)
            loop.run_forever()
            loop.close()
            assert draws
        for proxy in proxies:
            proxy.do(Fault())
        assert_unique([asyncio.run(pool.next_id("photos")) for _ in range(9)])
        asyncio.run(pool.dispose())
        del draws
        gc.collect()  # not in a test that is warned of it


@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("route", drivers(is_async=True), ids=str)
def test_connections_of_ended_loops_do_not_add_up(route: Route, urls: list[URL]) -> None:
    """As where a job calls ``asyncio.run`` for each of its parts."""
    pool = AsyncTicketPool(urls)
    asyncio.run(pool.create_table("photos"))

    async def draw_at_once() -> None:
        await asyncio.gather(*(pool.next_id("photos") for _ in range(8)))
        await asyncio.sleep(0.1)  # what is closed in the background has the time for it

    threads = threading.active_count()
    for _ in range(4):
        asyncio.run(draw_at_once())
    asyncio.run(pool.next_id("photos"))
    asyncio.run(asyncio.sleep(0.1))
    until(lambda: sum(map(connections_at, urls)) <= 2 * 8)
    until(lambda: threading.active_count() <= threads + 2 * 8)
    asyncio.run(pool.dispose())
    gc.collect()  # not in a test that is warned of it


async def test_synchronous_code_is_refused_even_while_tickets_are_ready(tmp_path: Path) -> None:
    """Else it would work until the buffer is empty."""
    blocks = TicketSequence("photos", block=100)
    pool = TicketPool([f"sqlite+aiosqlite:///{tmp_path}/tickets.db"])
    await greenlet_spawn(pool.create_table, "photos")
    drawn = [await greenlet_spawn(pool.next_id, blocks) for _ in range(2)]
    with pytest.raises(TicketArgumentError, match="synchronous code cannot wait"):
        pool.next_id(blocks)
    with pytest.raises(TicketArgumentError, match="synchronous code cannot wait"):
        await asyncio.to_thread(pool.next_id, blocks)
    assert await greenlet_spawn(pool.next_id, blocks) == drawn[-1] + 1
    await greenlet_spawn(pool.dispose)


@ON_ROUTES
async def test_fork_of_an_event_loop_repeats_no_ticket(route: Route, urls: list[URL]) -> None:
    """Both sides go on with a block in the buffer, and with idle connections."""
    if route.kind == "sqlite":
        pytest.skip("a thread of aiosqlite's does not cross a fork")
    blocks = TicketSequence("photos", block=100)
    async with AsyncTicketPool(urls) as pool:
        await pool.create_table("photos")
        ids = await pool.next_ids(blocks, 7)

        async def draw() -> list[int]:
            return await pool.next_ids(blocks, 20) + await pool.next_ids("photos", 20)

        told = in_fork(lambda: " ".join(map(str, asyncio.run(draw()))))
        ids += [int(number) for number in told.split()]
        ids += await draw()
    assert len(ids) == 87
    assert_unique(ids)


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql", "pymysql"])
async def test_cancelled_tasks_while_servers_are_killed(
    servers: ServerFixtures, driver: str
) -> None:
    pytest.importorskip(driver)
    first, second, plain = fresh_pair(servers, "mariadb")
    urls = [url.set(drivername=f"mysql+{driver}") for url in plain]
    async with AsyncTicketPool(urls) as pool:
        await pool.create_table("photos")
        drawing = asyncio.create_task(cancel_at_random(pool, 4.0, seed=len(driver)))
        for server in (first, second):
            await asyncio.sleep(0.3)
            server.kill()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
        ids = await drawing
        ids += await pool.next_ids("photos", 100)
        assert_unique(ids)
    await asyncio.to_thread(assert_closed, urls)


async def test_events_are_listened_to_as_of_the_pool(tmp_path: Path) -> None:
    draws: list[Draw] = []

    def listener(draw: Draw) -> None:
        draws.append(draw)

    async with AsyncTicketPool([f"sqlite+aiosqlite:///{tmp_path}/tickets.db"]) as pool:
        event.listen(pool, "drawn", listener)
        await pool.create_table("photos")
        await pool.next_ids("photos", 3)
        event.remove(pool, "drawn", listener)
        await pool.next_id("photos")
    assert [draw.tickets for draw in draws] == [3]
