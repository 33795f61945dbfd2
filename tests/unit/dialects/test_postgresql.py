"""What PostgreSQL's drivers are told, as they wait for an answer for ever."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import make_url

from sqla_tickets.dialects import dialect_of

A_YEAR_SECONDS = 365 * 24 * 3600.0


def connect_defaults(driver: str, timeout: float, **given: Any) -> dict[str, Any]:
    """The arguments of the driver's ``connect()``."""
    dialect = make_url(f"postgresql+{driver}://").get_dialect()()
    dialect_of(dialect).set_connect_defaults(given, timeout, 1.0)
    return given


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_connection_whose_server_is_gone_is_ended_by_the_system(driver: str) -> None:
    found = connect_defaults(driver, 0.2)
    assert (found["tcp_user_timeout"], found["keepalives_idle"]) == (2000, 2)
    assert found["keepalives_interval"] == 1


def test_keepalives_of_a_long_time_out_are_what_systems_take() -> None:
    """Linux takes 15 bits, and libpq 31."""
    found = connect_defaults("psycopg", A_YEAR_SECONDS)
    assert found["keepalives_idle"] == 2**15 - 1
    assert found["tcp_user_timeout"] < 2**31


def test_keepalives_of_a_url_are_kept() -> None:
    given = {"tcp_user_timeout": "500", "keepalives_idle": "60", "keepalives_interval": "10"}
    assert given.items() <= connect_defaults("psycopg", 1.0, **given).items()
