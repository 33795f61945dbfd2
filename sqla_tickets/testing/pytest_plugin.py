"""Fixtures for pytest: ticket servers in memory, or real ones, until the end of a test.

In the ``conftest.py`` at the root of the tests::

    pytest_plugins = ["sqla_tickets.testing.pytest_plugin"]

pytest does not load them by itself: it would import them in every project of the environment, and their names
could collide with others. No fixture is used automatically.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import TypeAlias

import pytest

from ..pool import TicketPool
from . import servers_at, servers_in_memory

__all__ = ["OpenTickets", "ticket_server_urls", "tickets_at_servers", "tickets_in_memory"]

#: Called with MetaDatas and the options of `servers_in_memory`; what it opens is closed after the test.
OpenTickets: TypeAlias = "Callable[..., TicketPool]"

#: The environment variable that names the real servers, in the pool's order.
VARIABLE = "SQLA_TICKETS_TEST_SERVERS"


@pytest.fixture
def tickets_in_memory() -> Generator[OpenTickets]:
    """``tickets_in_memory(Base.metadata, stride=16)`` serves models without any server, for this test."""
    with ExitStack() as opened:
        yield lambda *metadatas, **options: opened.enter_context(
            servers_in_memory(*metadatas, **options)
        )


@pytest.fixture(scope="session")
def ticket_server_urls() -> list[str]:
    """The URLs of real ticket servers: those in SQLA_TICKETS_TEST_SERVERS, ``URL URL``. Override it to name others."""
    urls = os.environ.get(VARIABLE, "").split()
    if not urls:
        pytest.skip(f"no ticket servers: name them in {VARIABLE}, or override ticket_server_urls")
    return urls


@pytest.fixture
def tickets_at_servers(ticket_server_urls: list[str]) -> Generator[OpenTickets]:
    """``tickets_at_servers(Base.metadata)`` serves models from real servers, in fresh databases."""
    with ExitStack() as opened:
        yield lambda *metadatas, **options: opened.enter_context(
            servers_at(ticket_server_urls, *metadatas, **options)
        )
