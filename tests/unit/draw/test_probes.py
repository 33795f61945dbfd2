"""How often a server is probed that does not answer: a busy one must not get more to do."""

from __future__ import annotations

import pytest

from sqla_tickets.draw import probes
from sqla_tickets.draw.probes import Probe, Probes
from tests.support.workers import Clock

STALE = 0.2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.now = 1000.0
    monkeypatch.setattr(probes, "time", clock)
    return clock


def begun_within(seconds: float, clock: Clock, connecting_since: float = 0.0) -> list[Probe]:
    """The probes of a server that draws ask for every 5 ms, while none is answered."""
    of_server, begun, begin = Probes(), list[Probe](), clock.now
    while clock.now < begin + seconds:
        new = of_server.begin(STALE, connecting_since)
        begun += [] if new is None else [new]
        clock.now += 0.005
    return begun


def test_each_probe_without_answer_doubles_the_wait_for_the_next(clock: Clock) -> None:
    since = [probe.since - 1000.0 for probe in begun_within(2.0, clock)]
    assert since == pytest.approx([0.0, 0.2, 0.6, 1.4], abs=0.02)


def test_probe_that_has_ended_is_followed_at_once(clock: Clock) -> None:
    of_server = Probes()
    for _ in range(3):
        probe = of_server.begin(STALE)
        assert probe is not None
        assert of_server.begin(STALE) is None
        of_server.ended(probe)


def test_connection_that_a_draw_opens_is_a_probe_too(clock: Clock) -> None:
    """It tells as much. Its process would wait for two, and the server let in neither."""
    since = [probe.since - 1000.0 for probe in begun_within(1.0, clock, connecting_since=1000.0)]
    assert since == pytest.approx([0.2, 0.6], abs=0.02)
