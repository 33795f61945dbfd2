"""What is in hand: each ticket leaves once, to one caller of one process, and not too late."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest
from sqlalchemy import URL, event

from sqla_tickets import (
    TicketArgumentError,
    TicketError,
    TicketPool,
    TicketSequence,
    TicketsExhausted,
    forks,
    hand,
    prefetch,
    trail,
)
from sqla_tickets.clock import elapsed
from sqla_tickets.events import Draw
from sqla_tickets.forks import Mark
from sqla_tickets.hand import AT_ONCE, Block, Stream
from tests.drawing.conftest import OpenPool
from tests.drawing.tools import assert_unique, in_fork, run

PHOTOS = TicketSequence("photos", block=100)
GROWING = TicketSequence("photos", block=(10, 1000))
THREADS = 8
END_32 = 2**32 - 1
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def tiny_turns() -> Iterator[None]:
    """Let threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def by_threads(work: Callable[[int], list[int]]) -> list[int]:
    with ThreadPoolExecutor(THREADS) as threads:
        return [ticket for drawn in threads.map(work, range(THREADS)) for ticket in drawn]


def in_hand(pool: TicketPool) -> int:
    return pool.status()[0].in_hand


def offset_of(ticket: int, pool: TicketPool) -> int:
    return ticket % pool.stride


# -- each ticket once


@pytest.mark.ticket_servers("mariadb", "sqlite")
@pytest.mark.parametrize("sequence", [PHOTOS, GROWING], ids=["fixed", "growing"])
@pytest.mark.usefixtures("tiny_turns")
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


@pytest.mark.usefixtures("tiny_turns")
def test_no_ticket_is_lost_or_doubled_where_a_run_ends() -> None:
    """Threads meet at the end of every run, while others take blocks and put them back."""
    stream, total = Stream(), 4000
    stream.order(40, 40, math.inf)
    stream.put([Block(range(n, n + 80, 2), math.inf) for n in range(1, 2 * total, 80)])

    def work(thread: int) -> list[int]:
        taken, rounds = list[int](), count()
        while stream.lay_out():
            if thread == 0 and next(rounds) < 50:
                stream.put(stream.take(5))
            try:
                taken.append(stream.pop())
            except IndexError:
                continue
        return taken

    assert sorted(by_threads(work)) == list(range(1, 2 * total, 2))


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_tickets_follow_one_another(pool: TicketPool) -> None:
    ids = [pool.next_id(PHOTOS) for _ in range(30)] + pool.next_ids(PHOTOS, 30)
    ids += [pool.next_id(PHOTOS) for _ in range(30)] + pool.next_ids("photos", 5)
    assert ids == list(range(ids[0], ids[0] + 95 * 2, 2))
    assert sum(map(len, pool.reserve(PHOTOS, 5))) == 5


# -- one process


class ForksWhenRead:
    """A mark that is read in a process and its fork at the same moment."""

    def __init__(self, mark: Mark) -> None:
        self._mark, self.child = mark, -1

    def __getitem__(self, index: int) -> int:
        if self.child < 0:
            self.child = os.fork()
        return self._mark[index]


@FORKS
@pytest.mark.ticket_servers("mariadb")
@pytest.mark.parametrize("wiped", [True, False])
@pytest.mark.parametrize("told", [True, False], ids=["os.fork", "a fork of C's"])
def test_a_fork_in_the_middle_of_a_take(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch, told: bool, wiped: bool
) -> None:
    """The ticket that was about to leave, and all that are laid out, are the parent's."""
    if not wiped:
        monkeypatch.setattr(forks, "_wiped", lambda: None)
        pool.forget_parent()
    if not told:
        monkeypatch.setattr(TicketPool, "forget_parent", _only_once(TicketPool.forget_parent))
    before = [pool.next_id(PHOTOS) for _ in range(60)]  # fast: many are laid out
    reading, writing = os.pipe()
    hand = pool._hand
    hand.here = mark = ForksWhenRead(hand.here)
    ids = [pool.next_id(PHOTOS) for _ in range(5)]
    if mark.child == 0:
        os.write(writing, json.dumps(ids).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        childs = json.loads(pipe.read())
    os.waitpid(mark.child, 0)
    ids += [pool.next_id(PHOTOS) for _ in range(100)]
    assert len(childs) == 5
    assert_unique(before + ids + childs)


def _only_once(forget: Callable[[TicketPool], None]) -> Callable[[TicketPool], None]:
    """As if the first call, by the hook after ``os.fork()``, were not made."""
    calls: list[TicketPool] = []

    def later(pool: TicketPool) -> None:
        calls.append(pool)
        if calls.count(pool) > 1:
            forget(pool)

    return later


@FORKS
@pytest.mark.parametrize("make", [forks.mark, forks._Pid])
def test_a_mark_is_one_process_s(make: Callable[[], Mark]) -> None:
    mark = make()
    assert mark[0]
    assert in_fork(lambda: str(mark[0])) == "0"
    assert in_fork(lambda: in_fork(lambda: str(mark[0]))) == "0"
    assert in_fork(lambda: str(bool(make()[0]))) == "True"
    assert mark[0]


# -- not too late


@pytest.mark.ticket_servers("mariadb", "sqlite")
@pytest.mark.parametrize("one_by_one", [True, False])
def test_what_is_left_of_an_old_block_is_dropped(ticket_urls: list[URL], one_by_one: bool) -> None:
    with TicketPool(ticket_urls, block_age=0.2) as pool:
        pool.create_table("photos")
        first = pool.next_ids(PHOTOS, 3)
        if one_by_one:
            pool.next_id(PHOTOS)
        assert in_hand(pool)
        time.sleep(0.3)
        assert in_hand(pool) == 0
        ids = [pool.next_id(PHOTOS)] if one_by_one else pool.next_ids(PHOTOS, 2)
        assert not set(ids) & set(range(first[0], first[0] + 200, 2))
        assert_unique(first + ids)


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_block_grows_old_while_the_machine_is_suspended(
    ticket_urls: list[URL], one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = [0.0]
    for module in (hand, prefetch):
        assert module.elapsed is elapsed
        monkeypatch.setattr(module, "elapsed", lambda: elapsed() + asleep[0])
    with TicketPool(ticket_urls) as pool:
        pool.create_table("photos")
        first = pool.next_ids(PHOTOS, 3)
        asleep[0] = 86400.0
        ids = [pool.next_id(PHOTOS)] if one_by_one else pool.next_ids(PHOTOS, 2)
        assert not set(ids) & set(range(first[0], first[0] + 200, 2))


def test_a_single_ticket_is_looked_at_while_they_are_taken_slowly() -> None:
    stream = Stream()
    stream.order(100, 100, 1)
    stream.put([Block(range(1, 101), elapsed() + 0.1)])
    assert stream.lay_out()
    assert stream.pop() == 1
    time.sleep(0.15)
    assert not stream.lay_out()
    with pytest.raises(IndexError):
        stream.pop()


def test_blocks_grow_old_in_any_order_of_their_arrival(clock: list[float]) -> None:
    told: list[tuple[int, str]] = []
    stream = Stream(lambda n, reason: told.append((n, reason)))
    begins = (5, 1, 9)
    stream.put([Block(range(10 * n, 10 * n + 3), clock[0] + n) for n in begins])
    assert stream.take(1) == [Block(range(10, 11), clock[0] + 1)]
    clock[0] += 5
    assert [list(block.tickets) for block in stream.take(9)] == [[90, 91, 92]]
    assert told == [(2 + 3, "age")]


def test_what_arrives_too_late_is_dropped_aloud() -> None:
    told: list[tuple[int, str]] = []
    stream = Stream(lambda n, reason: told.append((n, reason)))
    stream.close()
    stream.put([Block(range(7), math.inf)])
    assert not stream.lay_out()
    assert not stream.take(1)
    assert (7, "dropped") in told


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_nothing_in_hand_outlives_its_table(pool: TicketPool) -> None:
    pool.next_id(PHOTOS), pool.next_id(PHOTOS)
    pool.drop_table("photos")
    with pytest.raises(TicketError):
        pool.next_id(PHOTOS)
    pool.create_table("photos", start=5000)
    assert min(pool.next_id(PHOTOS), *pool.next_ids(PHOTOS, 3)) >= 5000


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_nothing_in_hand_is_below_what_the_sequence_was_raised_above(pool: TicketPool) -> None:
    pool.next_id(PHOTOS), pool.next_id(PHOTOS)
    pool.raise_above("photos", 5000)
    assert min(pool.next_id(PHOTOS), *pool.next_ids(PHOTOS, 3)) > 5000


@pytest.mark.ticket_servers("mariadb", "sqlite")
@pytest.mark.parametrize("sequence", ["photos", PHOTOS], ids=["block=1", "block=100"])
def test_a_ticket_that_arrives_after_the_sequence_was_raised(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch, sequence: str | TicketSequence
) -> None:
    drawn, raised, draw = threading.Event(), threading.Event(), trail.draw

    def draw_and_wait(pool: TicketPool, name: str, n: int) -> list[range]:
        blocks = draw(pool, name, n)
        drawn.set()
        assert raised.wait(60)
        return blocks

    monkeypatch.setattr(trail, "draw", draw_and_wait)
    with ThreadPoolExecutor(1) as threads:
        ticket = threads.submit(pool.next_id, sequence)
        assert drawn.wait(60)
        pool.raise_above("photos", 5000)
        raised.set()
        assert ticket.result() > 5000


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_nothing_in_hand_is_trusted_after_a_broken_promise(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    """A server that was set back gives others what it gave to us, of whichever sequence."""
    pool.create_table("users", layout="counter")
    pool.next_ids("users", 9), pool.next_ids("users", 9)
    ids = [pool.next_id(PHOTOS), *pool.next_ids(PHOTOS, 5)]
    run(ticket_urls[0], "UPDATE users SET id = 1")
    assert in_hand(pool)
    pool.next_id("users"), pool.next_id("users")
    assert in_hand(pool) == 0
    taken = set(range(ids[0], ids[0] + 200, 2))
    assert not taken & {pool.next_id(PHOTOS), *pool.next_ids(PHOTOS, 90), pool.next_id(PHOTOS)}


@pytest.mark.ticket_servers("sqlite")
def test_tickets_that_nobody_has_seen_stay_in_hand(ticket_urls: list[URL]) -> None:
    with TicketPool(ticket_urls) as pool:
        pool.create_table("photos")
        ids = pool.next_ids(PHOTOS, 90)
        for url in ticket_urls:
            os.rename(str(url.database), f"{url.database}.away")
        pool.dispose()
        for _ in range(2):
            with pytest.raises(TicketError):
                pool.next_ids(PHOTOS, 20)
            assert pool._hand.count("photos") == 10
        ids += pool.next_ids(PHOTOS, 10)
        assert_unique(ids)


# -- how large a block is


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that a stream goes by, to be set."""
    now = [1000.0]
    monkeypatch.setattr("sqla_tickets.hand.monotonic", lambda: now[0])
    monkeypatch.setattr("sqla_tickets.hand.elapsed", lambda: now[0])
    return now


def order(stream: Stream, bounds: tuple[int, int], took: float = 0.001) -> int:
    size = stream.order(*bounds, 10)
    stream.has_arrived(took)
    return size


def test_a_block_grows_and_shrinks_with_the_rate(clock: list[float]) -> None:
    stream, sizes = Stream(), list[int]()
    for seconds in (0, 9, 9, 9, 9, 15, 20, 25, 25, 9, 25, 25, 25, 25):
        clock[0] += seconds
        sizes.append(order(stream, (10, 70)))
    assert sizes == [10, 20, 40, 70, 70, 70, 70, 35, 17, 34, 17, 10, 10, 10]


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize(("lasts", "sizes"), [(100.0, [10, 20, 40]), (20.0, [10, 10, 10])])
def test_the_pool_says_how_long_a_block_is_to_last(
    ticket_urls: list[URL],
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    lasts: float,
    sizes: list[int],
) -> None:
    monkeypatch.setattr(prefetch, "elapsed", lambda: clock[0])
    drawn: list[Draw] = []
    with TicketPool(ticket_urls, block_lasts=lasts) as pool:
        pool.create_table("photos")
        event.listen(pool, "drawn", drawn.append)
        for _ in range(3):
            pool.next_ids(GROWING, in_hand(pool) + 1)
            clock[0] += 60
    assert [sum(map(len, draw.blocks)) for draw in drawn] == sizes


def test_draws_at_the_same_moment_count_as_one(clock: list[float]) -> None:
    stream = Stream()
    assert [stream.order(10, 1000, 10) for _ in range(5)] == [10] * 5
    for _ in range(5):
        stream.has_arrived(0.001)
    clock[0] += 1
    assert [stream.order(10, 1000, 10) for _ in range(5)] == [20] * 5


def test_a_fixed_size_is_multiplied_only_while_a_draw_takes_longer(clock: list[float]) -> None:
    stream = Stream()
    assert [order(stream, (100, 100)) for _ in range(9)] == [
        100, 200, 400, 800, 1600, 3200, 6400, 6400, 6400,
    ]  # fmt: skip
    assert AT_ONCE == 64
    sizes: list[int] = []
    for _ in range(8):
        clock[0] += 0.1
        sizes.append(order(stream, (100, 100)))
    assert sizes == [3200, 1600, 800, 400, 200, 100, 100, 100]


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


@pytest.mark.parametrize("argument", ["block_lasts", "block_age"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, True, "10", None])
def test_times_that_are_none(argument: str, value: object) -> None:
    with pytest.raises(TicketArgumentError, match=argument):
        TicketPool(["sqlite://"], **{argument: value})  # type: ignore[arg-type]  # what is tested
