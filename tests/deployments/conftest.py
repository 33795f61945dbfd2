"""Pools that close what they opened, and processes that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from sqlalchemy import URL

from tests.deployments.load import Load
from tests.drawing.conftest import OpenPool, open_pool

__all__ = ["OpenPool", "StartLoad", "open_pool"]

StartLoad = Callable[..., Load]


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
