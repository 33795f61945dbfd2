"""A breaker's states, where two threads meet in them; and how long it waits."""

from __future__ import annotations

from functools import partial

import pytest

from sqla_tickets import TicketError, TicketIntegrityError
from sqla_tickets.draw import circuit_breaker
from sqla_tickets.draw.circuit_breaker import CircuitBreaker
from sqla_tickets.draw.table_state import TicketTable
from sqla_tickets.draw.timing import TIMING
from tests.support.workers import Clock

REGRESSION = TicketIntegrityError("it was set back")


def test_a_quarantine_outlives_whatever_happens_to_the_breaker() -> None:
    """Draws that end at the same moment, well or not, know only the breaker."""
    table = TicketTable("photos", 2, 1)
    table.quarantine = REGRESSION
    fail = partial(table.breaker.record_failure, TicketError("gone"))
    for other in (fail, table.breaker.postpone, table.breaker.admit, table.breaker.record_success):
        other()
        assert (table.state, table.reason) == ("quarantined", REGRESSION)
    table.breaker.record_failure(TicketError("gone"))
    table.release()
    assert (table.state, table.reason) == ("closed", None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(circuit_breaker, "time", clock)
    return clock


def wait_after(failures: int, clock: Clock) -> float:
    """How long a breaker that has failed so often waits for the next attempt, to a tenth of the first wait."""
    breaker, begin, waited = CircuitBreaker(), clock.now, 0
    for _ in range(failures):
        breaker.record_failure(TicketError("down"))
        breaker.admit()
    breaker.record_failure(TicketError("down"))
    while breaker.state == "open":
        waited += 1
        clock.now = begin + waited * TIMING.first_wait_seconds / 10
    return waited * TIMING.first_wait_seconds / 10


def test_waits_grow_up_to_the_longest_and_are_jittered(clock: Clock) -> None:
    for failures in range(10):
        longest = min(TIMING.longest_wait_seconds, TIMING.first_wait_seconds * 2**failures)
        waits = {wait_after(failures, clock) for _ in range(100)}
        assert all(
            0.49 * longest < wait < longest + 0.11 * TIMING.first_wait_seconds for wait in waits
        )
        assert len(waits) > 1, "all clients come back at once"


def test_a_success_makes_the_next_wait_the_shortest(clock: Clock) -> None:
    breaker = CircuitBreaker()
    for _ in range(10):
        breaker.record_failure(TicketError("down"))
        clock.now += TIMING.first_wait_seconds
    breaker.record_success()
    breaker.record_failure(TicketError("down"))
    clock.now += TIMING.first_wait_seconds
    assert breaker.state == "half_open"


def test_draws_that_fail_together_count_once(clock: Clock) -> None:
    """A server that is restarted ends all of them, and is back in a moment."""
    breaker = CircuitBreaker()
    for _ in range(8):
        breaker.record_failure(TicketError("gone"))
    clock.now += TIMING.first_wait_seconds
    assert breaker.state == "half_open"
