"""The drivers that tickets are drawn with: one list for every test that runs with each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

T = TypeVar("T")


class Driver(NamedTuple):
    """One driver.

    Attributes:
        name: as it stands in a URL.
        module: what it is imported by; one written in C is not installed everywhere.
        kinds: the test servers that it reaches, the quickest to start first.
        is_async: whether it waits in the manner of an event loop.
    """

    name: str
    module: str
    kinds: tuple[str, ...]
    is_async: bool = False

    def require(self) -> None:
        """Skip the test where the driver is not installed."""
        pytest.importorskip(self.module)

    def run(self, work: Callable[[], T]) -> T:
        """Do synchronous work, under an event loop where the driver needs one."""
        return asyncio.run(_in_greenlet(work)) if self.is_async else work()

    def __str__(self) -> str:
        return self.name


_MYSQL = ("mariadb", "mysql")
DRIVERS = [
    Driver("mysql+pymysql", "pymysql", _MYSQL),
    Driver("mysql+mysqldb", "MySQLdb", _MYSQL),
    Driver("mysql+mysqlconnector", "mysql.connector", _MYSQL),
    Driver("mariadb+mariadbconnector", "mariadb", ("mariadb",)),
    Driver("mysql+asyncmy", "asyncmy", _MYSQL, is_async=True),
    Driver("mysql+aiomysql", "aiomysql", _MYSQL, is_async=True),
    Driver("postgresql+psycopg", "psycopg", ("postgresql",)),
    Driver("postgresql+psycopg_async", "psycopg", ("postgresql",), is_async=True),
    Driver("postgresql+psycopg2", "psycopg2", ("postgresql",)),
    Driver("postgresql+asyncpg", "asyncpg", ("postgresql",), is_async=True),
    Driver("sqlite+pysqlite", "sqlite3", ("sqlite",)),
    Driver("sqlite+aiosqlite", "aiosqlite", ("sqlite",), is_async=True),
]


def drivers(*kinds: str, is_async: bool | None = None) -> list[Driver]:
    """Those that reach one of some kinds of servers, and wait in one manner or in both."""
    return [
        driver
        for driver in DRIVERS
        if (not kinds or set(kinds) & set(driver.kinds)) and is_async in (None, driver.is_async)
    ]


async def _in_greenlet(work: Callable[[], T]) -> T:
    # Any async engine opens the door to the greenlet that its drivers wait in.
    engine = create_async_engine("sqlite+aiosqlite://")
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(lambda _: work())
    finally:
        await engine.dispose()
