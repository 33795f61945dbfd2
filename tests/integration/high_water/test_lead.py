"""No ticket is handed out that is far above what the peers have stored, as long as they answer."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import URL, event
from sqlalchemy.util import greenlet_spawn

from sqla_tickets import TicketPool, TicketServer
from sqla_tickets.concurrency import pause
from sqla_tickets.connect.connection import Connection
from sqla_tickets.errors import TicketServerError
from sqla_tickets.high_water import peer as peer_module
from sqla_tickets.high_water import service
from sqla_tickets.high_water.peer import Peer
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.high_water.timing import TIMING
from tests.support.draws import (
    OpenPool,
    assert_unique,
    fresh_pair,
    grant_only,
    in_fork,
    run,
    setting,
    until,
)
from tests.support.high_water_marks import marks_on
from tests.support.interrupts import at_rest
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.tcp_proxy import HOST, Fault, TcpProxy
from tests.support.timing import set_timing

#: So many tickets that none of them may be handed out before the peer knows of it.
FAR = 3 * TIMING.lead_tickets
#: How many numbers above the mark of one of two servers its tickets are handed out.
LEAD = 2 * TIMING.lead_tickets
#: Longer than any loaded machine takes, in seconds.
FOR_EVER = 60.0
SQLITE = pytest.mark.ticket_servers("sqlite")
MARIADB = pytest.mark.ticket_servers("mariadb")
Use = Callable[..., None]


class Pair(NamedTuple):
    """The second of two servers, the addresses of both, and their pool."""

    second: MySQLLike
    urls: list[URL]
    pool: TicketPool


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long draws have paused, in seconds, one pause after the other, to wait for marks."""
    paused: list[float] = []

    def record(seconds: float) -> None:
        paused.append(seconds)
        pause(seconds)

    monkeypatch.setattr(service, "pause", record)
    return paused


@pytest.fixture
def pair(servers: ServerFixtures, ticket_kind: str, open_pool: OpenPool) -> Pair:
    """Two servers of the test's own, of which the first was drawn far from."""
    _, second, urls = fresh_pair(servers, ticket_kind)
    pool = open_pool(urls)
    pool.create_table("photos")
    draw_far(pool)
    return Pair(second, urls, pool)


def draw_far(pool: TicketPool, n: int = FAR) -> int:
    """The last of so many tickets of the first server."""
    return pool.servers[0].draw("photos", n)[-1][-1]


def peer_that_stores(pool: TicketPool) -> Peer:
    """The second server as a peer, when it has stored the mark of a first ticket."""
    draw_far(pool, 1)
    peer = pool._marks._peers[1]
    until(lambda: not peer.is_writing)
    return peer


def check_no_draw_waits(pool: TicketPool, pauses: list[float]) -> None:
    """See that ten draws far above the mark wait for no peer."""
    for _ in range(10):
        draw_far(pool)
    assert not pauses


@contextmanager
def breaker_opens(server: TicketServer, seconds: float) -> Iterator[None]:
    """A draw on the server times out after that."""
    failure = TicketServerError("no answer in time")
    timer = threading.Timer(seconds, lambda: server.breaker.record_failure(failure, timed_out=True))
    timer.start()
    yield
    timer.join()


def mark_on(url: URL) -> int:
    return marks_on(url).get(("photos", 1), 0)


def hold(monkeypatch: pytest.MonkeyPatch, peer: TicketServer, wait: Callable[[], object]) -> None:
    """Have a server answer what is not a draw only after a wait."""
    use = peer.use

    def late(work: Use) -> None:
        wait()
        use(work)

    monkeypatch.setattr(peer, "use", late)


def wait_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have draws wait so long for a peer that stores no mark."""
    for module in (service, peer_module):
        set_timing(monkeypatch, module, lead_wait_seconds=seconds)


def shorten_lead(monkeypatch: pytest.MonkeyPatch, tickets: int) -> None:
    """Have draws stay so near a peer's mark."""
    set_timing(monkeypatch, service, lead_tickets=tickets)
    set_timing(monkeypatch, peer_module, unread_tickets=tickets // 5)


@contextmanager
def waiting(
    pool: TicketPool,
    monkeypatch: pytest.MonkeyPatch,
    ids: list[int],
    is_free: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Another thread's draw waits for a mark; at the end it is stored, and the thread draws once more."""
    draw_far(pool, 1)
    may_go_on, waits = threading.Event(), threading.Event()

    def wait() -> None:
        waits.set()
        assert is_free() or may_go_on.wait(FOR_EVER)

    def draw() -> None:
        ids.extend(draw_far(pool) for _ in range(2))

    hold(monkeypatch, pool.servers[1], wait)
    thread = threading.Thread(target=draw)
    thread.start()
    assert waits.wait(FOR_EVER)
    until(lambda: not pool.servers[0].in_flight)
    yield
    assert not ids
    may_go_on.set()
    thread.join(FOR_EVER)


# -- the bound


def test_ticket_far_above_the_mark_waits_until_it_is_stored(
    pool: TicketPool, ticket_urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the size of a draw nor the time since the last write keeps a mark from being written."""
    set_timing(monkeypatch, service, interval_seconds=math.inf)
    for n in (1, 10**6, FAR, FAR, TIMING.lead_tickets, 5):
        last = draw_far(pool, n)
        assert last <= mark_on(ticket_urls[1]) + LEAD


def test_many_small_draws_stay_near_the_mark(
    pool: TicketPool,
    ticket_urls: list[URL],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_lead(monkeypatch, 10)
    set_timing(monkeypatch, service, interval_seconds=math.inf)
    for _ in range(40):
        last = draw_far(pool, 1)
        assert last <= mark_on(ticket_urls[1]) + 20
    assert not pool._marks._peers[1].is_left_behind


def test_draws_that_marks_follow_need_no_further_rounds(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds that are due read how far a peer's mark has come."""
    shorten_lead(monkeypatch, 100)
    set_timing(monkeypatch, service, interval_seconds=0.0)
    asked: list[object] = []
    original = pool._marks.bound_lead

    def bound_lead(*arguments: Any) -> None:
        asked.append(arguments)
        original(*arguments)

    monkeypatch.setattr(pool._marks, "bound_lead", bound_lead)
    for _ in range(300):
        draw_far(pool, 1)
        until(lambda: not any(peer.is_writing for peer in pool._marks._peers))
    assert len(asked) <= 2, "instead of one for each half of the lead"


def test_peer_that_is_unread_is_read_and_written(
    pool: TicketPool, ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """What another process was given counts: numbers are those of all processes."""
    other = open_pool(ticket_urls)
    other.servers[0].draw("photos", 1)
    run(ticket_urls[1], f"UPDATE {MARKS} SET mark = 1")
    run(ticket_urls[0], f"UPDATE photos SET id = {10**7 + 1}")
    assert draw_far(other, 1) <= mark_on(ticket_urls[1]) + LEAD
    assert draw_far(pool, 1) <= mark_on(ticket_urls[1]) + LEAD


@SQLITE
def test_draw_waits_for_the_lock_of_a_file(tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.db" for n in range(2)]
    with TicketPool([f"sqlite:///{file}" for file in files], timeout=FOR_EVER) as pool:
        pool.create_table("photos")
        draw_far(pool, 1)
        other = sqlite3.connect(files[1], isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, other.rollback)  # longer than a write waits in the background
        timer.start()
        assert draw_far(pool) <= mark_on(URL.create("sqlite", database=str(files[1]))) + LEAD
        timer.join()
        other.close()


# -- peers that do not answer


@SQLITE
@pytest.mark.usefixtures("in_threads")
def test_unresponsive_peer_is_waited_for_once(
    pool: TicketPool,
    ticket_urls: list[URL],
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
) -> None:
    wait_for(monkeypatch, 1.0)
    draw_far(pool)
    thawed = threading.Event()
    hold(monkeypatch, pool.servers[1], lambda: thawed.wait(FOR_EVER))
    draw_far(pool)
    assert 0 < sum(pauses) < 1.2
    pauses.clear()
    for _ in range(20):
        draw_far(pool)
    assert not pauses
    thawed.set()
    until(lambda: draw_far(pool) <= mark_on(ticket_urls[1]) + LEAD)
    last = draw_far(pool)
    assert last <= mark_on(ticket_urls[1]) + LEAD


@SQLITE
@pytest.mark.usefixtures("in_threads")
def test_peer_that_fails_is_waited_for_once(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """Others hold its marks, and it says so at once."""

    def fail() -> None:
        raise sqlite3.OperationalError("database is locked")

    wait_for(monkeypatch, 1.0)
    draw_far(pool)
    hold(monkeypatch, pool.servers[1], fail)
    draw_far(pool)
    pauses.clear()
    check_no_draw_waits(pool, pauses)


@SQLITE
@pytest.mark.usefixtures("in_threads")
def test_peer_that_answers_pings_and_stores_nothing_is_waited_for_once(
    pool: TicketPool,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its circuit breaker opens when draws time out there, and closes when it answers a ping."""
    wait_for(monkeypatch, 1.0)
    draw_far(pool, 1)
    peer, thawed = pool.servers[1], threading.Event()
    hold(monkeypatch, peer, lambda: thawed.wait(FOR_EVER))
    for _ in range(20):
        with breaker_opens(peer, 0.2):
            draw_far(pool)
        peer.is_alive_again()
    assert 0 < sum(pauses) < 1.3
    said = [each.getMessage() for each in caplog.records if "do not wait for marks" in each.message]
    assert len(said) == 1
    assert str(peer) in said[0]
    thawed.set()
    until(lambda: not pool._marks._peers[1].is_left_behind)


@SQLITE
@pytest.mark.usefixtures("in_threads")
def test_peer_that_stores_late_marks_is_waited_for_no_longer_than_others(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """It stores those of the write that was under way just in time, and not those of the draw."""
    peer_that_stores(pool)
    wait_for(monkeypatch, 1.0)
    writes = threading.Event()

    def wait() -> None:
        writes.set()
        pause(0.4)

    hold(monkeypatch, pool.servers[1], wait)
    draw_far(pool, 10)
    pool._marks.begin_to_write(pool.servers[0])
    assert writes.wait(FOR_EVER)
    draw_far(pool)
    assert 0 < sum(pauses) < 1.3


@MARIADB
@pytest.mark.usefixtures("impatient")
def test_frozen_peer_is_waited_for_once(pair: Pair, pauses: list[float]) -> None:
    second, urls, pool = pair
    second.freeze()
    try:
        draw_far(pool)
        pauses.clear()
        end = time.monotonic() + 3 * TIMING.patience_seconds  # longer than the driver waits
        while time.monotonic() < end:
            draw_far(pool, 10)
            draw_far(pool)
        assert not pauses
    finally:
        second.thaw()

    def is_told() -> bool:
        pool.next_id("photos")
        return draw_far(pool) <= mark_on(urls[1]) + LEAD

    until(is_told)


@MARIADB
@pytest.mark.usefixtures("impatient")
def test_peer_that_is_down_is_not_waited_for(pair: Pair, pauses: list[float]) -> None:
    second, urls, pool = pair
    second.stop()
    try:
        draw_far(pool)  # a connection that is open tells that it is down
        pauses.clear()
        check_no_draw_waits(pool, pauses)
    finally:
        second.start()
    until(lambda: pool.next_id("photos") % 2 == 0)
    assert draw_far(pool) <= mark_on(urls[1]) + LEAD


@SQLITE
@pytest.mark.usefixtures("impatient")
def test_peers_that_all_are_down_are_not_waited_for(
    ticket_urls: list[URL], open_pool: OpenPool, pauses: list[float]
) -> None:
    down = [ticket_urls[0].set(database=f"/dev/null/{n}.db") for n in (2, 3)]
    open_pool(ticket_urls, stride=3).create_table("photos")
    pool = open_pool([ticket_urls[0], *down])
    check_no_draw_waits(pool, pauses)


@SQLITE
def test_peer_without_marks_is_not_waited_for(
    pool: TicketPool, ticket_urls: list[URL], pauses: list[float]
) -> None:
    run(ticket_urls[1], f"DROP TABLE {MARKS}")
    check_no_draw_waits(pool, pauses)


@MARIADB
def test_peer_that_may_not_be_written_is_not_waited_for(
    pair: Pair, open_pool: OpenPool, pauses: list[float]
) -> None:
    grant_only(pair.second, pair.urls[1], "SELECT")
    pool = open_pool(pair.urls)
    draw_far(pool)  # which finds out
    pauses.clear()
    check_no_draw_waits(pool, pauses)


@MARIADB
@pytest.mark.usefixtures("impatient")
def test_peer_that_takes_no_writes_is_not_waited_for(pair: Pair, pauses: list[float]) -> None:
    second, urls, pool = pair
    with setting(second, read_only=1):
        draw_far(pool)  # which finds out
        pauses.clear()
        check_no_draw_waits(pool, pauses)
    until(lambda: draw_far(pool) <= mark_on(urls[1]) + LEAD)


# -- what happens while a draw waits


@contextlib.asynccontextmanager
async def drawn_in_a_loop(folder: Path) -> AsyncGenerator[TicketPool]:
    """A pool of two files with an async driver, drawn from once."""
    pytest.importorskip("aiosqlite")
    urls = [f"sqlite+aiosqlite:///{folder}/{n}.db" for n in range(2)]
    pool = TicketPool(urls, hedge=False, timeout=FOR_EVER)
    await greenlet_spawn(pool.create_table, "photos")
    await greenlet_spawn(draw_far, pool, 1)
    yield pool
    await greenlet_spawn(pool.dispose)


@SQLITE
def test_tasks_that_wait_leave_the_loop_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """The peer answers when the event loop has gone on for long."""
    ticks, ids = 0, list[int]()

    def until_ticked() -> None:
        end = ticks + 50
        while ticks < end:
            pause(0.001)

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def work() -> None:
        shorten_lead(monkeypatch, 100)
        async with drawn_in_a_loop(tmp_path) as pool:
            hold(monkeypatch, pool.servers[1], until_ticked)
            ticker = asyncio.create_task(tick())
            draws = [greenlet_spawn(draw_far, pool, 10) for _ in range(200)]
            ids.extend(await asyncio.gather(*draws))
        ticker.cancel()  # not before: a mark may still be on its way when the last draw ends

    asyncio.run(work())
    assert_unique(ids)
    assert len(pauses) > 50
    assert max(ids) <= mark_on(URL.create("sqlite", database=f"{tmp_path}/1.db")) + 200


@SQLITE
def test_task_that_is_cancelled_while_it_waits_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with drawn_in_a_loop(tmp_path) as pool:
            await cancel_two_of_three(pool)

    async def cancel_two_of_three(pool: TicketPool) -> None:
        waits, free = asyncio.Event(), False

        def until_free() -> None:
            while not free:
                waits.set()
                pause(0.001)

        hold(monkeypatch, pool.servers[1], until_free)
        draws = [asyncio.create_task(greenlet_spawn(draw_far, pool)) for _ in range(3)]
        await waits.wait()
        for draw in draws[:2]:  # the one that writes, and one that waits for it
            draw.cancel()
        await asyncio.wait(draws[:2])
        free = True
        last = await draws[2]
        assert all(draw.cancelled() for draw in draws[:2])
        assert not pool.servers[0].in_flight
        assert await greenlet_spawn(draw_far, pool, 1) > last

    asyncio.run(work())


@SQLITE
@pytest.mark.usefixtures("in_threads")
def test_draw_that_waits_holds_no_connection_and_no_lock(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: list[int] = []
    with waiting(pool, monkeypatch, ids):
        assert not pool.servers[0].in_flight
        assert pool.servers[0].connections.has_idle
        assert pool.servers[0].last_ticket("photos") > FAR
    assert ids


@SQLITE
@pytest.mark.usefixtures("in_threads")
def test_interrupt_while_a_draw_waits_leaves_nothing(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    free = threading.Event()
    draw_far(pool, 1)
    with monkeypatch.context() as patch:
        hold(patch, pool.servers[1], lambda: free.wait(FOR_EVER))
        patch.setattr(service, "pause", interrupt)
        with pytest.raises(KeyboardInterrupt):
            draw_far(pool)
        free.set()
    assert not at_rest(pool)
    assert draw_far(pool, 1) > 2 * FAR


@SQLITE
@pytest.mark.usefixtures("in_threads")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_while_a_draw_waits_draws_for_itself(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, ids = os.getpid(), list[int]()
    with waiting(pool, monkeypatch, ids, lambda: os.getpid() != parent):
        answer = in_fork(lambda: " ".join(str(draw_far(pool)) for _ in range(3)))
    assert_unique(ids + [int(each) for each in answer.split()])
    assert len(ids) == 2


@SQLITE
@pytest.mark.usefixtures("in_threads")
def test_draw_of_a_sequence_that_is_dropped_meanwhile_ends(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mark of it is written any more, however many are written of others."""
    pool.create_table("albums")
    draw_far(pool, 1)
    bound_lead, over = pool._marks.bound_lead, threading.Event()
    ids: list[int] = []

    def drop_before(*draw: Any) -> None:
        monkeypatch.setattr(pool._marks, "bound_lead", bound_lead)
        pool.drop_table("photos")
        bound_lead(*draw)

    def draw() -> None:
        ids.append(draw_far(pool))
        over.set()

    monkeypatch.setattr(pool._marks, "bound_lead", drop_before)
    thread = threading.Thread(target=draw, daemon=True)
    thread.start()

    def ends() -> bool:
        pool.servers[0].draw("albums", 1)
        return over.is_set()

    until(ends, FOR_EVER / 2)  # long before it does without its mark
    assert ids


@SQLITE
@pytest.mark.usefixtures("in_threads")
def test_draw_after_a_peer_has_come_back_is_near_its_mark(
    pool: TicketPool, ticket_urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was drawn while the peer stored its first mark again is far above that mark."""
    peer = peer_that_stores(pool)
    thawed, drawn = threading.Event(), threading.Event()
    use = pool.servers[1].use

    def late(work: Use) -> None:
        pause(0.2)
        assert thawed.wait(FOR_EVER)
        use(work)
        assert drawn.wait(FOR_EVER)

    wait_for(monkeypatch, 1.0)
    monkeypatch.setattr(pool.servers[1], "use", late)
    draw_far(pool)
    assert peer.is_left_behind
    thawed.set()
    until(lambda: mark_on(ticket_urls[1]) > FAR)
    draw_far(pool)
    drawn.set()
    until(lambda: not peer.is_left_behind)
    assert draw_far(pool, 1) <= mark_on(ticket_urls[1]) + LEAD


# -- peers that answer, and seem not to


@SQLITE
@pytest.mark.usefixtures("in_threads", "impatient")
def test_draw_of_a_process_that_was_stopped_waits_for_its_peer(
    pool: TicketPool, ticket_urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for which it did not run tells nothing of the peer, which answers at once."""
    peer_that_stores(pool)
    goes_on = threading.Event()

    def stand_still(seconds: float) -> None:
        pause(seconds)
        if not goes_on.is_set():
            pause(2 * TIMING.patience_seconds)
            goes_on.set()

    def wait() -> None:
        assert goes_on.wait(FOR_EVER)
        pause(0.1)

    monkeypatch.setattr(service, "pause", stand_still)
    hold(monkeypatch, pool.servers[1], wait)
    assert draw_far(pool) <= mark_on(ticket_urls[1]) + LEAD


@SQLITE
@pytest.mark.usefixtures("in_threads", "impatient")
def test_draw_waits_for_a_peer_that_one_question_waits_for_in_vain(
    pool: TicketPool, ticket_urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection was lost, or it waits for a lock; others are answered."""
    peer = peer_that_stores(pool)
    asked, thawed = threading.Event(), threading.Event()

    def wait_first() -> None:
        if not asked.is_set():
            asked.set()
            assert thawed.wait(FOR_EVER)

    hold(monkeypatch, pool.servers[1], wait_first)
    thread = threading.Thread(target=peer.store.kept, args=("photos",))
    thread.start()
    assert asked.wait(FOR_EVER)
    pause(1.2 * TIMING.patience_seconds)
    for _ in range(3):
        assert draw_far(pool) <= mark_on(ticket_urls[1]) + LEAD
    thawed.set()
    thread.join(FOR_EVER)


@SQLITE
@pytest.mark.usefixtures("in_threads", "impatient")
def test_draw_waits_for_a_peer_that_is_slowly_connected_to(
    pool: TicketPool, ticket_urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open a connection takes several round trips, all of them late."""
    peer_that_stores(pool)
    connections = pool.servers[1].connections
    connections.close_idle()
    prepare = connections._prepare

    def late(*_: object) -> None:
        pause(0.7 * TIMING.patience_seconds)

    def prepare_late(connection: Connection) -> None:
        late()
        prepare(connection)

    event.listen(pool.servers[1].engine, "do_connect", late)
    monkeypatch.setattr(connections, "_prepare", prepare_late)
    assert draw_far(pool) <= mark_on(ticket_urls[1]) + LEAD


@MARIADB
@pytest.mark.usefixtures("impatient")
def test_first_draw_of_a_process_waits_for_a_peer_that_is_far_away(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """Every reply is late, those by which the connection is opened, too."""
    open_pool(ticket_urls).create_table("photos")
    with TcpProxy(ticket_urls[1].port, Fault("delay", 0.15)) as proxy:
        urls = [ticket_urls[0], ticket_urls[1].set(host=HOST, port=proxy.port)]
        for _ in range(2):
            pool = open_pool(urls)
            for n in (1, FAR, FAR):
                assert draw_far(pool, n) <= mark_on(ticket_urls[1]) + LEAD


@SQLITE
@pytest.mark.usefixtures("in_threads")
def test_peer_that_is_connected_to_and_fails_is_not_waited_for_long(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """That its connections can be opened does not help."""
    peer_that_stores(pool)
    use = pool.servers[1].use

    def fail(work: Use) -> None:
        def work_and_fail(*_: Any) -> None:
            raise sqlite3.OperationalError("database is locked")

        use(work_and_fail)

    wait_for(monkeypatch, 1.0)
    monkeypatch.setattr(pool.servers[1], "use", fail)
    draw_far(pool)
    assert 0 < sum(pauses) < 1.2
    pauses.clear()
    draw_far(pool)
    assert not pauses


# -- a sequence that another process drops and creates anew


def test_ticket_of_a_new_generation_waits_until_its_mark_is_stored(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """What is written with the token of the earlier generation is not stored."""
    old, other = open_pool(ticket_urls), open_pool(ticket_urls)
    old.create_table("photos")
    draw_far(old, 1000)
    other.drop_table("photos")
    other.create_table("photos", start=10**7)
    for n in (TIMING.lead_tickets + 10_000, 1, FAR):
        assert draw_far(old, n) <= mark_on(ticket_urls[1]) + LEAD


@SQLITE
def test_ticket_of_an_earlier_generation_waits_for_no_mark(
    ticket_urls: list[URL],
    open_pool: OpenPool,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
) -> None:
    """It was drawn just before the sequence was dropped; it is not told as one of the present."""
    old, other = open_pool(ticket_urls), open_pool(ticket_urls)
    old.create_table("photos")
    draw_far(old, 1)
    bound_lead = old._marks.bound_lead

    def drop_before(*draw: Any) -> None:
        other.drop_table("photos")
        other.create_table("photos")
        bound_lead(*draw)

    monkeypatch.setattr(old._marks, "bound_lead", drop_before)
    draw_far(old)
    assert sum(pauses) < TIMING.patience_seconds / 2
    assert not old._marks._peers[1].is_left_behind
    assert mark_on(ticket_urls[1]) == 0
