"""Fixtures of the tests of high-water marks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqla_tickets.concurrency import in_background
from sqla_tickets.high_water import peer, service, store
from tests.support.timing import set_timing

#: Longer than any loaded machine takes, in seconds.
FOR_EVER = 60.0


@pytest.fixture
def impatient() -> None:
    """Wait for peers as long as a program does: the test is about one that does not answer."""


@pytest.fixture(autouse=True)
def _peers_have_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for what peers tell and store, however busy the machine is."""
    if "impatient" in request.fixturenames:
        return
    monkeypatch.setattr(service._wait_until, "__defaults__", (FOR_EVER,))
    set_timing(monkeypatch, service, flush_seconds=FOR_EVER)
    for module in (service, store):
        set_timing(monkeypatch, module, patience_seconds=FOR_EVER)
    for module in (service, peer):
        set_timing(monkeypatch, module, lead_wait_seconds=FOR_EVER)


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks are written by threads, as on servers that are no files."""

    def begin(marks: store.HighWaterStore, work: Callable[[], None]) -> bool:
        return in_background(work, f"sqla_tickets marks on {marks}", in_a_task=False)

    monkeypatch.setattr(store.HighWaterStore, "begin", begin)
