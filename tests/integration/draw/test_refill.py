"""The next block, fetched in the background: whatever comes in its way, nobody waits for it."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, event
from sqlalchemy.util import await_only, greenlet_spawn

from sqla_tickets import TicketArgumentError, TicketError, TicketPool, TicketSequence
from sqla_tickets.concurrency import pause
from sqla_tickets.draw import buffer
from sqla_tickets.events import Draw
from tests.support.draws import (
    PATIENCE,
    OpenPool,
    assert_unique,
    connections_to,
    fresh_pair,
    in_fork,
    until,
)
from tests.support.drivers import Route, routes
from tests.support.interrupts import monitors
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.timing import set_timing

pytestmark = pytest.mark.ticket_servers("mariadb", "mysql", "postgresql")
PHOTOS = TicketSequence("photos", block=100)
FETCH = "sqla_tickets block of 'photos'"


@pytest.fixture(autouse=True)
def one_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast a test takes tickets, a draw takes no more than a block."""
    set_timing(monkeypatch, buffer, blocks_at_once=1)


def fetches() -> list[threading.Thread]:
    """The threads that fetch blocks now."""
    return [thread for thread in threading.enumerate() if thread.name == FETCH]


def buffered(pool: TicketPool) -> int:
    return pool._buffer.count("photos")


def draws(pool: TicketPool) -> int:
    return sum(record.draws for record in pool.status())


class Gate:
    """Holds up the fetches that have drawn, and counts them.

    Attributes:
        open: set it to let them pass.
        seen: how many have come.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.seen = threading.Event(), 0
        self._draw = TicketPool._draw
        hold = self._draw_and_hold
        monkeypatch.setattr(TicketPool, "_draw", lambda *asked: hold(*asked))  # noqa: PLW0108  # a bound method would not get the pool

    def _draw_and_hold(self, pool: TicketPool, name: str, n: int) -> list[range]:
        drawn = self._draw(pool, name, n)
        if threading.current_thread().name == FETCH:
            self.seen += 1
            assert self.open.wait(PATIENCE)
        return drawn


@pytest.fixture
def gate(pool: TicketPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate, and behind it a fetch."""
    gate = Gate(monkeypatch)
    pool.next_ids(PHOTOS, 45), pool.next_ids(PHOTOS, 5)
    until(lambda: gate.seen == 1)
    yield gate
    gate.open.set()
    until(lambda: not fetches())


# -- when


def test_the_next_block_is_fetched_when_half_of_one_is_left(pool: TicketPool) -> None:
    ids = pool.next_ids(PHOTOS, 40) + pool.next_ids(PHOTOS, 9)
    assert not fetches()
    assert buffered(pool) == 51
    ids += pool.next_ids(PHOTOS, 1)
    until(lambda: buffered(pool) == 150)
    assert draws(pool) == 2
    until(lambda: not fetches())
    ids += pool.next_ids(PHOTOS, 90)
    assert draws(pool) == 2
    assert_unique(ids)


def test_tickets_that_are_taken_one_by_one_never_run_out(pool: TicketPool) -> None:
    ids: list[int] = []
    for _ in range(25):
        ids += [pool.next_id(PHOTOS) for _ in range(20)]
        until(lambda: buffered(pool) > 50 and not fetches())
    assert_unique(ids)
    assert draws(pool) <= 7


def test_nothing_is_fetched_without_need(pool: TicketPool) -> None:
    for _ in range(3):
        pool.next_ids(PHOTOS, 100)  # a block, or more: they come from no buffer
        pool.next_ids(PHOTOS, 250)
        pool.next_id("photos"), pool.next_ids("photos", 5)
        pool.next_id(TicketSequence("photos"))
    pool.next_ids(PHOTOS, 90)
    assert draws(pool) == 3 * 5 + 1
    assert buffered(pool) == 10
    assert not fetches()


# -- one at a time, in nobody's way


def test_one_fetch_at_a_time(pool: TicketPool, gate: Gate) -> None:
    ids = [pool.next_id(PHOTOS) for _ in range(30)] + pool.next_ids(PHOTOS, 5)
    assert gate.seen == 1
    assert len(fetches()) == 1
    assert_unique(ids)


def test_an_empty_buffer_does_not_wait_for_the_fetch(pool: TicketPool, gate: Gate) -> None:
    ids = pool.next_ids(PHOTOS, 80)  # 50 were left
    assert gate.seen == 1
    there = buffered(pool)
    assert there > 0
    gate.open.set()
    until(lambda: not fetches())
    assert buffered(pool) >= there + 100
    ids += pool.next_ids(PHOTOS, buffered(pool))
    assert_unique(ids)


def test_a_block_that_arrives_after_its_table_was_dropped(pool: TicketPool, gate: Gate) -> None:
    pool.drop_table("photos")
    pool.create_table("photos")
    gate.open.set()
    until(lambda: not fetches())
    assert buffered(pool) == 0
    ids = [pool.next_id(PHOTOS) for _ in range(300)]
    assert_unique(ids)


def test_a_block_that_arrives_after_the_sequence_was_raised(pool: TicketPool, gate: Gate) -> None:
    pool.raise_above("photos", 5000)
    gate.open.set()
    until(lambda: not fetches())
    assert min(pool.next_id(PHOTOS) for _ in range(250)) > 5000


@pytest.mark.ticket_servers("mariadb")
def test_dispose_during_a_fetch(servers: ServerFixtures, open_pool: OpenPool) -> None:
    """It leaves no connection and no thread; the pool can be used again."""
    strangers = monitors()
    first, second, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls)
    pool.create_table("photos")
    ids = pool.next_ids(PHOTOS, 45)
    with first.administrator() as one, second.administrator() as other:
        for cursor, url in zip((one, other), urls, strict=True):
            cursor.execute(f"LOCK TABLES `{url.database}`.photos WRITE")
        ids += pool.next_ids(PHOTOS, 5)
        until(lambda: bool(fetches()) and any(map(_waits_for_a_lock, (first, second), urls)))
        pool.dispose()
    until(lambda: not fetches() and not monitors() - strangers)
    until(lambda: not connections_to(first, urls[0]) and not connections_to(second, urls[1]))
    ids += pool.next_ids(PHOTOS, 200)
    assert_unique(ids)


def _waits_for_a_lock(server: MySQLLike, url: URL) -> bool:
    return bool(connections_to(server, url, "lock"))


@pytest.mark.ticket_servers("mariadb")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_during_a_fetch(pool: TicketPool, gate: Gate) -> None:
    """The block that arrives is the parent's; the child draws, and fetches, for itself."""

    def work() -> str:
        gate.open = threading.Event()
        gate.open.set()
        ids = [pool.next_id(PHOTOS) for _ in range(60)]
        until(lambda: not fetches() and buffered(pool) > 50)
        return json.dumps(ids + pool.next_ids(PHOTOS, buffered(pool)))

    answer = in_fork(work)
    assert answer.startswith("["), answer
    gate.open.set()
    until(lambda: buffered(pool) == 150)
    assert_unique(pool.next_ids(PHOTOS, 150) + json.loads(answer))


# -- when it fails


@pytest.mark.ticket_servers("mariadb")
def test_a_fetch_that_fails(
    servers: ServerFixtures,
    open_pool: OpenPool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said once, costs nobody anything, and is tried again after a while."""
    first, second, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls)
    pool.create_table("photos")
    ids = pool.next_ids(PHOTOS, 40)
    first.kill(), second.kill()
    caplog.set_level("INFO", "sqla_tickets.draw.buffer")

    def said() -> list[str]:
        told = [r.getMessage() for r in caplog.records if r.name == "sqla_tickets.draw.buffer"]
        return [text for text in told if "'photos' is not fetched ahead" in text]

    set_timing(monkeypatch, buffer, failed_fetch_seconds=1000.0)
    ids += pool.next_ids(PHOTOS, 20)
    until(lambda: len(said()) == 1)
    until(lambda: not fetches())
    ids += [pool.next_id(PHOTOS) for _ in range(40)]
    with pytest.raises(TicketError):
        pool.next_id(PHOTOS)
    assert len(said()) == 1
    first.start()
    second.start()
    ids.append(_once_it_serves(pool))
    ids += pool.next_ids(PHOTOS, 60)  # less than half is left
    assert not fetches()

    def fetched() -> bool:
        if not fetches():  # a busy machine may let it fail once more
            pool._buffer.sequence("photos").end_fetch(failed=False)  # as if the while were over
            ids.append(pool.next_id(PHOTOS))
        return buffered(pool) > 100

    until(fetched)
    assert_unique(ids)


def _once_it_serves(pool: TicketPool) -> int:
    ids: list[int] = []

    def serves() -> bool:
        try:
            ids.append(pool.next_id(PHOTOS))
        except TicketError:
            return False
        return True

    until(serves)
    return ids[0]


@pytest.mark.ticket_servers("mariadb")
def test_no_thread_can_be_started(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ids = pool.next_ids(PHOTOS, 90)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    ids += [pool.next_id(PHOTOS) for _ in range(50)]
    assert len([r for r in caplog.records if FETCH in r.getMessage()]) == 1
    assert_unique(ids)


# -- the end


@pytest.mark.ticket_servers("mariadb")
def test_a_fetch_keeps_no_pool_alive(ticket_urls: list[URL]) -> None:
    pool = TicketPool(ticket_urls)
    pool.create_table("photos")
    pool.next_ids(PHOTOS, 90), pool.next_ids(PHOTOS, 5)
    until(lambda: not fetches())
    pool.dispose()
    there = weakref.ref(pool)
    del pool
    gc.collect()
    assert there() is None


# The fetch connects to what takes the connection and never says a word.
ENDS_WHILE_IT_FETCHES = """
import socket, sys, threading
from sqlalchemy import event
from sqla_tickets import TicketArgumentError, TicketPool, TicketSequence
photos = TicketSequence("photos", block=100)
pool = TicketPool(sys.argv[1:], timeout=60)
pool.next_ids(photos, 90)
silent = socket.create_server(("127.0.0.1", 0))
reached = threading.Event()
def lead_astray(dialect, record, args, options):
    options["port"] = silent.getsockname()[1]
    reached.set()
for server in pool.servers:
    event.listen(server.engine, "do_connect", lead_astray)
pool.dispose()
pool.next_ids(photos, 5)
assert reached.wait(60)
held = silent.accept()
print("well")
"""
ENDS_AT_FULL_SPEED = """
import sys, time
from sqla_tickets import TicketPool, TicketSequence
photos = TicketSequence("photos", block=100)
pool = TicketPool(sys.argv[1:])
end = time.monotonic() + 0.3
while time.monotonic() < end:
    for _ in range(100):
        pool.next_id(photos)
print("well")
"""


@pytest.mark.ticket_servers("mariadb")
@pytest.mark.parametrize(
    "program", [ENDS_WHILE_IT_FETCHES, ENDS_AT_FULL_SPEED], ids=["in silence", "at full speed"]
)
def test_a_program_ends_with_a_fetch_under_way(
    pool: TicketPool, ticket_urls: list[URL], program: str
) -> None:
    texts = [url.render_as_string(hide_password=False) for url in ticket_urls]
    done = subprocess.run(
        [sys.executable, "-c", program, *texts], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == ("well\n", "")


# -- event loops

ASYNC = [r for r in routes() if r.is_async and r.kind in ("mariadb", "postgresql")]


@pytest.fixture(params=ASYNC, ids=str)
def async_urls(
    request: pytest.FixtureRequest, servers: ServerFixtures, tmp_path: Path
) -> tuple[Route, list[URL]]:
    """Two ticket databases at the end of each route that needs an event loop."""
    route: Route = request.param
    return route, [route.fresh_database(servers, tmp_path, n) for n in range(2)]


def test_a_fetch_is_a_task_of_the_loop(async_urls: tuple[Route, list[URL]]) -> None:
    route, urls = async_urls

    def work() -> TicketPool:
        pool = TicketPool(urls)
        pool.create_table("photos")
        ids = pool.next_ids(PHOTOS, 45) + pool.next_ids(PHOTOS, 10)
        tasks = [task for task in asyncio.all_tasks() if task.get_name() == FETCH]
        assert len(tasks) == 1
        assert not fetches()
        assert buffered(pool) == 45
        pause_until(tasks[0].done)
        assert buffered(pool) == 145
        assert_unique(ids + pool.next_ids(PHOTOS, 145))
        pool.dispose()
        return pool

    route.run(work)


def test_buffer_outlives_its_loop_and_serves_the_next_one(
    async_urls: tuple[Route, list[URL]], caplog: pytest.LogCaptureFixture
) -> None:
    """Without a loop its tickets are refused, as a draw would be, and stay."""
    route, urls = async_urls
    pool = TicketPool(urls)

    def work() -> list[int]:
        pool.create_table("photos")
        ids = pool.next_ids(PHOTOS, 40)
        pool.dispose()
        return ids

    def go_on() -> list[int]:
        ids = [pool.next_id(PHOTOS) for _ in range(60)]
        pool.dispose()
        return ids

    ids = route.run(work)
    with pytest.raises(TicketArgumentError):
        pool.next_id(PHOTOS)
    assert buffered(pool) == 60
    ids += route.run(go_on)
    assert_unique(ids)
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert not [r for r in warnings if r.name.startswith("sqla_tickets")]


def pause_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        pause(0.005)


LOOP_ENDS = """
import asyncio, logging, sys
from dataclasses import replace
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from sqla_tickets import TicketPool, TicketSequence
from sqla_tickets.draw import buffer
photos = TicketSequence("photos", block=100)
pool = TicketPool(sys.argv[2:])
buffer.TIMING = replace(
    buffer.TIMING, lost_fetch_seconds=0.5, failed_fetch_seconds=0.5, blocks_at_once=1
)
logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # it may tell of a query that was cancelled
# asyncpg leaves the future of a connect that is cancelled while it asks for TLS.
logging.getLogger("asyncio").addFilter(lambda r: "unexpected connection_lost()" not in r.getMessage())

def work(then):
    ids = pool.next_ids(photos, 90) + pool.next_ids(photos, 5)
    assert any(task.get_name() == "sqla_tickets block of 'photos'" for task in asyncio.all_tasks())
    then()
    return ids

async def main(then=lambda: None):
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.connect() as connection:
        ids = await connection.run_sync(lambda _: work(then))
    await engine.dispose()
    return ids

async def go_on(ids):
    await asyncio.sleep(0.6)
    ids += await main()
    await asyncio.sleep(0.5)

    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.connect() as connection:
        await connection.run_sync(lambda _: pool.dispose())
    await engine.dispose()

if sys.argv[1] == "run":
    ids = asyncio.run(main())
else:
    loop = asyncio.new_event_loop()
    ids = loop.run_until_complete(main())
    loop.close()
pool._buffer.sequence("photos").take(1000)
asyncio.run(go_on(ids))
assert len(set(ids)) == len(ids) == 190
print("well")
"""


@pytest.mark.parametrize("how", ["run", "closed"])
def test_a_loop_ends_with_a_fetch_under_way(async_urls: tuple[Route, list[URL]], how: str) -> None:
    route, urls = async_urls

    def create() -> None:
        pool = TicketPool(urls)
        pool.create_table("photos")
        pool.dispose()

    route.run(create)
    texts = [url.render_as_string(hide_password=False) for url in urls]
    done = subprocess.run(
        [sys.executable, "-c", LOOP_ENDS, how, *texts],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.stderr) == ("well\n", "")


# -- tasks that find the buffer empty at the same moment

TASKS = 250


async def together(pool: TicketPool, tasks: int) -> list[int]:
    """The tickets of so many tasks, one each."""
    ids: list[int] = await asyncio.gather(
        *(greenlet_spawn(pool.next_id, PHOTOS) for _ in range(tasks))
    )
    return ids


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks wait for a block however slow the machine is."""
    set_timing(monkeypatch, buffer, refill_wait_seconds=1000.0)


@pytest.mark.usefixtures("endless")
def test_tasks_share_the_blocks_on_their_way(async_urls: tuple[Route, list[URL]]) -> None:
    """A block does for a hundred of them; beside these three, few are fetched ahead."""
    route, urls = async_urls

    def work() -> None:
        pool = TicketPool(urls)
        pool.create_table("photos")
        drawn: list[Draw] = []
        event.listen(pool, "drawn", drawn.append)
        assert_unique(await_only(together(pool, TASKS)))
        assert 3 <= len(drawn) <= 6
        pool.dispose()

    route.run(work)


class Held:
    """Holds up the first draw, which its task waits for like for a silent server.

    Attributes:
        task: for which that draw is.
        began: how many draws have begun.
        is_free: set it to let the first one go on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pool: TicketPool) -> None:
        self.began, self.is_free, self._draw = 0, False, TicketPool._draw
        hold = self._hold
        monkeypatch.setattr(TicketPool, "_draw", lambda *asked: hold(*asked))  # noqa: PLW0108  # a bound method would not get the pool
        self.task = asyncio.create_task(greenlet_spawn(pool.next_id, PHOTOS))
        pause_until(lambda: self.began == 1)

    def _hold(self, pool: TicketPool, name: str, n: int) -> list[range]:
        self.began += 1
        if self.began == 1:
            pause_until(lambda: self.is_free)
        return self._draw(pool, name, n)


def test_no_task_waits_long_for_the_block_of_another(
    async_urls: tuple[Route, list[URL]], monkeypatch: pytest.MonkeyPatch
) -> None:
    route, urls = async_urls

    def work() -> None:
        pool = TicketPool(urls)
        pool.create_table("photos")
        held = Held(monkeypatch, pool)
        ids = await_only(together(pool, 5))
        assert not held.task.done()
        held.is_free = True
        assert_unique([*ids, await_only(held.task)])
        pool.dispose()

    route.run(work)


@pytest.mark.usefixtures("endless")
def test_a_task_is_cancelled_for_whose_block_others_wait(
    async_urls: tuple[Route, list[URL]], monkeypatch: pytest.MonkeyPatch
) -> None:
    route, urls = async_urls

    def work() -> None:
        pool = TicketPool(urls)
        pool.create_table("photos")
        held = Held(monkeypatch, pool)
        others = asyncio.create_task(together(pool, 5))
        pause(0.05)
        assert held.began == 1
        held.task.cancel()
        assert_unique(await_only(others))
        pool.dispose()

    route.run(work)
