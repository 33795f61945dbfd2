"""The messages of errors, as an operator reads them."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import make_url

from sqla_tickets import NoTicketServer, TicketPool
from sqla_tickets.connect.failures import failure_of
from sqla_tickets.dialects import ErrorKind, dialect_of
from sqla_tickets.status.text import in_short


def test_an_error_without_a_text_leaves_no_parentheses() -> None:
    """Such as asyncpg's time-out."""
    url = make_url("postgresql+asyncpg://tickets@h/t")
    dialect = dialect_of(url.get_dialect()())
    error = failure_of(ErrorKind.TIMEOUT, asyncio.TimeoutError(), "h", url, None, dialect)
    assert str(error).startswith("h: no answer in time: check")


def test_a_missing_privilege_is_granted_to_who_is_known() -> None:
    for url, advice in (
        ("mysql+pymysql://tickets@h/my-db", "GRANT INSERT ON `my-db`.* TO 'tickets'"),
        ("mysql+pymysql://tickets@h", "grant the ticket user "),
        ("mysql+pymysql://h/t", "grant the ticket user "),
    ):
        dialect = dialect_of(make_url(url).get_dialect()())
        denied = Exception(1142, "INSERT command denied to user 'tickets'@'%' for table 'photos'")
        error = failure_of(ErrorKind.ACCESS_DENIED, denied, "h", make_url(url), "photos", dialect)
        assert str(error).partition("): ")[2].startswith(advice)


def test_work_on_all_tables_names_none() -> None:
    url = make_url("mysql+pymysql://tickets@h/t")
    dialect = dialect_of(url.get_dialect()())
    error = failure_of(ErrorKind.LOCK_TIMEOUT, None, "h", url, "", dialect)
    assert str(error).startswith("the ticket tables on h: another session")
    assert in_short(str(error), "h", "photos").startswith("Another session")


def test_the_reasons_of_several_servers_are_one_sentence() -> None:
    urls = [f"mysql+pymysql://tickets@127.0.0.1:{port}/t" for port in (1, 2)]
    with TicketPool(urls) as pool, pytest.raises(NoTicketServer) as caught:
        pool.next_id("photos")
    assert "; mysql://127.0.0.1:" in str(caught.value)
    assert ".; " not in str(caught.value)
