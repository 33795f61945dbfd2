"""Blocks of Flickr's table are drawn under its lock, and without it where that cannot be had."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from pymysql.cursors import Cursor
from pymysql.err import DatabaseError
from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

from sqla_tickets import NoTicketServer, TicketPool
from sqla_tickets.dialects import ErrorKind
from sqla_tickets.tables import inspection
from tests.support.draws import (
    OpenPool,
    assert_unique,
    connections_to,
    draw_from,
    fresh_pair,
    grant_only,
    kill_connections,
    residues,
    until,
)
from tests.support.servers import MySQLLike, ServerFixtures

pytestmark = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


@contextmanager
def holding(server: MySQLLike, *statements: str) -> Iterator[Cursor]:
    """Another client's open session, which may hold locks until the end."""
    with server.administrator() as cursor:
        for statement in statements:
            cursor.execute(statement)
        yield cursor


def test_a_block_is_dense_whatever_its_size(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    pool = open_pool(fresh_pair(servers, kind)[2])
    pool.create_table("photos")
    for n in (1, 2, 3, 49, 50, 51, 10_000):
        (block,) = pool.reserve("photos", n)
        assert len(block) == n
        assert block.step == 2 or n == 1


@pytest.mark.parametrize("n", [2, 49, 50, 51, 120])
def test_without_the_privilege_tickets_are_drawn_one_by_one(
    servers: ServerFixtures,
    open_pool: OpenPool,
    kind: str,
    n: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, urls = fresh_pair(servers, kind)
    open_pool(urls).create_table("photos")
    for server, url in zip((first, second), urls, strict=True):
        grant_only(server, url, "SELECT", "INSERT", "DELETE")
    pool, ids = open_pool(urls), []
    for _ in range(3):
        drawn = pool.next_ids("photos", n)
        assert len(drawn) == n
        ids += drawn
    assert_unique(ids)
    told = [r for r in caplog.records if "more slowly" in r.getMessage()]
    assert 1 <= len(told) <= 2, "once for each server that was asked for a block"
    assert all("'photos'" in r.getMessage() for r in told)


def test_a_table_that_a_reader_keeps_open_is_drawn_from_one_by_one(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool = open_pool(urls, hedge=False)
    pool.create_table("photos")
    table = f"`{urls[0].database}`.photos"
    with holding(first, "BEGIN", f"SELECT * FROM {table}"):
        ids = pool.next_ids("photos", 5) + pool.next_ids("photos", 5)
    assert_unique(ids)
    assert residues(ids) == {0, 1}, "a reader is no reason to leave a server out"
    assert {record.breaker for record in pool.status()} == {"closed"}
    assert not connections_to(first, urls[0], "lock")


@pytest.mark.parametrize("how", ["KILL", "KILL QUERY"])
def test_killed_while_it_waits_for_the_lock(
    servers: ServerFixtures, open_pool: OpenPool, kind: str, how: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool = open_pool(urls)
    pool.create_table("photos")
    ids = pool.next_ids("photos", 2) + pool.next_ids("photos", 2)
    over = threading.Event()

    def kill_waiting() -> int:
        killed = 0
        while not over.is_set():
            killed += kill_connections(first, urls[0], how, "lock")
            time.sleep(0.02)
        return killed

    with (
        holding(first, "BEGIN", f"SELECT * FROM `{urls[0].database}`.photos"),
        ThreadPoolExecutor(1) as killer,
    ):
        ended = killer.submit(kill_waiting)
        try:
            for _ in range(4):
                ids += pool.next_ids("photos", 7)
        finally:
            over.set()
        assert ended.result()
    assert len(ids) == 4 + 4 * 7
    ids += draw_from(pool, 1)
    assert_unique(ids)


def test_killed_at_any_moment(servers: ServerFixtures, open_pool: OpenPool, kind: str) -> None:
    """Connections die under blocks that are being drawn; no lock stays behind, nothing repeats."""
    first, second, urls = fresh_pair(servers, kind)
    pool = open_pool(urls)
    pool.create_table("photos")
    over = threading.Event()

    def draw(_: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < 30 * 20:
            # Both servers may lose their connections during one draw.
            with suppress(NoTicketServer):
                ids += pool.next_ids("photos", 20)
        return ids

    def kill(server: MySQLLike, url: URL) -> int:
        killed = 0
        while not over.is_set():
            killed += kill_connections(server, url)
            time.sleep(0.05)
        return killed

    with ThreadPoolExecutor(6) as threads:
        killers = [threads.submit(kill, *pair) for pair in zip((first, second), urls, strict=True)]
        try:
            drawn = list(threads.map(draw, range(4)))
        finally:
            over.set()
        assert sum(killer.result() for killer in killers) > 0
    ids = [ticket for some in drawn for ticket in some]
    assert len(ids) == 4 * 30 * 20
    ids += draw_from(pool, 1) + draw_from(pool, 2)
    assert_unique(ids)


def test_an_engine_that_takes_single_statements_draws_blocks_under_the_lock(
    servers: ServerFixtures, open_pool: OpenPool, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    engines = [create_engine(url, poolclass=NullPool) for url in fresh_pair(servers, kind)[2]]
    pool = open_pool(engines)
    pool.create_table("photos")
    with caplog.at_level(logging.WARNING):
        blocks = [block for n in (2, 500, 500, 500) for block in pool.reserve("photos", n)]
    assert [len(block) for block in blocks] == [2, 500, 500, 500], "dense"
    assert_unique([ticket for block in blocks for ticket in block])
    assert {r.breaker for r in pool.status()} == {"closed"}


def test_singles_need_no_lock(servers: ServerFixtures, open_pool: OpenPool, kind: str) -> None:
    first, second, urls = fresh_pair(servers, kind)
    pool: TicketPool = open_pool(urls)
    pool.create_table("photos")
    with (
        holding(first, "BEGIN", f"SELECT * FROM `{urls[0].database}`.photos"),
        holding(second, "BEGIN", f"SELECT * FROM `{urls[1].database}`.photos"),
    ):
        ids = [pool.next_id("photos") for _ in range(50)]
        assert not connections_to(first, urls[0], "metadata lock")
    assert_unique(ids)


def test_single_tickets_are_drawn_among_many_blocks(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    """A client that waits for the table's lock goes before one that only writes or reads."""
    first, _, urls = fresh_pair(servers, kind)
    open_pool(urls).create_table("photos")
    over = threading.Event()

    def draw_blocks(_: int) -> None:
        with first.administrator() as cursor:
            while not over.is_set():
                cursor.execute(f"LOCK TABLES `{urls[0].database}`.photos WRITE")
                cursor.execute("DO SLEEP(0.02)")
                cursor.execute("UNLOCK TABLES")

    pool = open_pool([urls[0]], stride=2)
    with ThreadPoolExecutor(6) as threads:
        blocks = [threads.submit(draw_blocks, n) for n in range(6)]
        try:
            ids = [pool.next_id("photos") for _ in range(5)]
        finally:
            over.set()
        for each in blocks:
            each.result()
    assert_unique(ids)


def test_who_may_only_read_is_told_that_somebody_holds_the_table(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    """To read nevertheless it asks for the lock, and that this is denied is nobody's concern."""
    first, _, urls = fresh_pair(servers, kind)
    open_pool(urls).create_table("photos")
    grant_only(first, urls[0], "SELECT")
    (server,) = open_pool([urls[0]], stride=2).servers
    connection = server.connect()
    with (
        holding(first, f"LOCK TABLES `{urls[0].database}`.photos WRITE"),
        pytest.raises(DatabaseError) as caught,
    ):
        inspection.number(server.context.over(connection.cursor), "photos", "replace", "stub")
    server.connections.discard(connection)
    assert server.context.dialect.error_kind(caught.value) is ErrorKind.LOCK_TIMEOUT


def test_a_draw_that_outlives_its_pool_leaves_no_connection(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, second, urls = fresh_pair(servers, kind)
    pool = open_pool(urls, hedge=False)
    pool.create_table("photos")

    def connections(state: str = "") -> list[int]:
        return connections_to(first, urls[0], state) + connections_to(second, urls[1], state)

    with ThreadPoolExecutor(1) as thread:
        with (
            holding(first, f"LOCK TABLES `{urls[0].database}`.photos WRITE"),
            holding(second, f"LOCK TABLES `{urls[1].database}`.photos WRITE"),
        ):
            drawing = thread.submit(pool.next_ids, "photos", 3)
            until(lambda: bool(connections("lock")))
            waiting = set(connections("lock"))
            pool.dispose()
        assert len(drawing.result()) == 3
    until(lambda: waiting.isdisjoint(connections()))
