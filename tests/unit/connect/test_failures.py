"""The messages of errors, as an operator reads them."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import make_url

from sqla_tickets import NoTicketServer, TicketPool
from sqla_tickets.connect.failures import failure_of
from sqla_tickets.dialects import ErrorKind, dialect_of


def test_an_error_without_a_text_leaves_no_parentheses() -> None:
    """Such as asyncpg's time-out."""
    url = make_url("postgresql+asyncpg://tickets@h/t")
    dialect = dialect_of(url.get_dialect()())
    error = failure_of(ErrorKind.TIMEOUT, asyncio.TimeoutError(), "h", url, None, dialect)
    assert str(error).startswith("h: no answer in time: check")


def test_the_reasons_of_several_servers_are_one_sentence() -> None:
    urls = [f"mysql+pymysql://tickets@127.0.0.1:{port}/t" for port in (1, 2)]
    with TicketPool(urls) as pool, pytest.raises(NoTicketServer) as caught:
        pool.next_id("photos")
    assert "; mysql://127.0.0.1:" in str(caught.value)
    assert ".; " not in str(caught.value)
