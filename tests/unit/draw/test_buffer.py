"""A sequence buffer hands out each ticket once, and adapts its block to the rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count

import pytest

from sqla_tickets import (
    NoTicketServer,
    TicketArgumentError,
    TicketPool,
    concurrency,
)
from sqla_tickets.concurrency import OwnerMark
from sqla_tickets.draw.buffer import Block, Buffer, SequenceBuffer
from sqla_tickets.draw.timing import TIMING
from sqla_tickets.high_water import timing as high_water
from tests.support.draws import by_threads, in_fork

FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.mark.usefixtures("frequent_switches")
def test_no_ticket_is_lost_or_doubled_where_a_run_ends() -> None:
    """Threads meet at the end of every run, while others take blocks and put them back."""
    buffered, total = SequenceBuffer(), 4000
    buffered.put([Block(range(n, n + 80, 2), math.inf) for n in range(1, 2 * total, 80)])

    def work(thread: int) -> list[int]:
        taken, rounds = list[int](), count()
        while buffered.make_ready():
            if thread == 0 and next(rounds) < 50:
                buffered.put(buffered.take(5))
            try:
                taken.append(buffered.ready.pop())
            except IndexError:
                continue
        return taken

    assert sorted(by_threads(work)) == list(range(1, 2 * total, 2))


@FORKS
@pytest.mark.parametrize("make", [concurrency.owner_mark, concurrency._Pid])
def test_a_mark_is_one_process_s(make: Callable[[], OwnerMark]) -> None:
    mark = make()
    assert mark[0]
    assert in_fork(lambda: str(mark[0])) == "0"
    assert in_fork(lambda: in_fork(lambda: str(mark[0]))) == "0"
    assert in_fork(lambda: f"{bool(make()[0])} {mark[0]}") == "True 0"
    assert mark[0]


def test_ready_tickets_expire_with_their_block(clock: list[float]) -> None:
    buffered = SequenceBuffer()
    buffered.next_block_size(100, 100, 1)
    buffered.put([Block(range(1, 101), clock[0] + 5), Block(range(201, 301), clock[0] + 9)])
    assert buffered.make_ready()
    assert (buffered.ready.pop(), buffered.ready.until) == (1, clock[0] + 5)
    clock[0] += 5
    assert buffered.make_ready()
    assert (buffered.ready.pop(), buffered.ready.until) == (201, clock[0] + 4)
    clock[0] += 4
    assert not buffered.make_ready()
    with pytest.raises(IndexError):
        buffered.ready.pop()


def test_ready_tickets_last_until_half_of_a_block_is_left(clock: list[float]) -> None:
    """Then the next fetch is due; when it has failed, as soon as it may be tried again."""
    buffered = SequenceBuffer()
    buffered.next_block_size(100, 100, 1)
    buffered.put([Block(range(100), math.inf)])
    assert buffered.make_ready()
    assert (len(buffered.ready.tickets), buffered.is_low) == (50, False)
    buffered.ready.take(50)
    assert buffered.make_ready()
    assert buffered.is_low
    assert buffered.begin_fetch()
    assert buffered.ready.until == clock[0] + TIMING.lost_fetch_seconds
    buffered.end_fetch(failed=True)
    assert buffered.ready.until == clock[0] + TIMING.failed_fetch_seconds
    clock[0] += TIMING.failed_fetch_seconds
    assert buffered.make_ready()
    assert buffered.begin_fetch()
    buffered.put([Block(range(100), math.inf)])
    buffered.end_fetch(failed=False)
    assert buffered.ready.until <= clock[0]  # the next ticket sees what has come
    assert buffered.make_ready()
    assert (buffered.is_low, buffered.ready.until) == (False, math.inf)


def test_blocks_grow_old_in_any_order_of_their_arrival(clock: list[float]) -> None:
    told: list[tuple[int, str]] = []
    buffered = SequenceBuffer(lambda n, reason: told.append((n, reason)))
    begins = (5, 1, 9)
    buffered.put([Block(range(10 * n, 10 * n + 3), clock[0] + n) for n in begins])
    assert buffered.take(1) == [Block(range(10, 11), clock[0] + 1)]
    clock[0] += 5
    assert [list(block.tickets) for block in buffered.take(9)] == [[90, 91, 92]]
    assert told == [(2 + 3, "age")]


def test_what_arrives_too_late_is_dropped_aloud() -> None:
    told: list[tuple[int, str]] = []
    buffered = SequenceBuffer(lambda n, reason: told.append((n, reason)))
    buffered.close()
    buffered.put([Block(range(7), math.inf)])
    assert not buffered.make_ready()
    assert not buffered.take(1)
    assert (7, "dropped") in told


def test_tickets_of_a_failed_draw_are_dropped_aloud_with_their_buffer() -> None:
    """Seed 4 of 12 s, 5 processes: a promise was broken elsewhere while a draw for the rest failed."""
    told: list[tuple[str, int, str]] = []
    buffer = Buffer(lambda *discarded: told.append(discarded), 10, 600)
    buffer.sequence("photos").put([Block(range(1, 4), math.inf)])

    def draw(name: str, n: int) -> list[range]:
        buffer.drop(name)
        raise NoTicketServer("none answers", {})

    with pytest.raises(NoTicketServer):
        buffer.take("photos", 5, (10, 10), draw, lambda name, fetch: False)
    assert told[-1] == ("photos", 3, "dropped")


def next_size(buffered: SequenceBuffer, bounds: tuple[int, int], took: float = 0.001) -> int:
    size = buffered.next_block_size(*bounds, 10)
    buffered.has_refilled(took)
    return size


def test_a_block_grows_and_shrinks_with_the_rate(clock: list[float]) -> None:
    buffered, sizes = SequenceBuffer(), list[int]()
    for seconds in (0, 9, 9, 9, 9, 15, 20, 25, 25, 9, 25, 25, 25, 25):
        clock[0] += seconds
        sizes.append(next_size(buffered, (10, 70)))
    assert sizes == [10, 20, 40, 70, 70, 70, 70, 35, 17, 34, 17, 10, 10, 10]


def test_draws_at_the_same_moment_count_as_one(clock: list[float]) -> None:
    buffered = SequenceBuffer()
    assert [buffered.next_block_size(10, 1000, 10) for _ in range(5)] == [10] * 5
    for _ in range(5):
        buffered.has_refilled(0.001)
    clock[0] += 1
    assert [buffered.next_block_size(10, 1000, 10) for _ in range(5)] == [20] * 5


def test_a_fixed_size_is_multiplied_only_while_a_draw_takes_longer(clock: list[float]) -> None:
    buffered = SequenceBuffer()
    assert [next_size(buffered, (100, 100)) for _ in range(9)] == [
        100, 200, 400, 800, 1600, 3200, 6400, 6400, 6400,
    ]  # fmt: skip
    assert TIMING.blocks_at_once == 64
    sizes: list[int] = []
    for _ in range(8):
        clock[0] += 0.1
        sizes.append(next_size(buffered, (100, 100)))
    assert sizes == [3200, 1600, 800, 400, 200, 100, 100, 100]


def test_a_multiplied_size_stays_within_the_lead(clock: list[float]) -> None:
    """Else each draw would wait until a peer has stored a mark of its own tickets."""
    assert TIMING.tickets_at_once <= 0.9 * high_water.TIMING.lead_tickets
    for least in (1000, 2 * TIMING.tickets_at_once):
        buffered = SequenceBuffer()
        sizes = [next_size(buffered, (least, least)) for _ in range(9)]
        assert sizes[-1] == max(TIMING.tickets_at_once, least)


@pytest.mark.parametrize("argument", ["block_duration", "block_max_age"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, True, "10", None])
def test_times_that_are_none(argument: str, value: object) -> None:
    with pytest.raises(TicketArgumentError, match=argument):
        TicketPool(["sqlite://"], **{argument: value})  # type: ignore[arg-type]  # what is tested
