"""Fixtures of the command's tests."""

from __future__ import annotations

import pytest
from sqlalchemy import URL

from tests.support.command_line import options


@pytest.fixture
def on(ticket_urls: list[URL]) -> list[str]:
    """The options that name the pair of ticket servers."""
    return options(ticket_urls)
