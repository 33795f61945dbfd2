"""A ticket table that others hold in turn is a queue, for who comes new, too; one that somebody keeps is none."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import URL, event

from sqla_tickets import NoTicketServer, TicketPool
from sqla_tickets.connect.timeouts import Timeouts
from sqla_tickets.draw import failover
from tests.support.draws import OpenPool, assert_unique, fresh_pair, in_fork, until
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.timing import set_timing
from tests.support.waiting import has_input

KINDS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])
#: Longer than any loaded machine takes, in seconds.
FOR_EVER = 60.0


class Crowd:
    """Others who hold the table without a break, and are given tickets or not.

    They let go when a pool asks the same server again, as only who queues does, be it in a fork.

    Attributes:
        ids: that they were given.
    """

    def __init__(self, server: MySQLLike, url: URL) -> None:
        self._server, self._table = server, f"`{url.database}`.photos"
        self.ids: list[int] = []
        self._reading, self._writing = os.pipe()
        self._holds, self._over = threading.Event(), threading.Event()

    def let_go_when_it_queues(self, pool: TicketPool, times: int = 1) -> None:
        count = iter(range(times - 1))

        def let_go(*_: object) -> None:
            if next(count, None) is None:
                os.write(self._writing, b"again")

        event.listen(pool, "failed_over", let_go)

    @contextmanager
    def holding(self, *, served: bool) -> Iterator[None]:
        thread = threading.Thread(target=self._hold, args=[served])
        thread.start()
        try:
            assert self._holds.wait(FOR_EVER)
            yield
        finally:
            self._over.set()
            thread.join()
            os.close(self._reading)
            os.close(self._writing)

    def _hold(self, served: bool) -> None:
        with self._server.administrator() as cursor:
            cursor.execute("SET SESSION auto_increment_increment = 2, auto_increment_offset = 1")
            cursor.execute(f"LOCK TABLES {self._table} WRITE")
            self._holds.set()
            while not self._over.is_set() and not has_input(self._reading, 0.05):
                if served:
                    cursor.execute(f"REPLACE INTO {self._table} (stub) VALUES ('a')")
                    self.ids.append(cursor.lastrowid)
            cursor.execute("UNLOCK TABLES")


@pytest.fixture
def crowd(servers: ServerFixtures, open_pool: OpenPool, kind: str) -> tuple[Crowd, TicketPool, URL]:
    """The crowd at the table ``photos`` of one server, and a pool of it that has drawn before."""
    first, _, (url, _) = fresh_pair(servers, kind)
    pool = open_pool([url], stride=2)
    pool.create_table("photos")
    pool.next_ids("photos", 3)
    return Crowd(first, url), pool, url


@KINDS
@pytest.mark.parametrize("n", [1, 5])
def test_draw_of_a_newcomer_queues_where_others_are_served(
    crowd: tuple[Crowd, TicketPool, URL], open_pool: OpenPool, n: int
) -> None:
    """Nobody has answered this process, but the number goes on while it waits in vain."""
    others, before, url = crowd
    ids = before.next_ids("photos", 3)
    newcomer = open_pool([url], stride=2)
    others.let_go_when_it_queues(newcomer)
    with others.holding(served=True):
        ids += newcomer.next_ids("photos", n)
    assert newcomer.servers[0].table("photos").errors >= 1
    assert_unique(ids + others.ids)


@KINDS
@pytest.mark.parametrize("n", [1, 5])
def test_draw_of_a_fork_queues_where_others_are_served(
    crowd: tuple[Crowd, TicketPool, URL], n: int
) -> None:
    """What its parent was answered tells a fork nothing of now."""
    others, pool, _ = crowd
    others.let_go_when_it_queues(pool)
    with others.holding(served=True):
        told = in_fork(lambda: " ".join(map(str, pool.next_ids("photos", n))))
    assert_unique([int(ticket) for ticket in told.split()] + others.ids)


@KINDS
def test_draw_queues_where_its_server_answers_others(
    crowd: tuple[Crowd, TicketPool, URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that starves, the time of a draw is over before its server has told of the lock."""
    others, before, url = crowd
    before.create_table("users")
    newcomer, over = open_pool([url], stride=2), threading.Event()
    ids = before.next_ids("photos", 3)

    def draw_others() -> None:
        while not over.wait(0.01):
            newcomer.next_id("users")

    thread = threading.Thread(target=draw_others)
    others.let_go_when_it_queues(newcomer, times=2)  # once for a connection that was idle
    with others.holding(served=True):
        thread.start()
        until(lambda: newcomer.servers[0].alive_at > 0)
        monkeypatch.setattr(newcomer.servers[0], "timeouts", Timeouts(1.0, -0.5))
        try:
            ids += newcomer.next_ids("photos", 5)
        finally:
            over.set()
            thread.join()
    assert_unique(ids + others.ids)


@KINDS
def test_draw_leaves_a_table_that_somebody_keeps(crowd: tuple[Crowd, TicketPool, URL]) -> None:
    """Nobody is served: it waits no longer than for two locks in vain."""
    others, pool, _ = crowd
    others.let_go_when_it_queues(pool)
    with others.holding(served=False), pytest.raises(NoTicketServer, match="another session holds"):
        pool.next_ids("photos", 5)
    assert pool.servers[0].table("photos").errors == 1


@pytest.mark.parametrize("kind", ["mariadb"])
def test_draw_leaves_a_queue_that_has_no_end(
    crowd: tuple[Crowd, TicketPool, URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, failover, max_queues=1)
    others, pool, _ = crowd
    with others.holding(served=True), pytest.raises(NoTicketServer, match="another session holds"):
        pool.next_ids("photos", 5)
    assert pool.servers[0].table("photos").errors == 2
    assert isinstance(pool.next_id("photos"), int)


@KINDS
def test_draw_goes_to_the_next_server_before_it_queues(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    open_pool(urls).create_table("photos")
    others, pool = Crowd(first, urls[0]), open_pool(urls)
    with others.holding(served=True):
        ids = [pool.next_ids("photos", 2) for _ in range(2)]
        assert {ticket % 2 for some in ids for ticket in some} == {0}
    assert pool.servers[0].table("photos").errors == 1
