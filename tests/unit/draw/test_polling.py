"""Each request in flight is polled, whatever comes between a draw and the monitor's thread."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.draw.hedging import HedgingMonitor
from sqla_tickets.draw.server import InFlightRequest
from sqla_tickets.draw.timing import TIMING
from tests.support.interrupts import AtBytecode

#: Longer than a loaded machine takes for what is polled after a few milliseconds.
LONG = 20.0


class Silence:
    """A wait for an answer that never comes.

    Attributes:
        was_polled: set once a poll finds it late.
    """

    patience = 0.0
    has_answer = False

    def __init__(self) -> None:
        self.was_polled = threading.Event()

    @property
    def can_be_cancelled(self) -> bool:
        """Whether it has a socket."""
        self.was_polled.set()
        return True

    def cancel(self) -> None:
        """Release the draw."""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[TicketPool]:
    with TicketPool([f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")]) as pool:
        pool.create_table("photos")
        pool.next_id("photos")
        yield pool


def begin_anew(monitor: HedgingMonitor) -> None:
    """Forget the thread, as a fork does; draws are late soon."""
    forgotten = monitor.poller
    monitor.reinit_after_fork()
    forgotten._monitor = lambda: None  # a fork does not have this thread
    forgotten.end()
    monitor._usual = monitor.patience = TIMING.least_patience_seconds
    monitor.measure_at = time.monotonic() + LONG


@contextlib.contextmanager
def waiting(pool: TicketPool) -> Iterator[threading.Event]:
    """A draw that gets no answer; the event is set by a poll."""
    server, silence = pool.servers[0], Silence()
    request = InFlightRequest(server, server.table("photos"), 1)
    with request.under_way:
        request.wait_on(silence)
        try:
            yield silence.was_polled
        finally:
            request.stop_waiting()
            server.remove(request)


def assert_polls(pool: TicketPool, why: str) -> None:
    with waiting(pool) as was_polled:
        assert was_polled.wait(LONG), why


def interrupt() -> None:
    raise KeyboardInterrupt


def test_interrupt_of_close_leaves_later_draws_polled(pool: TicketPool) -> None:
    monitor, at, was_done = pool._monitor, 0, True
    while was_done:
        begin_anew(monitor)
        assert_polls(pool, "before")
        ended = monitor.poller
        with (
            contextlib.suppress(KeyboardInterrupt),
            AtBytecode(HedgingMonitor.close, at, interrupt) as inside,
        ):
            monitor.close()
        was_done = inside.was_done
        ended.thread.join(0.05)  # if it was told to
        # else the trace function has left it taken, where no signal handler runs
        if monitor._starting.acquire(timeout=0.5):
            monitor._starting.release()
            assert_polls(pool, f"after an interrupt of bytecode {at}")
        at += 1


def test_fork_in_the_middle_of_wake_up_leaves_draws_polled(pool: TicketPool) -> None:
    """A signal handler forks there, and the child goes on with the draw."""
    monitor, at, was_done = pool._monitor, 0, True
    while was_done:
        monitor.close()
        begin_anew(monitor)
        with AtBytecode(HedgingMonitor.wake_up, at, lambda: begin_anew(monitor)) as inside:
            monitor.wake_up()
        was_done = inside.was_done
        assert_polls(pool, f"after a fork at bytecode {at}")
        at += 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_draw_is_polled_after_the_end_of_the_thread(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor, polls = pool._monitor, [SystemExit]
    monitor.close()

    def poll() -> float:
        if polls:
            raise polls.pop()
        return HedgingMonitor.poll(monitor)

    monkeypatch.setattr(monitor, "poll", poll)
    with waiting(pool) as was_polled:
        assert was_polled.wait(LONG)
    assert not polls


def test_draw_in_flight_is_polled_after_close(pool: TicketPool) -> None:
    with waiting(pool) as was_polled:
        ended = pool._monitor.poller
        pool.dispose()
        was_polled.clear()
        assert was_polled.wait(LONG)
    ended.thread.join(LONG)
    assert not ended.thread.is_alive()


def test_log_handler_may_draw_while_no_thread_can_be_started(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    pool._monitor.close()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.endswith("monitor"):
            raise RuntimeError("can't start new thread")
        start(thread)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not drawn:
                drawn.append(0)
                drawn.append(pool.next_id("photos"))

    log, handler = logging.getLogger("sqla_tickets.draw.hedging"), Handler()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(log, "handlers", [handler])
    drawing = threading.Thread(target=pool.next_id, args=("photos",), daemon=True)
    drawing.start()
    drawing.join(LONG)
    hangs = drawing.is_alive()
    if hangs:
        pool._monitor.reinit_after_fork()  # the lock is that thread's for ever
    assert not hangs
    assert len(drawn) == 2


def test_level_of_the_log_is_read_soon_while_draws_take_long(pool: TicketPool) -> None:
    monitor = pool._monitor
    monitor.close()
    monitor.durations.clear()
    monitor.durations.extend([1.0] * TIMING.few_draws)
    monitor.measure_at = 0.0
    assert monitor.poll() <= TIMING.measure_seconds
    assert monitor.patience > TIMING.measure_seconds
