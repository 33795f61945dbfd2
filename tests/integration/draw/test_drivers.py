"""Every driver draws the same way."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.util import greenlet_spawn

from sqla_tickets import NoTicketServer, TicketPool
from sqla_tickets.dialects import LayoutName
from tests.support.draws import assert_unique, draw_from, residues
from tests.support.drivers import Route, routes
from tests.support.servers import PASSWORD, USER, MySQLLike, ServerFixtures

# What is asked here depends on the kind of database.
pytestmark = pytest.mark.every_kind

NAMES = ["photos", "my-`pho%tos"]


def draw(pool: TicketPool, name: str, layout: LayoutName) -> None:
    pool.create_table(name, layout=layout)
    pool.create_table(name)
    ids: list[int] = []
    for n in (1, 1, 2, 2, 60, 60, 1, 5000):
        drawn = pool.next_ids(name, n)
        assert len(drawn) == n
        assert drawn == sorted(drawn)
        ids += drawn
    for server in pool.servers:
        found = server.table(name).layout
        assert found is not None
        for _ in range(2):  # from now on, single tickets queue
            found.took_long(1, 0.1)
    ids += [pool.next_id(name) for _ in range(6)]
    assert_unique(ids)
    assert residues(ids) == {0, 1}
    assert {r.errors for r in pool.status() if r.sequence == name} == {0}
    blocks = pool.reserve(name, 500) + pool.reserve(name, 500)
    assert [len(block) for block in blocks] == [500, 500], "dense"
    assert [r.breaker for r in pool.status() if r.sequence == name] == ["closed", "closed"]
    pool.drop_table(name)


@pytest.mark.parametrize("route", routes(), ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_driver(servers: ServerFixtures, route: Route, name: str, tmp_path: Path) -> None:
    urls = [route.fresh_database(servers, tmp_path, n) for n in range(2)]

    def work() -> None:
        with TicketPool(urls) as pool:
            for layout in route.layouts:
                draw(pool, name, layout)

    route.run(work)


@pytest.mark.parametrize("route", routes("mariadb", "postgresql"), ids=str)
def test_a_driver_survives_a_restart(servers: ServerFixtures, route: Route, tmp_path: Path) -> None:
    urls = [route.fresh_database(servers, tmp_path, n) for n in range(2)]

    def work() -> list[int]:
        with TicketPool(urls) as pool:
            pool.create_table("photos")
            ids = pool.next_ids("photos", 2) + pool.next_ids("photos", 2)
            server = servers.shared(route.kind)
            server.stop()
            server.start()
            return ids + draw_from(pool, 1) + draw_from(pool, 2)

    assert_unique(route.run(work))


@pytest.mark.parametrize(("user", "password"), [(USER, "another"), ("another", PASSWORD)])
@pytest.mark.parametrize("route", routes("mariadb", "postgresql"), ids=str)
def test_a_refused_login_names_the_user_and_the_password(
    servers: ServerFixtures, route: Route, user: str, password: str, tmp_path: Path
) -> None:
    """The server runs: to start it again would not help."""
    url = route.fresh_database(servers, tmp_path).set(username=user, password=password)

    def work() -> None:
        with TicketPool([url]) as pool, pytest.raises(NoTicketServer) as caught:
            pool.next_id("photos")
        assert "the server refuses this user" in str(caught.value)
        assert "check the user, the password and the database in its URL" in str(caught.value)

    route.run(work)


@pytest.mark.parametrize("route", routes("mariadb", "mysql"), ids=str)
def test_a_driver_to_a_server_whose_sessions_begin_without_autocommit(
    servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    """Some drivers believe what the server said before its init_connect; a loss rolls their draws back."""
    urls = [route.fresh_database(servers, tmp_path, n) for n in range(2)]
    server = servers.shared(route.kind)
    assert isinstance(server, MySQLLike)

    def work() -> list[int]:
        ids: list[int] = []
        for _ in range(3):
            with TicketPool(urls) as pool:
                pool.create_table("photos", layout="counter")
                ids += draw_from(pool, 1, 2)
                pool.servers[0].connections.close_idle()
                ids += draw_from(pool, 1, 2)
        return ids

    with server.administrator() as cursor:
        cursor.execute("SET GLOBAL init_connect = 'SET SESSION autocommit = 0'")
    try:
        assert_unique(route.run(work))
    finally:
        with server.administrator() as cursor:
            cursor.execute("SET GLOBAL init_connect = ''")


async def cancel_while_locked(pool: TicketPool, file: str) -> BaseException:
    """Cancel a draw that waits for a file's lock, which it is given then."""
    with closing(sqlite3.connect(file, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        draw = asyncio.ensure_future(greenlet_spawn(pool.next_id, "photos"))
        await asyncio.sleep(0.2)
        draw.cancel()
        await asyncio.sleep(0.1)
        holder.execute("ROLLBACK")
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await draw
    return cancelled.value


@pytest.mark.ticket_servers("sqlite")
def test_a_cancelled_draw_leaves_no_lock_on_a_file(tmp_path: Path) -> None:
    """Even while its frames live, as they do with a traceback until somebody collects garbage."""
    pytest.importorskip("aiosqlite")
    file = str(tmp_path / "tickets.db")

    async def work() -> list[int]:
        pool = TicketPool([f"sqlite+aiosqlite:///{file}"])
        await greenlet_spawn(pool.create_table, "photos")
        ids = [await greenlet_spawn(pool.next_id, "photos")]
        cancelled = await cancel_while_locked(pool, file)
        with closing(sqlite3.connect(file, timeout=10, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
        ids.append(await greenlet_spawn(pool.next_id, "photos"))
        await greenlet_spawn(pool.dispose)
        assert cancelled.__traceback__ is not None
        return ids

    assert_unique(asyncio.run(work()))
