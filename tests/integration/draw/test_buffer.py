"""The buffer: each ticket leaves it once, to one caller of one process, and not too late."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import URL, event

from sqla_tickets import (
    TicketError,
    TicketPool,
    TicketSequence,
    TicketsExhausted,
    concurrency,
)
from sqla_tickets import pool as pool_module
from sqla_tickets.concurrency import elapsed
from sqla_tickets.draw import buffer
from sqla_tickets.events import Draw
from tests.support.draws import OpenPool, assert_unique, by_threads, run
from tests.support.interrupts import AtBytecode

PHOTOS = TicketSequence("photos", block=100)
GROWING = TicketSequence("photos", block=(10, 1000))
END_32 = 2**32 - 1
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def buffered(pool: TicketPool) -> int:
    return pool.status()[0].buffered


def offset_of(ticket: int, pool: TicketPool) -> int:
    return ticket % pool.stride


# -- each ticket once


@pytest.mark.ticket_servers("mariadb", "sqlite")
@pytest.mark.parametrize("sequence", [PHOTOS, GROWING], ids=["fixed", "growing"])
@pytest.mark.usefixtures("frequent_switches")
def test_threads_that_take_one_by_one_and_many_at_once(
    pool: TicketPool, sequence: TicketSequence
) -> None:
    def work(thread: int) -> list[int]:
        if thread % 4 == 3:
            return [t for _ in range(100) for t in pool.next_ids(sequence, 7)]
        return [pool.next_id(sequence) for _ in range(2000)]

    ids = by_threads(work)
    assert len(ids) == 2 * 700 + 6 * 2000
    assert_unique(ids)


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_tickets_follow_one_another(pool: TicketPool) -> None:
    ids = [pool.next_id(PHOTOS) for _ in range(30)] + pool.next_ids(PHOTOS, 30)
    ids += [pool.next_id(PHOTOS) for _ in range(30)] + pool.next_ids("photos", 5)
    assert ids == list(range(ids[0], ids[0] + 95 * 2, 2))
    assert sum(map(len, pool.reserve(PHOTOS, 5))) == 5


@pytest.mark.ticket_servers("sqlite")
def test_next_id_at_any_bytecode_of_next_id_repeats_none(pool: TicketPool) -> None:
    """A signal's handler draws, or another thread: its ticket is another one."""
    ids, at, goes_on = list[int](), 0, True
    while goes_on:
        ids.append(pool.next_id(PHOTOS))
        with AtBytecode(TicketPool.next_id, at, lambda: ids.append(pool.next_id(PHOTOS))) as draw:
            ids.append(pool.next_id(PHOTOS))
        goes_on, at = draw.was_done, at + 1
    assert at > 20
    assert_unique(ids)


@pytest.mark.ticket_servers("sqlite")
def test_interrupt_at_any_bytecode_of_next_id_loses_one_at_most(pool: TicketPool) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    ids, at, goes_on = [pool.next_id(PHOTOS)], 0, True
    while goes_on:
        before = buffered(pool)
        with suppress(KeyboardInterrupt), AtBytecode(TicketPool.next_id, at, interrupt) as raised:
            ids.append(pool.next_id(PHOTOS))
        assert before - buffered(pool) in (0, 1)
        goes_on, at = raised.was_done, at + 1
    assert at > 20
    assert_unique([*ids, pool.next_id(PHOTOS)])


# -- one process


class ReadMark:
    """A mark that tells how many tickets were buffered when it was read."""

    def __init__(self, pool: TicketPool) -> None:
        self._pool, self._mark = pool, pool._buffer.is_owner_process
        self.left = 0

    def __getitem__(self, index: int) -> int:
        found = self._mark[index]
        self.left = self._pool._buffer.count("photos")
        return found


@FORKS
@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("wiped", [True, False])
@pytest.mark.parametrize("told", [True, False], ids=["os.fork", "a fork of C's"])
def test_fork_at_any_bytecode_of_next_id_repeats_none(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch, told: bool, wiped: bool
) -> None:
    """All that are buffered are the parent's, and the ticket that was taken, until the mark is read after that."""
    if not wiped:
        monkeypatch.setattr(concurrency, "_wiped", lambda: None)
        pool._reinit_after_fork()
    ids, at, goes_on = [pool.next_id(PHOTOS) for _ in range(10)], 0, True
    pool._buffer.is_owner_process = mark = ReadMark(pool)
    while goes_on:
        before = mark.left = pool._buffer.count("photos")
        with monkeypatch.context() as patch:
            if not told:
                reinit = TicketPool._reinit_after_fork
                patch.setattr(TicketPool, "_reinit_after_fork", _only_once(reinit))
            reading, writing = os.pipe()
            forks: list[tuple[int, bool]] = []

            def fork() -> None:
                forks.append((os.fork(), mark.left < before))  # noqa: B023  # called at once

            with AtBytecode(TicketPool.next_id, at, fork) as forked:
                ids.append(pool.next_id(PHOTOS))
            if forks and forks[0][0] == 0:
                os.write(writing, json.dumps([ids[-1], pool.next_id(PHOTOS)]).encode())
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
        for child, has_left in forks:
            os.waitpid(child, 0)
            ids += json.loads(answer)[has_left:]
        goes_on, at = forked.was_done, at + 1
    assert at > 20
    assert_unique(ids)


@FORKS
@pytest.mark.ticket_servers("sqlite")
def test_fork_while_the_next_fetch_begins_repeats_none(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler forks there: the tickets that were taken before are the parent's."""
    ids, forks = pool.next_ids(PHOTOS, 60), list[int]()
    reading, writing = os.pipe()

    def fork(_: buffer.SequenceBuffer) -> bool:
        forks.append(os.fork())
        return False

    with monkeypatch.context() as patch:
        patch.setattr(buffer.SequenceBuffer, "begin_fetch", fork)
        taken = pool.next_ids(PHOTOS, 5)
    if forks[0] == 0:
        os.write(writing, json.dumps(taken).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert_unique([*ids, *taken, *json.load(pipe)])
    os.waitpid(forks[0], 0)


def _only_once(forget: Callable[[TicketPool], None]) -> Callable[[TicketPool], None]:
    """As if the first call, by the hook after ``os.fork()``, were not made."""
    calls: list[TicketPool] = []

    def later(pool: TicketPool) -> None:
        calls.append(pool)
        if calls.count(pool) > 1:
            forget(pool)

    return later


# -- not too late


@pytest.mark.ticket_servers("sqlite")
def test_no_ticket_is_taken_after_its_age_however_fast_they_are_taken(
    pool: TicketPool, clock: list[float]
) -> None:
    """A thread that has drawn fast pauses: what was buffered for it has grown old."""
    ids = [pool.next_id(PHOTOS) for _ in range(20)]
    clock[0] += pool.block_max_age
    after = pool.next_id(PHOTOS)
    assert after not in range(ids[0], ids[0] + 200, 2)


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("drop", ["raise", "distrust"])
def test_drop_while_a_ticket_is_taken_leaves_none_of_before(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch, drop: str
) -> None:
    """Another thread drops the buffer, when this one has seen that its tickets are young, and takes one."""
    first = [pool.next_id(PHOTOS) for _ in range(20)][0]  # noqa: RUF015  # all are drawn
    before = elapsed

    def drop_at_once() -> float:
        monkeypatch.setattr(pool_module, "elapsed", before)
        if drop == "raise":
            pool.raise_above("photos", 5000)
        else:
            buffer.drop_everything()
        return before()

    monkeypatch.setattr(pool_module, "elapsed", drop_at_once)
    assert pool.next_id(PHOTOS) not in range(first, first + 200, 2)


@pytest.mark.ticket_servers("mariadb", "sqlite")
@pytest.mark.parametrize("one_by_one", [True, False])
def test_what_is_left_of_an_old_block_is_dropped(
    ticket_urls: list[URL], one_by_one: bool, clock: list[float]
) -> None:
    with TicketPool(ticket_urls, block_max_age=0.2) as pool:
        pool.create_table("photos")
        first = pool.next_ids(PHOTOS, 3)
        if one_by_one:
            pool.next_id(PHOTOS)
        assert buffered(pool)
        clock[0] += 0.3
        assert buffered(pool) == 0
        ids = [pool.next_id(PHOTOS)] if one_by_one else pool.next_ids(PHOTOS, 2)
        assert not set(ids) & set(range(first[0], first[0] + 200, 2))
        assert_unique(first + ids)


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_block_grows_old_while_the_machine_is_suspended(
    ticket_urls: list[URL], one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = [0.0]
    for module in (buffer, pool_module):
        assert vars(module)["elapsed"] is elapsed
        monkeypatch.setattr(module, "elapsed", lambda: elapsed() + asleep[0])
    with TicketPool(ticket_urls) as pool:
        pool.create_table("photos")
        first = pool.next_ids(PHOTOS, 3)
        asleep[0] = 86400.0
        ids = [pool.next_id(PHOTOS)] if one_by_one else pool.next_ids(PHOTOS, 2)
        assert not set(ids) & set(range(first[0], first[0] + 200, 2))


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_nothing_buffered_outlives_its_table(pool: TicketPool) -> None:
    pool.next_id(PHOTOS), pool.next_id(PHOTOS)
    pool.drop_table("photos")
    with pytest.raises(TicketError):
        pool.next_id(PHOTOS)
    pool.create_table("photos", start=5000)
    assert min(pool.next_id(PHOTOS), *pool.next_ids(PHOTOS, 3)) >= 5000


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_nothing_buffered_is_below_what_the_sequence_was_raised_above(pool: TicketPool) -> None:
    pool.next_id(PHOTOS), pool.next_id(PHOTOS)
    pool.raise_above("photos", 5000)
    assert min(pool.next_id(PHOTOS), *pool.next_ids(PHOTOS, 3)) > 5000


@pytest.mark.ticket_servers("mariadb", "sqlite")
@pytest.mark.parametrize("sequence", ["photos", PHOTOS], ids=["block=1", "block=100"])
def test_a_ticket_that_arrives_after_the_sequence_was_raised(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch, sequence: str | TicketSequence
) -> None:
    drawn, raised, draw = threading.Event(), threading.Event(), TicketPool._draw

    def draw_and_wait(pool: TicketPool, name: str, n: int) -> list[range]:
        blocks = draw(pool, name, n)
        drawn.set()
        assert raised.wait(60)
        return blocks

    monkeypatch.setattr(TicketPool, "_draw", draw_and_wait)
    with ThreadPoolExecutor(1) as threads:
        ticket = threads.submit(pool.next_id, sequence)
        assert drawn.wait(60)
        pool.raise_above("photos", 5000)
        raised.set()
        assert ticket.result() > 5000


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_nothing_buffered_is_trusted_after_a_broken_promise(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    """A server that was set back gives others what it gave to us, of whichever sequence."""
    pool.create_table("users", layout="counter")
    pool.next_ids("users", 9), pool.next_ids("users", 9)
    ids = [pool.next_id(PHOTOS), *pool.next_ids(PHOTOS, 5)]
    run(ticket_urls[0], "UPDATE users SET id = 1")
    assert buffered(pool)
    pool.next_id("users"), pool.next_id("users")
    assert buffered(pool) == 0
    taken = set(range(ids[0], ids[0] + 200, 2))
    assert not taken & {pool.next_id(PHOTOS), *pool.next_ids(PHOTOS, 90), pool.next_id(PHOTOS)}


@pytest.mark.ticket_servers("sqlite")
def test_tickets_that_nobody_has_seen_stay_buffered(ticket_urls: list[URL]) -> None:
    with TicketPool(ticket_urls) as pool:
        pool.create_table("photos")
        ids = pool.next_ids(PHOTOS, 90)
        for url in ticket_urls:
            os.rename(str(url.database), f"{url.database}.away")
        pool.dispose()
        for _ in range(2):
            with pytest.raises(TicketError):
                pool.next_ids(PHOTOS, 20)
            assert pool._buffer.count("photos") == 10
        ids += pool.next_ids(PHOTOS, 10)
        assert_unique(ids)


# -- how large a block is


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize(("duration", "sizes"), [(100.0, [10, 20, 40]), (20.0, [10, 10, 10])])
def test_the_pool_says_how_long_a_block_is_to_last(
    ticket_urls: list[URL],
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    duration: float,
    sizes: list[int],
) -> None:
    drawn: list[Draw] = []
    with TicketPool(ticket_urls, block_duration=duration) as pool:
        pool.create_table("photos")
        event.listen(pool, "drawn", drawn.append)
        for _ in range(3):
            pool.next_ids(GROWING, buffered(pool) + 1)
            clock[0] += 60
    assert [sum(map(len, draw.blocks)) for draw in drawn] == sizes


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_the_last_tickets_are_given_however_large_a_block_is(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter", bits=32, start=END_32 - 6)
    ids: list[int] = []
    with suppress(TicketsExhausted):
        while len(ids) < 10:
            ids += [pool.next_id(PHOTOS)]
    assert_unique(ids)
    assert min(ids) >= END_32 - 6
    assert max(ids) <= END_32
    assert 5 <= len(ids) <= 7
