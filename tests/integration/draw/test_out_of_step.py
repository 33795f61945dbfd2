"""Connections whose answers are not those to what was asked: no number of theirs is a ticket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pymysql
import pytest
from sqlalchemy import URL, create_engine

from sqla_tickets import TicketIntegrityError, TicketPool
from sqla_tickets.connect.cursor import DrawCursor
from sqla_tickets.errors import OutOfStep
from sqla_tickets.high_water.peer import Peer
from tests.integration.draw.test_sockets import engine_for, tls
from tests.support.draws import OpenPool, run, until
from tests.support.drivers import Route, routes
from tests.support.servers import ServerFixtures
from tests.support.tcp_proxy import Fault, TcpProxy

#: Drivers written in C that read ahead, and do not show what.
HIDING = ("MySQLdb", "mariadb")
#: Drivers that do so, and drop what is too much, or end the connection.
DROPPING = ("psycopg", "psycopg2", "asyncpg")
ROUTES = [route for route in routes() if route.kind in ("mariadb", "postgresql")]
USERS = 100_001
OUT_OF_STEP = "unread data"
#: Statements whose answers, when they come twice, are not those of a block.
BEFORE = {
    "too short": "REPLACE INTO users (stub) VALUES ('a')",
    "too long": "DO 0; REPLACE INTO users (id, stub) VALUES (1001, 'a');"
    " REPLACE INTO users (id, stub) VALUES (1003, 'a'); DO 0; DO 0",
    "nothing": "DO 0",
}


@contextmanager
def proxied(url: URL) -> Iterator[tuple[TcpProxy, URL]]:
    with TcpProxy(url.port) as proxy:
        yield proxy, url.set(host="127.0.0.1", port=proxy.port)


@pytest.mark.parametrize("pause", [0.0, 0.02], ids=["at once", "later"])
@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_answer_that_comes_twice_is_no_ticket(
    servers: ServerFixtures,
    route: Route,
    tmp_path: Path,
    pause: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It lies in the driver's buffer or in the socket, and the next question is another sequence's."""
    url = route.fresh_database(servers, tmp_path)
    if route.module in HIDING and not pause:
        pytest.skip("it hides its buffer")

    def work(proxy: TcpProxy, pool: TicketPool) -> None:
        for layout in route.layouts:
            users, photos = f"users_{layout}", f"photos_{layout}"
            pool.create_table(users, start=USERS, layout=layout)
            pool.create_table(photos, layout=layout)
            for n in (1, 5):
                pool.next_ids(users, n), pool.next_ids(photos, n)
                with repeating(proxy, pause):
                    assert min(pool.next_ids(users, n)) >= USERS
                assert max(pool.next_ids(photos, n)) < USERS
        assert {record.breaker for record in pool.status()} == {"closed"}

    def with_pool() -> None:
        with (
            proxied(url) as (proxy, through),
            TicketPool([through], stride=2, hedge=False) as pool,
        ):
            work(proxy, pool)

    route.run(with_pool)
    assert (OUT_OF_STEP in caplog.text) == (route.module not in DROPPING or bool(pause))


class Instrumented(pymysql.connections.Connection):
    """A connection as tracing libraries make it: the package leaves its socket to the driver, which reads ahead."""

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        return super().query(sql, unbuffered)


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_answer_that_comes_twice_to_a_subclass_is_no_ticket(ticket_urls: list[URL]) -> None:
    with proxied(ticket_urls[0]) as (proxy, through):
        engine = create_engine(
            "mysql+pymysql://",
            creator=lambda: Instrumented(
                host="127.0.0.1",
                port=through.port or 0,
                user=through.username,
                password=through.password or "",
                database=through.database,
                autocommit=True,
            ),
        )
        with TicketPool([engine], stride=2, hedge=False) as pool:
            pool.create_table("users", start=USERS, layout="counter")
            pool.create_table("photos", layout="counter")
            pool.next_id("users"), pool.next_id("photos")
            with repeating(proxy):
                assert pool.next_id("users") >= USERS
            assert pool.next_id("photos") < USERS


@contextmanager
def repeating(proxy: TcpProxy, pause: float = 0.0) -> Iterator[None]:
    """The next answer comes twice; waits for the second one."""
    before = proxy.repeats
    proxy.do(Fault("repeat", pause))
    yield
    until(lambda: proxy.repeats > before)


@pytest.mark.ticket_servers("mariadb", "postgresql")
def test_answer_that_comes_twice_raises_no_mark(
    servers: ServerFixtures, ticket_urls: list[URL]
) -> None:
    """Whatever is asked over a connection: a number that is read, a mark, a lease."""
    with (
        proxied(ticket_urls[0]) as (proxy, through),
        TicketPool([through], stride=2, hedge=False) as pool,
    ):
        pool.create_table("users", start=USERS)
        pool.create_table("photos")
        (server,) = pool.servers
        for name, other in (("users", "photos"), ("photos", "users")):
            assert (server.last_ticket(name) > 50_000) == (name == "users")
            with repeating(proxy):
                assert (server.last_ticket(name) > 50_000) == (name == "users")
            assert (server.last_ticket(other) > 50_000) == (other == "users")


@pytest.mark.parametrize("route", routes("mariadb", "mysql", "postgresql"), ids=str)
def test_connection_in_step_is_kept(
    servers: ServerFixtures, route: Route, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also with TLS, whose session tickets lie on the socket and are no answer."""
    url = route.fresh_database(servers, tmp_path)
    engine = engine_for(url, **(tls(route) if route.kind == "mysql" else {}))

    def work() -> None:
        with TicketPool([engine], stride=2, hedge=False) as pool:
            pool.create_table("photos")
            for n in (5, 1, 1, 5, 5, 1):
                pool.next_ids("photos", n)
                pool.status()

    route.run(work)
    assert OUT_OF_STEP not in caplog.text


@pytest.mark.ticket_servers("mariadb", "mysql")
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_block_whose_answers_do_not_end_with_it(
    ticket_urls: list[URL], open_pool: OpenPool, before: str
) -> None:
    """A driver that hides its buffer takes an answer that came twice for the beginning of a block's."""
    pool = open_pool(ticket_urls[:1], stride=2)
    for name in ("users", "photos"):
        pool.create_table(name)
    pool.next_id("photos")
    layout = pool.servers[0].table("photos").layout
    assert layout is not None
    with proxied(ticket_urls[0]) as (proxy, through):
        connection = pymysql.connect(
            host=through.host,
            port=through.port or 0,
            user=through.username,
            password=str(through.password),
            database=through.database,
            client_flag=1 << 16,
            ssl_disabled=True,
        )
        with connection, connection.cursor() as cursor:
            proxy.do(Fault("repeat"))
            cursor.execute(before)
            while cursor.nextset():
                pass
            with pytest.raises((OutOfStep, pymysql.err.InternalError)):
                layout.draw(cast("DrawCursor", cursor), 2)


def test_a_broken_promise_closes_its_connection(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection may be one answer behind: then nothing else that it says is true, either."""
    monkeypatch.setattr(Peer, "read_joined", lambda *_: None)  # over a second connection
    pool = open_pool(ticket_urls[:1], stride=2)
    pool.create_table("photos", layout="counter")
    pool.next_id("photos"), pool.next_id("photos")
    (server,) = pool.servers
    known = server.table("photos").fence
    for last, is_another_residue in ((1000, True), (1, False)):
        run(ticket_urls[0], f"UPDATE photos SET id = {last}")
        assert server.connections.has_idle
        with pytest.raises(TicketIntegrityError):
            pool.next_id("photos")
        assert not server.connections.has_idle
        if is_another_residue:
            assert server.table("photos").fence == known
            run(ticket_urls[0], "UPDATE photos SET id = 1001")
            pool.servers[0].unquarantine("photos")
