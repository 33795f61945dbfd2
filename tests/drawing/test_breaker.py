"""A breaker's states, where two threads meet in them; and how long it waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqla_tickets import TicketError, TicketViolation, health
from sqla_tickets.health import FIRST_WAIT, LONGEST_WAIT, Breaker
from tests.drawing.actors import Clock

VIOLATION = TicketViolation("it was set back")


@pytest.mark.parametrize(
    "other", [lambda b: b.trip(TicketError("gone")), Breaker.postpone], ids=["trip", "postpone"]
)
def test_a_quarantine_outlives_a_failure_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch, other: Callable[[Breaker], None]
) -> None:
    breaker = Breaker()
    breaker.trip(TicketError("down"))

    def quarantine_meanwhile() -> float:
        breaker.quarantine(VIOLATION)
        return 0.0

    monkeypatch.setattr(health, "_jitter", quarantine_meanwhile)
    other(breaker)
    assert (breaker.state, breaker.reason, breaker.is_due) == ("quarantined", VIOLATION, False)
    breaker.admit()
    breaker.reset()
    assert (breaker.state, breaker.reason) == ("quarantined", VIOLATION)
    breaker.release()
    assert (breaker.state, breaker.reason) == ("closed", None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(health, "time", clock)
    return clock


def wait_after(failures: int, clock: Clock) -> float:
    """How long a breaker that has failed so often waits for the next attempt, to a tenth of the first wait."""
    breaker, begin, waited = Breaker(), clock.now, 0
    for _ in range(failures):
        breaker.trip(TicketError("down"))
        breaker.admit()
    breaker.trip(TicketError("down"))
    while not breaker.is_due:
        waited += 1
        clock.now = begin + waited * FIRST_WAIT / 10
    return waited * FIRST_WAIT / 10


def test_waits_grow_up_to_the_longest_and_are_jittered(clock: Clock) -> None:
    for failures in range(10):
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2**failures)
        waits = {wait_after(failures, clock) for _ in range(100)}
        assert all(0.49 * longest < wait < longest + 0.11 * FIRST_WAIT for wait in waits)
        assert len(waits) > 1, "all clients come back at once"


def test_a_success_makes_the_next_wait_the_shortest(clock: Clock) -> None:
    breaker = Breaker()
    for _ in range(10):
        breaker.trip(TicketError("down"))
    breaker.reset()
    breaker.trip(TicketError("down"))
    clock.now += FIRST_WAIT
    assert breaker.is_due
