"""Processes that end with their test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy import URL

from tests.support.load import Load, StartLoad


@pytest.fixture
def start_load() -> Iterator[StartLoad]:
    """Start processes that draw, each with a list of URLs of its own, until the test has ended."""
    loads: list[Load] = []

    def start(*of_processes: Sequence[URL]) -> Load:
        loads.append(Load(of_processes))
        return loads[-1]

    yield start
    for load in loads:
        load.kill()
