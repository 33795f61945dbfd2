"""Many threads of a process share draws: each ticket has one receiver, and each error reaches its callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from sqlalchemy import URL, create_engine

from sqla_tickets import TicketPool, TicketSequence, TicketTableMissing
from sqla_tickets.dialects import LayoutName
from sqla_tickets.draw.timing import TIMING
from tests.support.draws import OpenPool, assert_unique, run
from tests.support.servers import ServerFixtures

THREADS = 48
#: Longer than any loaded machine takes, in seconds.
FOR_EVER = 60.0


def by_many(work: Callable[[], list[int]]) -> list[int]:
    """The tickets of many threads that begin together."""
    together = threading.Barrier(THREADS)

    def begin() -> list[int]:
        together.wait(FOR_EVER)
        return work()

    with ThreadPoolExecutor(THREADS) as threads:
        begun = [threads.submit(begin) for _ in range(THREADS)]
        return [ticket for each in begun for ticket in each.result()]


@pytest.mark.parametrize("layout", ["counter", "replace"])
def test_threads_share_draws(pool: TicketPool, ticket_urls: list[URL], layout: LayoutName) -> None:
    if layout not in pool.servers[0].context.dialect.layouts:
        pytest.skip("this kind has one layout")
    pool.create_table("albums", layout=layout)
    tickets = by_many(lambda: [pool.next_id("albums") for _ in range(20)])
    assert len(tickets) == 20 * THREADS
    assert_unique(tickets)
    assert sum(status.draws for status in pool.status(["albums"])) < len(tickets)


def test_draws_of_several_tickets_and_of_blocks_are_shared(pool: TicketPool) -> None:
    buffered = TicketSequence("photos", block=7)
    wishes = (3, 1, 150, 2)

    def work() -> list[int]:
        ids = [ticket for n in wishes for ticket in pool.next_ids("photos", n)]
        return ids + [pool.next_id(buffered) for _ in range(20)]

    tickets = by_many(work)
    assert len(tickets) == THREADS * (sum(wishes) + 20)
    assert_unique(tickets)


def test_each_caller_is_told_that_no_table_is_left(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    by_many(lambda: pool.next_ids("photos", 1))
    for url in ticket_urls:
        run(url, "DROP TABLE photos")

    def work() -> list[int]:
        with pytest.raises(TicketTableMissing, match="photos"):
            pool.next_id("photos")
        return []

    by_many(work)


@pytest.mark.parametrize("kind", ["mariadb", "mysql", "postgresql"])
def test_callers_of_a_draw_that_takes_long_share_another_one(
    servers: ServerFixtures, kind: str
) -> None:
    """If each drew for itself then, they would make a busy server slower still."""
    urls = [servers.fresh_database(servers.shared(kind, number)) for number in (0, 1)]
    with ExitStack() as stack:
        pool = stack.enter_context(
            TicketPool(urls, timeout=FOR_EVER, lock_wait=FOR_EVER, hedge=False)
        )
        pool.create_table("photos", layout="counter")
        before = by_many(lambda: [pool.next_id("photos")])
        holders = [stack.enter_context(create_engine(url).connect()) for url in urls]
        for holder in holders:
            holder.exec_driver_sql("UPDATE photos SET id = id")
        threads = stack.enter_context(ThreadPoolExecutor(THREADS))
        began = time.monotonic()
        callers = [threads.submit(pool.next_id, "photos") for _ in range(THREADS)]
        time.sleep(1.0)
        in_flight = sum(len(server.in_flight) for server in pool.servers)
        rounds = (time.monotonic() - began) / TIMING.shared_wait_seconds
        for holder in holders:
            holder.rollback()
        tickets = [caller.result(FOR_EVER) for caller in callers]
    assert in_flight <= 2 * TIMING.shared_from + rounds + 1
    assert_unique(before + tickets)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_server_that_dies_among_many_threads_costs_no_draw(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, second = servers.shared(kind, 0), servers.shared(kind, 1)
    urls = [servers.fresh_database(server) for server in (first, second)]
    pool = open_pool(urls, hedge=None)
    pool.create_table("photos")
    under_way = threading.Event()

    def kill() -> None:
        under_way.wait(FOR_EVER)
        first.kill()

    def work() -> list[int]:
        tickets = [pool.next_id("photos") for _ in range(10)]
        under_way.set()
        return tickets + [pool.next_id("photos") for _ in range(40)]

    killer = threading.Thread(target=kill)
    killer.start()
    tickets = by_many(work)
    killer.join()
    assert len(tickets) == 50 * THREADS
    assert_unique(tickets)
