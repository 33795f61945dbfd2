"""Draws that a server keeps waiting: hedged, sent on to the next server, cut off; and who watches them."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, event
from sqlalchemy.util import greenlet_spawn
from typing_extensions import Self

from sqla_tickets import NoTicketServer, TicketError, TicketIntegrityError, TicketPool
from sqla_tickets.connect.connection import Connection
from sqla_tickets.draw import failover, slow_path
from sqla_tickets.draw.hedging import HedgingMonitor
from sqla_tickets.draw.server import InFlightRequest
from sqla_tickets.draw.timing import TIMING
from tests.support.draws import (
    OpenPool,
    assert_unique,
    connections_to,
    draw_from,
    fresh_pair,
    in_fork,
    mysql_like,
    residues,
    run,
)
from tests.support.drivers import Route
from tests.support.interrupts import monitors
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.tcp_proxy import Fault, TcpProxy
from tests.support.timing import set_timing

#: Longer than any loaded machine takes for what is not waited for, in seconds.
FOR_EVER = 90.0
ASYNC = pytest.mark.parametrize(
    "route",
    [
        Route("mysql+asyncmy", "mariadb"),
        Route("mysql+aiomysql", "mariadb"),
        Route("postgresql+asyncpg", "postgresql"),
        Route("postgresql+psycopg_async", "postgresql"),
    ],
    ids=str,
)


def wait_for(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + FOR_EVER
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


@contextmanager
def locked(server: MySQLLike, url: URL, table: str = "photos") -> Iterator[None]:
    """Another client has locked a ticket table; the server is well."""
    with server.administrator() as cursor:
        cursor.execute(f"LOCK TABLES `{url.database}`.`{table}` WRITE")
        yield


def forget_slowness(pool: TicketPool) -> None:
    """Judge the next draws as those of a new pool: a busy machine has delayed others, and hedged them in vain."""
    monitor = pool._monitor
    monitor.durations.clear()
    monitor._usual = monitor.patience = TIMING.first_patience_seconds
    monitor._tokens = TIMING.most_tokens


def hedges(caplog: pytest.LogCaptureFixture) -> int:
    return sum("is overdue" in record.getMessage() for record in caplog.records)


class Load:
    """Threads that draw until the end of the ``with`` block; all they drew, all errors they met."""

    def __init__(self, pool: TicketPool, threads: int = 8) -> None:
        self.ids: list[int] = []
        self._pool, self._over = pool, threading.Event()
        self._executor, self._n = ThreadPoolExecutor(threads), threads

    def __enter__(self) -> Self:
        self._drawing = [self._executor.submit(self._draw) for _ in range(self._n)]
        self.see(20 * self._n)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._executor.shutdown()
        for drawing in self._drawing:
            drawing.result()
        assert_unique(self.ids)

    def see(self, more: int) -> None:
        """Wait until so many more were drawn."""
        wanted = len(self.ids) + more
        wait_for(lambda: len(self.ids) >= wanted or self._failed(), f"{more} draws more")

    def _failed(self) -> bool:
        return any(drawing.done() for drawing in self._drawing)

    def _draw(self) -> None:
        while not self._over.is_set():
            self.ids.append(self._pool.next_id("photos"))


# -- one server of two does not answer


@pytest.mark.parametrize("hedge", [False, True])
def test_threads_go_on_while_a_server_is_frozen(
    servers: ServerFixtures, open_pool: OpenPool, hedge: bool
) -> None:
    first, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls, hedge=hedge)
    pool.create_table("photos")
    with Load(pool) as load:
        first.freeze()
        forget_slowness(pool)
        load.see(200)
        # until the draws that still wait for it have been given up
        wait_for(lambda: not pool.servers[0].in_flight, "the last draw to end")
        first.thaw()
        load.see(10)
        wait_for(lambda: pool.servers[0].breaker.is_closed, "the first server to be asked again")
    draw_from(pool, 1)
    timed_out, failed = (server.table("photos").errors for server in pool.servers)
    # one, and one more where a sign of life was on its way when the server froze
    assert timed_out <= 2, f"{timed_out} of 8 threads have waited for the time-out"
    assert failed == 0


def test_a_lock_is_no_reason_to_leave_a_server(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    first, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls, hedge=True)
    pool.create_table("photos")
    pool.create_table("users")
    with Load(pool, 4) as load:
        with locked(first, urls[0]):
            load.see(50)
            draw_from(pool, 1, sequence="users")
            assert pool.servers[0].breaker.is_closed
            assert pool.servers[0].breaker.reason is None
        load.see(10)
    draw_from(pool, 1)
    assert pool.servers[0].breaker.failures == 0


def test_only_overdue_draws_are_polled(
    servers: ServerFixtures, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else dozens of processes would leave no time to what they wait for."""
    first, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls[:1])
    pool.create_table("photos")
    polls, poll = list[float](), HedgingMonitor.poll

    def count(monitor: HedgingMonitor) -> float:
        polls.append(poll(monitor))
        return polls[-1]

    monkeypatch.setattr(HedgingMonitor, "poll", count)
    with locked(first, urls[0]), pytest.raises(TicketError):
        pool.next_id("photos")
    assert 0 < len(polls) < 400, "in the seconds that a locked table is waited for"
    pool.next_id("photos")

    def sleeps_through_draws() -> bool:
        polls.clear()
        for _ in range(50):
            pool.next_id("photos")
        return not polls and not pool._monitor.poller.is_awake

    wait_for(sleeps_through_draws, "quick draws while the monitor sleeps")


def test_hedges_are_few_while_all_servers_are_frozen(
    servers: ServerFixtures, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqla_tickets.draw.hedging")
    first, second, urls = fresh_pair(servers, "mariadb")
    pool, threads = open_pool(urls, hedge=True), 40
    pool.create_table("photos")
    [pool.next_id("photos") for _ in range(4)]
    with ThreadPoolExecutor(threads) as executor:
        with locked(first, urls[0]), locked(second, urls[1]):
            drawing = [executor.submit(pool.next_id, "photos") for _ in range(threads)]
            wait_for(lambda: hedges(caplog), "a hedge")
            time.sleep(0.2)
        assert_unique([draw.result() for draw in drawing])
    assert 1 <= hedges(caplog) <= TIMING.most_tokens


def test_a_hedge_that_fails_is_not_sent_again_and_again(
    servers: ServerFixtures, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqla_tickets.draw.hedging")
    first, _, urls = fresh_pair(servers, "mariadb")
    open_pool(urls).create_table("photos")
    run(urls[1], f"REPLACE INTO photos (id, stub) VALUES ({2**63 - 2}, 'a')")
    pool = open_pool(urls, hedge=True)
    ids = [pool.next_id("photos") for _ in range(4)]
    assert residues(ids) == {1}, "the other one is exhausted, which no breaker tells"
    with ThreadPoolExecutor(1) as executor:
        with locked(first, urls[0]):
            draw = executor.submit(draw_from, pool, 1)
            wait_for(lambda: hedges(caplog), "a hedge")
            time.sleep(0.3)
        assert_unique(ids + draw.result())
    assert hedges(caplog) < 5


# -- silence that is nobody's fault


def test_connections_that_a_firewall_forgot(servers: ServerFixtures, open_pool: OpenPool) -> None:
    """Both servers are well; what was idle is dead on both. The draw is late, and does not fail."""
    _, _, urls = fresh_pair(servers, "mariadb")
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(url.port)) for url in urls]
        pool = open_pool([u.set(port=r.port) for u, r in zip(urls, proxies, strict=True)])
        pool.create_table("photos")
        ids = [pool.next_id("photos") for _ in range(4)]
        for proxy in proxies:
            proxy.forget()
        ids += [pool.next_id("photos") for _ in range(4)]
        assert {server.breaker.state for server in pool.servers} == {"closed"}
        assert_unique(ids + draw_from(pool, 1) + draw_from(pool, 2))


def test_slow_draws_leave_no_connection_each(servers: ServerFixtures, open_pool: OpenPool) -> None:
    """The signs of life that are asked meanwhile take a new connection each."""
    server = mysql_like(servers, "mariadb")
    url = servers.fresh_database(server)
    pool = open_pool([url])
    pool.create_table("photos")
    pool.next_id("photos")
    with ThreadPoolExecutor(1) as executor:
        for _ in range(6):
            with locked(server, url):
                draw = executor.submit(pool.next_id, "photos")
                before = pool.servers[0].alive_at
                wait_for(lambda before=before: pool.servers[0].alive_at > before, "a sign of life")  # type: ignore[misc]  # mypy infers no default
            draw.result()
    assert len(connections_to(server, url)) <= 2


def test_a_draw_that_timed_out_makes_nobody_patient(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """Where few draws were measured, the time of one is that of more than a hundredth."""
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with TcpProxy(url.port) as proxy:
        pool = open_pool([url.set(port=proxy.port)])
        pool.create_table("photos")
        [pool.next_id("photos") for _ in range(30)]
        proxy.do(Fault("freeze"))
        with pytest.raises(NoTicketServer):
            pool.next_id("photos")
        time.sleep(0.2)  # the monitor measures a few times a second
        assert pool._monitor.patience <= 0.5


# -- the monitor itself


def test_the_monitor_ends_with_its_pool(
    servers: ServerFixtures, caplog: pytest.LogCaptureFixture
) -> None:
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    others = monitors()  # of pools that earlier tests have left to the garbage collector
    pool = TicketPool([url])
    pool.create_table("photos")
    assert not monitors() - others, "nothing is watched before the first draw"
    pool.next_id("photos")
    assert len(monitors() - others) == 1
    pool.dispose()
    assert not monitors() - others
    pool.next_id("photos")
    assert len(monitors() - others) == 1
    del pool

    def is_over() -> bool:
        caplog.clear()  # what was logged on a busy machine may hold the pool
        gc.collect()
        return not monitors() - others

    wait_for(is_over, "the monitor to end with its pool")


def test_draw_while_the_monitor_is_ended_is_polled(open_pool: OpenPool, tmp_path: Path) -> None:
    """An interrupt of ``close`` may come before another thread has taken its place."""
    pool = open_pool([f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")])
    pool.create_table("photos")
    pool.next_id("photos")
    monitor, server = pool._monitor, pool.servers[0]
    ended = monitor.poller
    request = InFlightRequest(server, server.table("photos"), 1)
    with request.under_way:
        server.in_flight.add(request)
        request.is_polled = True
        ended.end()
        wait_for(lambda: monitor.poller is not ended, "another thread")
        wait_for(lambda: monitor.poller.goes_on, "its start")
        assert request in server.in_flight


def test_request_that_an_interrupt_left_is_removed(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """Nothing else wakes the monitor; the server would seem to be loaded for ever."""
    pool = open_pool(fresh_pair(servers, "mariadb")[2])
    pool.create_table("photos")
    draw_from(pool, 0)
    draw_from(pool, 1)
    wait_for(lambda: not pool._monitor.poller.is_awake, "the monitor to sleep")
    server = pool.servers[0]
    left = InFlightRequest(server, server.table("photos"), 1)
    left.since, left.end = time.monotonic(), {}
    server.in_flight.add(left)

    def is_removed() -> bool:
        pool.next_id("photos")
        return left not in server.in_flight

    wait_for(is_removed, "the monitor to wake")


@pytest.mark.parametrize("is_heard", [False, True])
def test_server_that_freezes_after_a_lock_wait_is_given_up(
    servers: ServerFixtures,
    open_pool: OpenPool,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_heard: bool,
) -> None:
    """What a draw asks about the queue for a table has an end, too: the user's own Engine has no time-outs.

    If the server was heard just before, the draw asks once more at its own end.
    """
    first, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool([create_engine(url) for url in urls], hedge=False)
    pool.create_table("photos")
    draw_from(pool, 0)
    draw_from(pool, 1)
    inspect_queue, server = slow_path._inspect_queue, pool.servers[0]

    def freeze_and_inspect(connection: Connection, request: slow_path.Request) -> None:
        first.freeze()
        if is_heard:
            late = threading.Timer(0.5, lambda: setattr(server, "alive_at", time.monotonic()))
            late.start()
        inspect_queue(connection, request)
        if is_heard:
            request.queue_number = 1  # as of a server that freezes just after its answer

    monkeypatch.setattr(slow_path, "_inspect_queue", freeze_and_inspect)
    with locked(first, urls[0]):
        try:
            with ThreadPoolExecutor(1) as executor:
                failed = executor.submit(server.draw_at_once, "photos", 1, time.monotonic())
                with pytest.raises(TicketError):
                    failed.result(FOR_EVER)
        finally:
            first.thaw()


@pytest.mark.parametrize("is_at_once", [True, False])
def test_draw_that_is_interrupted_after_a_lock_wait_keeps_no_connection(
    servers: ServerFixtures,
    open_pool: OpenPool,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_at_once: bool,
) -> None:
    """While it asks whether the table serves a queue."""
    first, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls, hedge=False)
    pool.create_table("photos")
    draw_from(pool, 1)
    draw_from(pool, 2)
    server = pool.servers[0]
    draw = (
        partial(server.draw_at_once, since=time.monotonic())
        if is_at_once
        else partial(server.draw, is_patient=True)
    )
    wait_for(
        lambda: server.draw_at_once("photos", 1, time.monotonic()),
        "an idle connection that knows the table",
    )

    def interrupt(connection: Connection, request: slow_path.Request) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slow_path, "_inspect_queue", interrupt)
    with locked(first, urls[0]), pytest.raises(KeyboardInterrupt):
        draw("photos", 1)
    assert not server.in_flight
    idle = server.connections.of_threads
    wait_for(lambda: idle._count_open() == len(idle), "the connection to be closed")


def test_connection_that_is_just_closed_keeps_no_poll_waiting(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """A draw may close its connection while the monitor looks for an answer."""
    _, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls)
    pool.create_table("photos")
    pool.next_ids("photos", 2)
    connection = pool.servers[0].connections.of_threads[-1]
    wire = connection._wire
    assert wire is not None
    wire.close()
    assert connection.has_answer


def test_the_monitor_outlives_a_log_that_fails(
    servers: ServerFixtures, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqla_tickets.draw.hedging")
    first, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls, hedge=True)
    pool.create_table("photos")
    ids = [pool.next_id("photos") for _ in range(4)]

    def fail(record: logging.LogRecord) -> bool:
        raise OSError("no space left on device")

    log = logging.getLogger("sqla_tickets.draw.hedging")
    log.addFilter(fail)
    with locked(first, urls[0]):
        ids += pool.next_ids("photos", 1) + pool.next_ids("photos", 1)
    log.removeFilter(fail)
    assert hedges(caplog) == 0
    ids += draw_from(pool, 1)
    with locked(first, urls[0]):
        ids += [pool.next_id("photos") for _ in range(4)]
        wait_for(lambda: hedges(caplog), "another hedge")
    assert_unique(ids)


def test_a_fork_while_a_draw_is_waited_for(servers: ServerFixtures, open_pool: OpenPool) -> None:
    first, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls)
    pool.create_table("photos")
    ids = [pool.next_id("photos") for _ in range(4)]
    with ThreadPoolExecutor(2) as executor:
        with locked(first, urls[0]):
            drawing = [executor.submit(pool.next_id, "photos") for _ in range(2)]
            wait_for(lambda: pool.servers[0].unresponsive, "a draw to wait")
            drawn = in_fork(lambda: f"{len(pool.servers[0].in_flight)} {pool.next_id('photos')}")
        ids += [draw.result() for draw in drawing]
    in_child = drawn.split()
    assert in_child[0] == "0", drawn
    assert_unique([*ids, int(in_child[1])])


def test_a_connection_that_came_too_late_is_closed_with_the_pool(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    first, _, urls = fresh_pair(servers, "mariadb")
    with open_pool(urls) as pool:
        pool.create_table("photos")
    pool = open_pool(urls, hedge=True)
    first.freeze()
    assert residues([pool.next_id("photos"), pool.next_id("photos")]) == {0}
    pool.dispose()
    first.thaw()
    wait_for(lambda: not connections_to(first, urls[0]), "the connection to be closed")


def test_only_a_table_itself_ends_its_quarantine(servers: ServerFixtures) -> None:
    """The answer of another server would release a table that still issues old numbers."""
    first, _, urls = fresh_pair(servers, "mariadb")
    with TicketPool(urls, timeout=FOR_EVER) as pool, ThreadPoolExecutor() as executor:
        pool.create_table("photos", layout="counter")
        assert residues(pool.next_id("photos") for _ in range(2)) == {0, 1}
        server = pool.servers[0]
        run(urls[0], "UPDATE photos SET id = 1")
        with pytest.raises(TicketIntegrityError):
            server.draw("photos", 1)
        forget_slowness(pool)
        first.freeze()
        ending = executor.submit(pool.unquarantine, "photos", server)
        wait_for(lambda: server.unresponsive or ending.done(), "the server to seem unresponsive")
        time.sleep(5 * TIMING.first_patience_seconds)  # a hedge is answered sooner
        first.thaw()
        assert isinstance(ending.exception(), TicketIntegrityError)
        assert server.table("photos").state == "quarantined"


# -- event loops


async def next_id(pool: TicketPool) -> int:
    return await greenlet_spawn(pool.next_id, "photos")


async def draws(pool: TicketPool, n: int) -> list[int]:
    """So many draws, in as many tasks."""
    return await asyncio.gather(*(next_id(pool) for _ in range(n)))


def async_urls(servers: ServerFixtures, route: Route, folder: Path) -> list[URL]:
    return [route.fresh_database(servers, folder, number) for number in range(2)]


async def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + FOR_EVER
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.01)


@ASYNC
@pytest.mark.parametrize("hedge", [False, True])
def test_tasks_go_on_while_a_server_is_frozen(
    servers: ServerFixtures, route: Route, hedge: bool, tmp_path: Path
) -> None:
    urls = async_urls(servers, route, tmp_path)

    async def work(pool: TicketPool, silence: Callable[[], object]) -> list[int]:
        await greenlet_spawn(pool.create_table, "photos")
        ids = await draws(pool, 20) + await draws(pool, 20)
        silence()
        ids += await draws(pool, 20)
        await until(lambda: not pool.servers[0].in_flight, "the last draw to end")
        ids += await draws(pool, 20)
        await greenlet_spawn(pool.dispose)
        return ids

    outcomes: list[str] = []
    with TcpProxy(urls[0].port) as proxy:
        pool = TicketPool([urls[0].set(port=proxy.port), urls[1]], hedge=hedge)
        event.listen(pool, "hedged", lambda *told: outcomes.append(told[-1]))

        def silence() -> None:
            proxy.do(Fault("freeze"))
            forget_slowness(pool)

        assert_unique(asyncio.run(work(pool, silence)))
    assert ("won" in outcomes) == hedge
    timed_out, failed = (server.table("photos").errors for server in pool.servers)
    assert timed_out <= 2
    assert failed == 0


@ASYNC
def test_a_server_comes_back_to_loops_that_end_at_once(
    servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    """As with one `asyncio.run()` per task of a queue: none lasts as long as a sign of life."""
    url = route.fresh_database(servers, tmp_path)

    async def silenced(pool: TicketPool) -> None:
        await greenlet_spawn(pool.create_table, "photos")
        await next_id(pool)
        proxy.do(Fault("freeze"))
        with pytest.raises(NoTicketServer):
            await next_id(pool)
        with pytest.raises(NoTicketServer):
            await next_id(pool)
        proxy.do(Fault())
        proxy.forget()

    async def served(pool: TicketPool) -> bool:
        try:
            await next_id(pool)
        except NoTicketServer:
            return False
        await greenlet_spawn(pool.dispose)
        return True

    with TcpProxy(url.port) as proxy:
        pool = TicketPool([url.set(port=proxy.port)])
        asyncio.run(silenced(pool))
        wait_for(lambda: asyncio.run(served(pool)), "an answer")


@pytest.mark.filterwarnings("ignore")  # what such a loop leaves behind is its owner's fault
def test_a_loop_that_is_closed_under_its_draws(servers: ServerFixtures) -> None:
    route = Route("mysql+asyncmy", "mariadb")
    pytest.importorskip(route.module)
    first, _, urls = fresh_pair(servers, "mariadb")
    pool = TicketPool([url.set(drivername=route.drivername) for url in urls], hedge=False)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(greenlet_spawn(pool.create_table, "photos"))
    loop.run_until_complete(draws(pool, 4))
    with locked(first, urls[0]):
        task = loop.create_task(draws(pool, 4))
        loop.run_until_complete(until(lambda: pool.servers[0].unresponsive, "a draw to wait"))
        loop.close()
    wait_for(lambda: not pool.servers[0].in_flight, "the draws to be struck out")
    assert not pool.servers[0].unresponsive
    wait_for(lambda: residues(asyncio.run(draws(pool, 8))) == {0, 1}, "both servers in use")
    del task, loop
    gc.collect()


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts what other threads give it to do."""

    given = 0

    def call_soon_threadsafe(self, *arguments: Any, **keywords: Any) -> asyncio.Handle:  # type: ignore[override]  # its types are too many
        self.given += 1
        return super().call_soon_threadsafe(*arguments, **keywords)


def test_a_loop_is_not_given_more_to_do_by_every_poll(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, failover, shared_from=1000)  # each task draws for itself
    server = mysql_like(servers, "mariadb")
    url = servers.fresh_database(server)
    pool, tasks = TicketPool([url.set(drivername="mysql+aiomysql")]), 20

    async def work() -> int:
        await greenlet_spawn(pool.create_table, "photos")
        await draws(pool, tasks)
        with locked(server, url):
            before = loop.given
            drawing = asyncio.gather(*(next_id(pool) for _ in range(tasks)))
            await until(lambda: len(pool.servers[0].unresponsive) == tasks, "all draws to wait")
            await asyncio.sleep(0.2)
            time.sleep(0.2)  # noqa: ASYNC251  # the loop is busy
            await asyncio.sleep(0)
            given = loop.given - before
        assert_unique(await drawing)
        await greenlet_spawn(pool.dispose)
        return given

    loop = CountingLoop()
    try:
        assert tasks <= loop.run_until_complete(work()) <= 3 * tasks
    finally:
        loop.close()


def test_a_cancelled_draw_leaves_its_thread(servers: ServerFixtures) -> None:
    """A sync driver's draws take threads, of which there are not many, also from other pools."""
    first, _, urls = fresh_pair(servers, "mariadb")
    unresponsive, well = (TicketPool([url], timeout=2 * FOR_EVER) for url in urls)

    async def work() -> int:
        for pool in (unresponsive, well):
            await greenlet_spawn(pool.create_table, "photos")
            await next_id(pool)
        first.freeze()
        drawing = [asyncio.create_task(next_id(unresponsive)) for _ in range(40)]
        await asyncio.sleep(0.5)
        for task in drawing:
            task.cancel()
        await asyncio.gather(*drawing, return_exceptions=True)
        return await asyncio.wait_for(next_id(well), FOR_EVER)

    try:
        assert asyncio.run(work()) > 0
    finally:
        first.thaw()
        for pool in (unresponsive, well):
            pool.dispose()
