"""Every driver that SQLAlchemy has for MySQL and MariaDB draws the same way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from sqla_tickets import TicketPool, TicketServerError
from sqla_tickets.note import LayoutName
from tests.drawing.conftest import OpenPool
from tests.drawing.tools import assert_unique, residues
from tests.servers import Borrower

SYNC = ["mysql+pymysql", "mysql+mysqldb", "mysql+mysqlconnector", "mariadb+mariadbconnector"]
ASYNC = ["mysql+asyncmy", "mysql+aiomysql"]
MODULES = {"mysqldb": "MySQLdb", "mysqlconnector": "mysql.connector", "mariadbconnector": "mariadb"}
NAMES = ["photos", "my-`pho%tos"]
DRAWS_WHEN_TOLD = """
import sys
from sqla_tickets import TicketPool
pool = TicketPool(sys.argv[1:])
pool.next_id("photos"), pool.next_id("photos")
print("ready", flush=True)
sys.stdin.readline()
print(*[pool.next_id("photos") for _ in range(3)], flush=True)
"""
KINDS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])
LAYOUTS = pytest.mark.parametrize("layout", ["replace", "counter"])


def urls_for(driver: str, kind: str, servers: Borrower) -> list[URL]:
    if driver.startswith("mariadb") and kind == "mysql":
        pytest.skip("a driver for MariaDB")
    module = driver.partition("+")[2]
    pytest.importorskip(MODULES.get(module, module))
    return [
        servers.fresh_database(servers.shared(kind, n)).set(drivername=driver) for n in range(2)
    ]


def draw(pool: TicketPool, name: str, layout: LayoutName) -> None:
    pool.create_table(name, layout=layout)
    pool.create_table(name)
    ids: list[int] = []
    for n in (1, 1, 2, 2, 60, 60, 1, 5000):
        drawn = pool.next_ids(name, n)
        assert len(drawn) == n
        assert drawn == sorted(drawn)
        ids += drawn
    assert_unique(ids)
    assert residues(ids) == {0, 1}
    blocks = pool.reserve(name, 500) + pool.reserve(name, 500)
    assert [len(block) for block in blocks] == [500, 500], "dense"
    assert [r.breaker for r in pool.status() if r.sequence == name] == ["closed", "closed"]
    pool.drop_table(name)


@KINDS
@LAYOUTS
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("driver", SYNC)
def test_a_driver(
    servers: Borrower, open_pool: OpenPool, driver: str, kind: str, layout: LayoutName, name: str
) -> None:
    draw(open_pool(urls_for(driver, kind, servers)), name, layout)


@KINDS
@LAYOUTS
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("driver", ASYNC)
def test_an_async_driver(
    servers: Borrower, driver: str, kind: str, layout: LayoutName, name: str
) -> None:
    async def main() -> None:
        pool = TicketPool(urls_for(driver, kind, servers))
        # Any async engine opens the door: tickets are drawn under its connection's greenlet.
        engine = create_async_engine("sqlite+aiosqlite://")
        async with engine.connect() as connection:
            await connection.run_sync(lambda _: draw(pool, name, layout))
            await connection.run_sync(lambda _: pool.dispose())
        await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("driver", SYNC)
def test_a_driver_survives_a_restart(servers: Borrower, open_pool: OpenPool, driver: str) -> None:
    pool = open_pool(urls_for(driver, "mariadb", servers))
    pool.create_table("photos")
    ids = pool.next_ids("photos", 2) + pool.next_ids("photos", 2)
    server = servers.mariadb(0)
    server.stop()
    server.start()
    ids += pool.next_ids("photos", 2) + pool.next_ids("photos", 2)
    assert residues(ids[-4:]) == {0, 1}
    assert_unique(ids)


@pytest.mark.parametrize("driver", SYNC)
def test_a_driver_gives_a_frozen_server_up(
    servers: Borrower, open_pool: OpenPool, driver: str
) -> None:
    """In a process of its own: a driver written in C that waits for ever cannot be interrupted."""
    urls = urls_for(driver, "mariadb", servers)
    open_pool(urls).create_table("photos")
    texts = [url.render_as_string(hide_password=False) for url in urls]
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", DRAWS_WHEN_TOLD, *texts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as drawing:
        assert drawing.stdout is not None
        assert drawing.stdin is not None
        assert drawing.stdout.readline() == "ready\n"
        servers.mariadb(0).freeze()
        # Its threads stop one by one.
        time.sleep(0.2)
        try:
            answer, _ = drawing.communicate("go\n", timeout=20)
        finally:
            drawing.kill()
    assert residues(map(int, answer.split())) == {0}


@pytest.mark.parametrize("driver", SYNC)
def test_a_driver_s_errors_do_not_escape(
    driver: str, open_pool: OpenPool, servers: Borrower
) -> None:
    urls = urls_for(driver, "mariadb", servers)
    with pytest.raises(TicketServerError):
        open_pool([urls[0].set(port=1)]).create_table("photos")
