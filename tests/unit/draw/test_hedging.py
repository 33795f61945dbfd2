"""What suspicions and hedges may cost: the budget, and when the monitor polls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.draw import hedging, server
from sqla_tickets.draw.server import InFlightRequest
from sqla_tickets.draw.slow_path import CancelReason
from sqla_tickets.draw.timing import TIMING
from tests.support.workers import Clock


class Silence:
    """A wait for an answer that never comes."""

    patience = 0.0
    can_be_cancelled = True
    has_answer = False

    def cancel(self) -> None:
        """Release the draw."""


class Site:
    """A pool whose draws wait for the first server, and whose hedges are sent when the test says so.

    Args:
        pool: of two SQLite files.
        clock: that it goes by.
        stack: ends the draws.
    """

    def __init__(self, pool: TicketPool, clock: Clock, stack: ExitStack) -> None:
        self.clock, self._stack = clock, stack
        self.first, self.second = pool.servers
        self.monitor = pool._monitor
        self.hedges: list[Callable[[], None]] = []

    def draw(self) -> InFlightRequest:
        """A draw that waits for the first server from now on."""
        request = InFlightRequest(self.first, self.first.table("photos"), 1)
        self._stack.enter_context(request.under_way)
        self.first.in_flight.add(request)
        request.wait_on(Silence())
        return request

    def poll_after(self, seconds: float) -> float:
        """Poll when so many seconds have passed; the seconds until the next poll."""
        self.clock.now += seconds
        return self.monitor.poll()

    def poll_until_late(self, request: InFlightRequest, seconds: float = 0.6) -> None:
        """Poll, each time when it is due, until the draw has waited for so long."""
        tick = self.monitor.poll()
        while self.clock.now + tick - request.since < seconds:
            tick = self.poll_after(tick)

    def end(self, request: InFlightRequest) -> None:
        """Let the draw end."""
        request.stop_waiting()
        self.first.remove(request)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")]
    with ExitStack() as stack, TicketPool(urls) as pool:
        pool.create_table("photos")
        pool.next_ids("photos", 4)
        pool._monitor.close()
        pool._monitor.reinit_after_fork()
        pool._monitor.poller.is_awake = True  # so no draw starts its thread
        clock = Clock()
        site = Site(pool, clock, stack)
        for module in (hedging, server):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(hedging, "probe", lambda *_, **__: None)
        monkeypatch.setattr(
            hedging, "in_background", lambda work, *_, **__: site.hedges.append(work)
        )
        yield site


@pytest.mark.parametrize("tokens", [TIMING.first_tokens, TIMING.most_tokens])
def test_hedges_that_come_late_are_few(
    site: Site, monkeypatch: pytest.MonkeyPatch, tokens: float
) -> None:
    """Where all servers are slow, one draw more makes them slower."""
    draw = site.second.draw

    def draw_slowly(name: str, n: int, *, hedge_of: InFlightRequest) -> list[range]:
        site.clock.now += 1.0
        return draw(name, n, hedge_of=hedge_of)

    monkeypatch.setattr(site.second, "draw", draw_slowly)
    site.monitor._tokens = tokens
    given, hedges = [], 0
    for _ in range(10):
        request = site.draw()
        site.poll_until_late(request)
        while site.hedges:
            hedges += 1
            given.append(site.monitor.patience)
            site.hedges.pop()()
            assert request.answer, "the first answer is taken, late as it is"
        site.end(request)
    assert hedges == tokens
    assert given == sorted(set(given)), "each draw is given more after a hedge that came late"


def test_a_process_begins_with_few_hedges(site: Site) -> None:
    """Many that start at once are slow together: each is patient until it knows what is usual."""
    assert site.monitor._tokens == TIMING.first_tokens < TIMING.most_tokens
    site.monitor.measure(site.clock.now)
    assert site.monitor.patience > TIMING.first_patience_seconds


@pytest.mark.parametrize(("draws", "least", "most"), [(40, 3, 6), (1000, 15, 21)])
def test_few_draws_are_measured_less_often(
    site: Site, monkeypatch: pytest.MonkeyPatch, draws: int, least: int, most: int
) -> None:
    """Of many processes on a busy machine, each draws little, and a measurement costs as much as some draws."""
    measured: list[float] = []
    measure = site.monitor.measure

    def measure_and_count(now: float) -> None:
        measured.append(now)
        measure(now)

    for _ in range(TIMING.few_draws):
        site.first.draw("photos", 1)
    monkeypatch.setattr(site.monitor, "measure", measure_and_count)
    for _ in range(draws):
        site.clock.now += 2 / draws
        site.first.draw("photos", 1)
    assert least <= len(measured) <= most


def test_hedges_that_win_in_time_go_on(site: Site) -> None:
    """As long as a server is silent and the other one answers, no draw waits."""
    for _ in range(10):
        request = site.draw()
        site.poll_until_late(request)
        site.hedges.pop()()
        assert request.cancelled is CancelReason.LOST_HEDGE
        site.end(request)


def test_a_hedge_in_the_thread_of_its_draw_is_paid_for_before_it_is_sent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else many threads would spend the same token."""
    draw, left = site.second.draw_at_once, list[float]()

    def draw_and_record(*arguments: Any) -> list[range] | None:
        left.append(site.monitor._tokens)
        return draw(*arguments)

    monkeypatch.setattr(site.second, "draw_at_once", draw_and_record)
    site.monitor._tokens = TIMING.most_tokens
    site.monitor._hedge_here(site.draw(), site.second, 1)
    assert left == [site.monitor._tokens] == [TIMING.most_tokens - 1]


def test_draw_waits_for_its_server_without_a_token(site: Site) -> None:
    """A server that many processes wait for is not left by all of them at once."""
    site.monitor._tokens = 0.0
    oldest, other = site.draw(), site.draw()
    site.poll_until_late(oldest)
    assert not site.hedges
    assert oldest.cancelled is other.cancelled is None
    site.poll_until_late(oldest, 1.1 * site.first.timeouts.timeout_seconds)
    assert oldest.cancelled is CancelReason.TIMED_OUT


def test_draws_earn_tokens(site: Site) -> None:
    site.monitor._tokens = 0.0
    site.monitor.ended = int(1 / TIMING.tokens_per_draw)
    request = site.draw()
    site.poll_until_late(request)
    assert len(site.hedges) == 1


def test_process_that_got_no_time_blames_no_server(site: Site) -> None:
    """It was stopped, or other programs had the processor: so it may not even have sent its statement."""
    site.draw()
    tick = site.poll_after(0)
    tick = site.poll_after(tick + 0.2)
    assert not site.hedges
    site.poll_after(tick + 0.2)
    assert len(site.hedges) == 1, "a process that never gets its time does not wait for ever"


def test_draw_is_hedged_at_the_first_poll_after_it_is_overdue(site: Site) -> None:
    site.monitor._usual = site.monitor.patience = patience = TIMING.least_patience_seconds
    site.monitor._tokens = TIMING.most_tokens
    tick = site.poll_after(0)
    assert tick == pytest.approx(max(patience, TIMING.tick_seconds))
    site.clock.now += tick - patience / 2
    site.draw()
    tick = site.poll_after(patience / 2)
    assert not site.hedges, "it is not overdue yet"
    site.poll_after(tick)
    assert len(site.hedges) == 1


def test_request_is_answered_or_cancelled_never_both(site: Site) -> None:
    """A cancelled draw has lost its connection; one that is answered returns it."""

    def cancel(request: InFlightRequest, start: threading.Barrier) -> bool:
        start.wait()
        return request.cancel(CancelReason.FAILED_OVER)

    with ThreadPoolExecutor(1) as other:
        for _ in range(300):
            request, start = site.draw(), threading.Barrier(2)
            cancelling = other.submit(cancel, request, start)
            start.wait()
            request.stop_waiting()
            is_cancelled = request.cancelled is not None  # as the draw reads it
            assert cancelling.result() == is_cancelled
            assert request not in site.first.in_flight
            assert not request.cancel(CancelReason.TIMED_OUT)


def test_wait_after_the_caller_is_gone_is_cancelled(site: Site) -> None:
    ended: list[Silence] = []

    class Wait(Silence):
        def cancel(self) -> None:
            ended.append(self)

    request = site.draw()
    request.stop_waiting()  # it waits for nothing now
    request.abandon()
    wait = Wait()
    request.wait_on(wait)
    assert ended == [wait]


def test_monitor_that_fell_asleep_is_woken_by_the_next_draw(site: Site) -> None:
    monitor, asleep = site.monitor, site.monitor.poller
    monitor.wake_up()
    awake = monitor.poller  # with a thread
    monitor.fall_asleep(asleep)
    assert monitor.poller.is_awake, "an earlier thread's end"
    monitor.fall_asleep(awake)
    assert not awake.is_awake
    assert not awake.awake.is_set()
    request = site.draw()
    assert monitor.poller.is_awake
    assert monitor.poller.awake.is_set()
    site.end(request)
    monitor.close()
