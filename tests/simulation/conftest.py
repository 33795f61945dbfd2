"""Fixtures of the simulation."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _first_server_first() -> None:
    """Nothing: the seed says with which server a pool begins, here as in `make simulate`."""
