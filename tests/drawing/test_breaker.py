"""A breaker's states, where two threads meet in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqla_tickets import TicketError, TicketViolation, health
from sqla_tickets.health import Breaker

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
