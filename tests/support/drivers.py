"""The drivers that tickets are drawn with: one list for every test that runs with each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from sqla_tickets.dialects import LayoutName, Role, class_of
from tests.support.servers import ServerFixtures

__all__ = ["Route", "drivers", "routes"]

T = TypeVar("T")

#: The module of each driver. One that has to be compiled is not installed everywhere.
MODULES: Final = {
    "mysql+pymysql": "pymysql",
    "mysql+mysqldb": "MySQLdb",
    "mysql+mysqlconnector": "mysql.connector",
    "mariadb+mariadbconnector": "mariadb",
    "mysql+asyncmy": "asyncmy",
    "mysql+aiomysql": "aiomysql",
    "postgresql+psycopg": "psycopg",
    "postgresql+psycopg_async": "psycopg",
    "postgresql+psycopg2": "psycopg2",
    "postgresql+asyncpg": "asyncpg",
    "sqlite+pysqlite": "sqlite3",
    "sqlite+aiosqlite": "aiosqlite",
}
#: What speaks the language of a URL's backend.
_KINDS: Final = {
    "mysql": ("mariadb", "mysql"),
    "mariadb": ("mariadb",),
    "postgresql": ("postgresql",),
    "sqlite": ("sqlite",),
}


class Route(NamedTuple):
    """A way to a server: by which driver, to which kind."""

    drivername: str
    kind: str

    def __str__(self) -> str:
        return f"{self.drivername}-{self.kind}"

    @property
    def module(self) -> str:
        """What the driver is imported by."""
        return MODULES[self.drivername]

    @property
    def is_async(self) -> bool:
        """Whether the driver waits in the manner of an event loop."""
        return URL.create(self.drivername).get_dialect().is_async

    @property
    def layouts(self) -> list[LayoutName]:
        """How tables can look there, the default first."""
        return list(class_of(self.kind).layouts)

    def fresh_database(
        self, servers: ServerFixtures, folder: Path, number: int = 0, role: Role | None = "migrate"
    ) -> URL:
        """An empty database on the server of this number; skips where there is no such driver."""
        pytest.importorskip(self.module)
        if self.kind == "sqlite":
            return URL.create(self.drivername, database=str(folder / f"tickets{number}.db"))
        url = servers.fresh_database(servers.shared(self.kind, number), role)
        return url.set(drivername=self.drivername)

    def run(self, work: Callable[[], T]) -> T:
        """Do synchronous work, under an event loop where the driver needs one."""
        return asyncio.run(_in_greenlet(work)) if self.is_async else work()


def routes(*kinds: str, is_async: bool | None = None) -> list[Route]:
    """Every driver to each of some kinds of servers; to all kinds when none is named."""
    found = [
        Route(drivername, kind)
        for drivername in MODULES
        for kind in _KINDS[drivername.partition("+")[0]]
        if not kinds or kind in kinds
    ]
    return [route for route in found if is_async in (None, route.is_async)]


def drivers(*kinds: str, is_async: bool | None = None) -> list[Route]:
    """Every driver once, to MySQL and MariaDB by turns, where the kind of server makes no difference."""
    found: dict[str, list[Route]] = {}
    for route in routes(*kinds, is_async=is_async):
        found.setdefault(route.drivername, []).append(route)
    return [same[number % len(same)] for number, same in enumerate(found.values())]


async def _in_greenlet(work: Callable[[], T]) -> T:
    # Any async engine opens the door to the greenlet that its drivers wait in.
    engine = create_async_engine("sqlite+aiosqlite://")
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(lambda _: work())
    finally:
        await engine.dispose()
