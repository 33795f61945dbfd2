"""Fixtures of the tests of high-water marks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqla_tickets.concurrency import in_background
from sqla_tickets.high_water import store


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks are written by threads, as on servers that are no files."""

    def begin(marks: store.HighWaterStore, work: Callable[[], None]) -> bool:
        return in_background(work, f"sqla_tickets marks on {marks}", in_a_task=False)

    monkeypatch.setattr(store.HighWaterStore, "begin", begin)
