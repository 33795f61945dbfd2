"""Clocks that step, ticks that are full."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.util import greenlet_spawn

from sqla_tickets import (
    INSTAGRAM,
    SNOWFLAKE,
    SONYFLAKE,
    BitLayout,
    ClockMovedBack,
    SnowflakeGenerator,
    SnowflakeSequence,
    TicketArgumentError,
    TicketPool,
    TicketSequence,
    TicketsExhausted,
)
from sqla_tickets import concurrency as clock
from sqla_tickets.snowflake import generator
from sqla_tickets.snowflake.lease import Lease
from tests.integration.snowflake.conftest import OpenPool

Step = Callable[[float], None]


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Step:
    """Set this process's clock so many seconds off."""

    def step(seconds: float) -> None:
        off = int(seconds * 1_000_000)
        monkeypatch.setattr(clock, "wall", lambda: time.time_ns() // 1000 + off)
        monkeypatch.setattr(generator, "time", lambda: time.time() + seconds)

    return step


def test_ids_have_the_time_at_which_they_are_made(pool: TicketPool) -> None:
    for layout in (SNOWFLAKE, SONYFLAKE, INSTAGRAM):
        made = SnowflakeGenerator(pool, "photos", layout)
        made.next_id()
        for make in (made.next_id, lambda: made.next_ids(1)[0]):  # noqa: B023  # called at once
            time.sleep(0.05)
            before = datetime.now(timezone.utc) - timedelta(milliseconds=layout.unit)
            number = make()
            assert before <= layout.decode(number).time <= datetime.now(timezone.utc)


def test_a_full_tick_is_waited_for_and_no_id_is_of_the_future(pool: TicketPool) -> None:
    made = SnowflakeGenerator(pool, "photos", SONYFLAKE)
    ids: list[int] = []
    for _ in range(20):
        ids += made.next_ids(100)
        ids.append(made.next_id())
        assert SONYFLAKE.decode(ids[-1]).time <= datetime.now(timezone.utc)
    assert ids == sorted(set(ids))


def test_many_at_once_are_of_the_past(pool: TicketPool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SnowflakeGenerator(pool, "photos", SONYFLAKE)
    made.next_id()
    now = time.time() + 0.5
    monkeypatch.setattr(clock, "wall", lambda: int(now * 1_000_000))
    monkeypatch.setattr(generator, "time", lambda: now)
    runs = made.reserve(10_000)  # 390 ms' worth
    past = datetime.fromtimestamp(now, timezone.utc) - timedelta(milliseconds=300)
    assert SONYFLAKE.decode(runs[0][0]).time < past
    assert sum(map(len, runs)) == 10_000


def test_no_id_is_of_too_long_ago(pool: TicketPool) -> None:
    made = SnowflakeGenerator(pool, "photos", SONYFLAKE)
    made.next_id()
    time.sleep(1.5)
    before = datetime.now(timezone.utc)
    first = made.next_ids(256 * 130)[0]  # 1.3 seconds' worth: the rest is waited for
    assert SONYFLAKE.decode(first).time > before - timedelta(seconds=1.02)


def test_who_uses_up_ticks_goes_on_with_those_just_past(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that gets the processor back late; and who asks for a few has the time of now."""
    few = BitLayout(41, 10, 2, epoch=SNOWFLAKE.epoch)
    made = SnowflakeGenerator(pool, "photos", few)
    begin = few.decode(made.next_id()).time + timedelta(seconds=2)

    def ids_at(milliseconds: int, n: int, *, at_once: bool = False) -> list[tuple[int, int]]:
        now = begin + timedelta(milliseconds=milliseconds)
        monkeypatch.setattr(clock, "wall", lambda: int(now.timestamp() * 1_000_000))
        monkeypatch.setattr(generator, "time", now.timestamp)
        ids = made.next_ids(n) if at_once else [made.next_id() for _ in range(n)]
        parts = [few.decode(number) for number in ids]
        return [((part.time - begin) // timedelta(milliseconds=1), part.sequence) for part in parts]

    assert ids_at(0, 2) == [(0, 0), (0, 1)]
    assert ids_at(10, 2) == [(10, 0), (10, 1)]  # the tick before was not used up
    assert ids_at(10, 2) == [(10, 2), (10, 3)]
    assert ids_at(40, 5) == [(11, 0), (11, 1), (11, 2), (11, 3), (12, 0)]
    assert ids_at(50, 2, at_once=True) == [(12, 1), (12, 2)]
    assert ids_at(50, 2) == [(12, 3), (13, 0)]
    assert ids_at(64, 2) == [(64, 0), (64, 1)]  # that would be too old
    assert ids_at(66, 1) == [(66, 0)]
    assert ids_at(66, 3, at_once=True) == [(66, 1), (66, 2), (66, 3)]
    assert ids_at(116, 1) == [(67, 0)]
    assert ids_at(900, 1) == [(900, 0)]
    assert ids_at(950, 6, at_once=True) == [*((949, n) for n in range(4)), (950, 0), (950, 1)]
    assert ids_at(960, 1) == [(960, 0)]  # no tick had too few


def test_a_full_sequence_does_not_hold_up_others(pool: TicketPool) -> None:
    few = BitLayout(39, 16, 1, unit=400, epoch=SNOWFLAKE.epoch)
    full, other = SnowflakeGenerator(pool, "photos", few), SnowflakeGenerator(pool, "tags")
    thread = threading.Thread(target=full.next_ids, args=[12])  # waits for some ticks
    thread.start()
    others = 0
    while thread.is_alive():
        other.next_id()
        others += 1
    assert others > 10


def test_a_full_sequence_does_not_hold_up_the_event_loop(pool: TicketPool) -> None:
    few = BitLayout(39, 16, 1, unit=400, epoch=SNOWFLAKE.epoch)
    full = SnowflakeGenerator(pool, "photos", few)
    full.next_id()

    async def loop_iterations() -> int:
        task = asyncio.ensure_future(greenlet_spawn(full.next_ids, 12))
        iterations = 0
        while not task.done():
            await asyncio.sleep(0.001)
            iterations += 1
        assert len(await task) == 12
        return iterations

    assert asyncio.run(loop_iterations()) > 10


def test_a_tick_has_as_many_ids_as_its_bits_say(pool: TicketPool) -> None:
    tiny = BitLayout(39, 16, 2, unit=50, epoch=SNOWFLAKE.epoch)
    made = SnowflakeGenerator(pool, "photos", tiny)
    times = [tiny.decode(number).time for number in made.next_ids(41)]
    assert max(times.count(at) for at in times) == 4


def test_single_ids_and_many_share_a_tick(pool: TicketPool) -> None:
    slow = BitLayout(39, 10, 12, unit=1000, epoch=SNOWFLAKE.epoch)
    made = SnowflakeGenerator(pool, "photos", slow)
    ids = [number for _ in range(200) for number in (made.next_id(), *made.next_ids(2))]
    by_tick: dict[datetime, list[int]] = {}
    for found in map(slow.decode, ids):
        by_tick.setdefault(found.time, []).append(found.sequence)
    assert len(ids) == 600
    for sequence in by_tick.values():  # no number is left out
        assert sequence == list(range(len(sequence)))


@pytest.mark.parametrize("build", ["global lock", "free-threading"])
def test_threads_share_it(pool: TicketPool, monkeypatch: pytest.MonkeyPatch, build: str) -> None:
    if build == "free-threading":
        monkeypatch.setattr(generator, "_shared", generator._Popped)
    made = SnowflakeGenerator(pool, "photos")
    lists: list[list[int]] = [[] for _ in range(4)]

    def work(ids: list[int]) -> None:
        for n in range(1, 200):
            ids.extend(made.next_id() for _ in range(20))
            ids.extend(made.next_ids(n % 7 + 1))

    threads = [threading.Thread(target=work, args=[ids]) for ids in lists]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    everything = [number for ids in lists for number in ids]
    assert len(set(everything)) == len(everything)
    assert all(ids == sorted(ids) for ids in lists)


def test_a_clock_that_steps_back_a_little_is_waited_for(pool: TicketPool, step: Step) -> None:
    made = SnowflakeGenerator(pool, "photos")
    began = time.monotonic()
    ids = [made.next_id()]
    step(-0.2)
    ids += [made.next_id(), *made.next_ids(3)]
    assert time.monotonic() - began > 0.1
    assert ids == sorted(set(ids))


def test_a_clock_that_steps_back_far(pool: TicketPool, step: Step) -> None:
    made, other = SnowflakeGenerator(pool, "photos"), SnowflakeGenerator(pool, "tags")
    last = made.next_id()
    step(-3600)
    with pytest.raises(ClockMovedBack, match=r"3\d\d\d\.\d\d\d s behind the last id of 'photos'"):
        made.next_id()
    with pytest.raises(ClockMovedBack):
        made.next_ids(3)
    with pytest.raises(ClockMovedBack):  # its number may have been another process's until then
        other.next_id()
    step(0)
    assert made.next_id() > last


def test_a_clock_that_steps_forward_and_back(
    pool: TicketPool, files: list[URL], open_pool: OpenPool, step: Step
) -> None:
    made = SnowflakeGenerator(pool, "photos")
    ids = [made.next_id()]
    step(3600)  # past the horizon
    ids.append(made.next_id())
    assert SNOWFLAKE.decode(ids[-1]).node == SNOWFLAKE.decode(ids[0]).node
    pool.dispose()
    step(0)
    heir = SnowflakeGenerator(open_pool(files), "photos")
    assert SNOWFLAKE.decode(heir.next_id()).node != SNOWFLAKE.decode(ids[0]).node
    assert ids == sorted(ids)


def test_a_layout_runs_out(pool: TicketPool) -> None:
    short = BitLayout(20, 10, 12, epoch=SNOWFLAKE.epoch)
    with pytest.raises(TicketsExhausted, match="have run out"):
        SnowflakeGenerator(pool, "photos", short).next_id()


def test_before_the_epoch(pool: TicketPool, step: Step) -> None:
    step(-40 * 365 * 86400)
    with pytest.raises(ClockMovedBack, match="before the epoch"):
        SnowflakeGenerator(pool, "photos").next_id()


@pytest.mark.parametrize("n", [0, -1, 1.0, True, "2"])
def test_so_many_ids_cannot_be_asked_for(pool: TicketPool, n: int) -> None:
    with pytest.raises(TicketArgumentError, match="1 or more"):
        SnowflakeGenerator(pool, "photos").next_ids(n)


def test_generator_of_one_sequence_is_one(pool: TicketPool, files: list[URL]) -> None:
    """Two of one pool, sequence and layout would make the same ids."""
    made = SnowflakeGenerator(pool, "photos")
    assert SnowflakeGenerator(pool, "photos", SNOWFLAKE) is made
    assert SnowflakeGenerator(pool, SnowflakeSequence("photos")) is made
    assert SnowflakeGenerator(pool, "photos", shard=1) is not made
    assert SnowflakeGenerator(TicketPool(files), "photos") is not made


def test_declaration_of_another_pool_is_refused(files: list[URL], pool: TicketPool) -> None:
    """Both pools lease the same node numbers, so half of the ids would repeat."""
    declared = SnowflakeSequence("photos", pool="media")
    with pytest.raises(TicketArgumentError, match="'media', and this is 'default'"):
        SnowflakeGenerator(pool, declared)
    with TicketPool(files, name="media") as media:
        assert SnowflakeGenerator(media, declared) is SnowflakeGenerator(media, "photos")


@pytest.mark.parametrize("other", [5, None, TicketSequence("photos")])
def test_ids_of_something_else_are_refused(pool: TicketPool, other: Any) -> None:
    with pytest.raises(TicketArgumentError, match="or a SnowflakeSequence, found"):
        SnowflakeGenerator(pool, other)


class OwnGenerator(SnowflakeGenerator):
    """A user's."""


def test_generator_of_a_subclass_after_another_is_refused(pool: TicketPool) -> None:
    """Both would make the same ids."""
    SnowflakeGenerator(pool, "photos")
    with pytest.raises(TicketArgumentError, match="found a SnowflakeGenerator; two would make"):
        OwnGenerator(pool, "photos")


def test_generator_of_a_subclass_is_the_one_of_its_sequence(pool: TicketPool) -> None:
    """Flushes use it, too."""
    made = OwnGenerator(pool, "photos")
    assert SnowflakeGenerator(pool, SnowflakeSequence("photos")) is made


def test_wait_for_a_lease_is_no_wait_for_the_clock(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ends while a tick is awaited, and its server is slow: the clock has not stepped back."""
    layout = BitLayout(39, 10, 2, unit=100, epoch=SNOWFLAKE.epoch)
    made = SnowflakeGenerator(pool, "photos", layout)
    lease, calls = made._leases.lease, count()

    def lease_late(bits: int) -> Lease:
        if next(calls) == 1:
            time.sleep(1.3)
            made._leases.release()
        return lease(bits)

    monkeypatch.setattr(made._leases, "lease", lease_late)
    assert len(set(made.next_ids(60))) == 60
    assert next(calls) > 2
