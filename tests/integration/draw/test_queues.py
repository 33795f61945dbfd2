"""Single tickets of Flickr's table queue while many clients draw; the queue orders them, and nothing relies on it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pymysql
import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

from sqla_tickets import NoTicketServer, TicketPool
from sqla_tickets.dialects import TicketDialect
from sqla_tickets.tables.layouts import ReplaceLayout
from tests.support.draws import (
    OpenPool,
    assert_unique,
    connections_to,
    fresh_pair,
    grant_only,
    kill_connections,
    residues,
    run,
    until,
)
from tests.support.servers import MySQLLike, ServerFixtures

pytestmark = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


def layouts(pool: TicketPool) -> list[ReplaceLayout]:
    """The layouts of the pool's tables, each drawn from once."""
    found: list[ReplaceLayout] = []
    for server in pool.servers:
        server.draw("photos", 1)
        layout = server.table("photos").layout
        assert isinstance(layout, ReplaceLayout)
        found.append(layout)
    return found


def queueing(pool: TicketPool) -> TicketPool:
    """The pool, whose single tickets queue from now on."""
    for layout in layouts(pool):
        layout.took_long(1, 0.1)
        layout.took_long(1, 0.1)
    return pool


def queues(dialect: TicketDialect) -> list[str]:
    """The expressions of the names of the table's queues."""
    found: list[str] = []
    for number in range(dialect.queues):
        leave = re.fullmatch(r"DO RELEASE_LOCK\((.+)\)", dialect.queue("photos", number)[1].text)
        assert leave is not None
        found.append(leave[1])
    return found


def are_free(pool: TicketPool, url: URL) -> bool:
    """Whether nobody is in a queue."""
    names = queues(pool.servers[0].context.dialect)
    (row,) = run(url, f"SELECT {', '.join(f'IS_FREE_LOCK({name})' for name in names)}")
    return set(row) == {1}


@contextmanager
def holding_queues(pool: TicketPool, server: MySQLLike, url: URL) -> Iterator[None]:
    """Another session stays in each queue."""
    names = queues(pool.servers[0].context.dialect)
    with server.administrator() as cursor:
        cursor.execute(f"USE `{url.database}`")
        for name in names:
            cursor.execute(f"DO GET_LOCK({name}, 1)")
        yield


@contextmanager
def holding_row(server: MySQLLike, url: URL) -> Iterator[None]:
    """Another session holds the table's row."""
    with server.administrator() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT id FROM `{url.database}`.photos WHERE stub = 'a' FOR UPDATE")
        yield
        cursor.execute("ROLLBACK")


def waits(drawing: Future[Any], server: MySQLLike, url: URL) -> bool:
    """Whether a draw comes to wait in a queue, in place of its end."""
    until(lambda: drawing.done() or bool(connections_to(server, url, "User lock")))
    return not drawing.done()


def test_single_tickets_queue_after_two_that_took_long(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool = open_pool(urls[:1], stride=2, hedge=False)
    pool.create_table("photos")
    layouts(pool)

    def draw_long() -> None:
        with holding_row(first, urls[0]):
            drawing = thread.submit(pool.next_id, "photos")
            time.sleep(0.1)
        drawing.result()

    def queues_now() -> bool:
        draw_long()
        with holding_queues(pool, first, urls[0]):
            drawing = thread.submit(pool.next_id, "photos")
            is_waiting = waits(drawing, first, urls[0])
        drawing.result()
        return is_waiting

    with ThreadPoolExecutor(1) as thread:
        until(queues_now)
        assert pool.next_ids("photos", 5), "a block needs no queue"
    assert are_free(pool, urls[0])


def test_one_that_took_long_is_no_reason_to_queue(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool = open_pool(urls[:1], stride=2)
    pool.create_table("photos")
    (layout,) = layouts(pool)
    layout.took_long(1, 0.1)
    layout.took_long(5, 0.1)
    with holding_queues(pool, first, urls[0]), ThreadPoolExecutor(1) as thread:
        assert not waits(thread.submit(pool.next_id, "photos"), first, urls[0])


def test_who_waits_for_the_queue_in_vain_draws_nevertheless(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool = open_pool(urls[:1], stride=2)
    pool.create_table("photos")
    queueing(pool)
    queued = partial(pool.servers[0].draw, "photos", 1, is_patient=True)
    with holding_queues(pool, first, urls[0]), ThreadPoolExecutor(4) as threads:
        blocks = [each.result() for each in [threads.submit(queued) for _ in range(4)]]
        for _ in range(4):
            drawing = threads.submit(queued)
            assert not waits(drawing, first, urls[0]), "it waits in vain once"
            blocks.append(drawing.result())
    ids = [ticket for each in blocks for block in each for ticket in block]
    assert_unique(ids)
    assert {record.breaker for record in pool.status()} == {"closed"}


def test_a_block_that_may_not_lock_does_not_queue(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    """Each of its tickets would wait."""
    first, _, urls = fresh_pair(servers, kind)
    open_pool(urls[:1], stride=2).create_table("photos")
    grant_only(first, urls[0], "SELECT", "INSERT", "DELETE")
    pool = queueing(open_pool(urls[:1], stride=2, hedge=False))
    with holding_queues(pool, first, urls[0]), ThreadPoolExecutor(1) as thread:
        drawing = thread.submit(pool.next_ids, "photos", 20)
        assert not waits(drawing, first, urls[0])
        assert len(drawing.result()) == 20


def test_nobody_stays_in_the_queue_after_an_error(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool = open_pool(urls[:1], stride=2, hedge=False)
    pool.create_table("photos")
    queueing(pool)
    with ThreadPoolExecutor(1) as thread:
        with holding_row(first, urls[0]):
            drawing = thread.submit(pool.next_id, "photos")
            until(lambda: not are_free(pool, urls[0]))
            until(lambda: bool(kill_connections(first, urls[0], "KILL QUERY", "")))
            until(lambda: are_free(pool, urls[0]) or drawing.done())
        assert drawing.result()
    until(lambda: are_free(pool, urls[0]))
    assert pool.next_id("photos")


def test_tickets_are_unique_with_clients_that_do_not_queue(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    """Some queue, some do not, some draw blocks, some are clients of Flickr's; some connections are killed."""
    first, _, urls = fresh_pair(servers, kind)
    url = urls[0]
    open_pool([url], stride=2).create_table("photos")
    over = threading.Event()

    def draw(pool: TicketPool, n: int, least: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < least:
            with suppress(NoTicketServer):  # a killed connection
                ids += pool.next_ids("photos", n)
        return ids

    def replace(_: int) -> list[int]:
        ids: list[int] = []
        with first.administrator() as cursor:
            cursor.execute(f"USE `{url.database}`")
            cursor.execute("SET SESSION auto_increment_increment = 2, auto_increment_offset = 1")
            while not over.is_set():
                try:
                    cursor.execute("REPLACE INTO photos (stub) VALUES ('a')")
                except pymysql.err.OperationalError as error:
                    assert error.args[0] in (1205, 1213)  # noqa: PT017  # it may succeed, too
                else:
                    ids.append(int(cursor.lastrowid))
        return ids

    def kill() -> None:
        while not over.wait(0.1):
            kill_connections(first, url, "KILL", "User lock")

    with ThreadPoolExecutor(12) as threads:
        foreign = [threads.submit(replace, n) for n in range(2)]
        killer = threads.submit(kill)
        try:
            pools = [open_pool([url], stride=2) for _ in range(8)]
            own = [threads.submit(draw, queueing(pool), 1, 150) for pool in pools[:5]]
            own += [
                threads.submit(draw, pool, n, 60 * n)
                for pool, n in zip(pools[5:], (1, 1, 7), strict=True)
            ]
            ids = [ticket for each in own for ticket in each.result()]
        finally:
            over.set()
        killer.result()
        ids += [ticket for each in foreign for ticket in each.result()]
    assert len(ids) > 5 * 150 + 60 * 9  # some are Flickr's
    assert_unique(ids)
    assert residues(ids) == {1}


def test_an_engine_that_takes_single_statements_does_not_queue(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    engines = [create_engine(url, poolclass=NullPool) for url in fresh_pair(servers, kind)[2]]
    pool = open_pool(engines)
    pool.create_table("photos")
    queueing(pool)
    assert_unique([pool.next_id("photos") for _ in range(8)])
    assert {record.breaker for record in pool.status()} == {"closed"}
