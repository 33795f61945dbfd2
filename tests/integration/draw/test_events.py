"""What a pool tells those who listen to it, and that they cannot harm a draw."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import URL, event

from sqla_tickets import TicketIntegrityError, TicketPool, TicketSequence, TicketServerError
from sqla_tickets.contrib.prometheus import TicketCollector
from sqla_tickets.draw.server import InFlightRequest
from sqla_tickets.errors import TicketError
from sqla_tickets.events import Dispatcher, Draw
from tests.integration.draw.test_hedging import locked
from tests.support.draws import OpenPool, draw_from, fresh_pair, in_fork, residues, run
from tests.support.servers import ServerFixtures

SQLITE = pytest.mark.ticket_servers("sqlite")
MARIADB = pytest.mark.ticket_servers("mariadb")
EVENTS = ("drawn", "failed_over", "hedged", "discarded", "quarantined")


class Heard(SimpleNamespace):
    """What was told of each moment."""

    drawn: list[Draw]
    failed_over: list[tuple[Any, ...]]
    hedged: list[tuple[Any, ...]]
    discarded: list[tuple[Any, ...]]
    quarantined: list[tuple[Any, ...]]

    def __init__(self, pool: TicketPool) -> None:
        super().__init__(**{moment: [] for moment in EVENTS})
        event.listen(pool, "drawn", self.drawn.append)
        for moment in EVENTS[1:]:
            event.listen(pool, moment, self._listener(getattr(self, moment)))

    @staticmethod
    def _listener(to: list[tuple[Any, ...]]) -> Callable[..., None]:
        return lambda *what: to.append(what)


@SQLITE
def test_every_draw_is_dispatched_and_no_buffered_ticket(pool: TicketPool) -> None:
    heard, begin = Heard(pool), time.monotonic()
    sequence = TicketSequence("photos", block=100)
    tickets = [pool.next_id(sequence) for _ in range(10)]
    (draw,) = heard.drawn
    assert (draw.pool, draw.sequence, draw.wanted, draw.tickets) == ("default", "photos", 100, 100)
    assert draw.server in pool.servers
    assert draw.error is None
    assert not draw.is_hedge
    assert 0 < draw.seconds < time.monotonic() - begin
    assert set(tickets) < set(draw.blocks[0])
    assert not any((heard.failed_over, heard.hedged, heard.discarded, heard.quarantined))


@MARIADB
def test_a_server_that_is_left(pool: TicketPool, servers: ServerFixtures) -> None:
    draw_from(pool, 1)
    draw_from(pool, 2)
    heard, down = Heard(pool), pool.servers[0]
    servers.mariadb(0).kill()
    while not heard.failed_over:
        down.breaker.record_success()  # a mark that could not be written may have opened the circuit first
        pool.next_id("photos")
    for name, sequence, server, error in heard.failed_over:
        assert (name, sequence, server) == ("default", "photos", down)
        assert isinstance(error, TicketServerError)
        assert error.kind == "disconnected"
    failed = [draw for draw in heard.drawn if draw.error]
    assert [draw.error for draw in failed] == [error for *_, error in heard.failed_over]
    assert all((draw.server, draw.blocks) == (down, []) for draw in failed)


@MARIADB
def test_a_hedge_that_wins(servers: ServerFixtures, open_pool: OpenPool) -> None:
    server, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls, hedge=None)  # which is to hedge where there are two servers
    pool.create_table("photos")
    draw_from(pool, 1)
    draw_from(pool, 2)
    heard, tickets = Heard(pool), list[int]()
    with locked(server, urls[0]):
        for _ in range(20):  # where nobody looks in time, the lock ends the draw
            tickets.append(pool.next_id("photos"))
            if heard.hedged:  # perhaps only after the next draw
                break
            pool.servers[0].table("photos").release()
    assert ("default", "photos", pool.servers[1], "won") in heard.hedged
    (hedge,) = (draw for draw in heard.drawn if draw.is_hedge)
    assert hedge.blocks in [[range(ticket, ticket + 2, 2)] for ticket in tickets]


@SQLITE
def test_a_hedge_that_comes_too_late(pool: TicketPool) -> None:
    heard, (first, second) = Heard(pool), pool.servers
    request = InFlightRequest(first, first.table("photos"), 3)  # which waits for nothing any more
    pool._monitor._draw_too(request, second)
    assert heard.hedged == [("default", "photos", second, "lost")]
    assert heard.discarded == [("default", "photos", 3, "hedge")]
    run(second.engine.url, "DROP TABLE photos")
    pool._monitor._draw_too(request, second)
    assert heard.hedged[1:] == [("default", "photos", second, "failed")]


@SQLITE
def test_tickets_that_nobody_gets(ticket_urls: list[URL], clock: list[float]) -> None:
    sequence = TicketSequence("photos", block=10)
    with TicketPool(ticket_urls, block_max_age=0.2) as pool:
        pool.create_table("photos")
        heard = Heard(pool)
        pool.next_id(sequence)
        clock[0] += 0.3
        assert pool.buffered("photos") == 0
        assert heard.discarded == [("default", "photos", 9, "age")]
        pool.block_max_age = 600.0
        pool.next_ids(sequence, 3)
        held = pool.buffered("photos")
        assert held
        pool.raise_above("photos", 1000)
        assert heard.discarded[1:] == [("default", "photos", held, "dropped")]
        pool.raise_above("photos", 2000)
        assert len(heard.discarded) == 2


@SQLITE
@pytest.mark.parametrize(("number", "kind"), [(1, "regression"), (1000, "residue")])
def test_a_promise_that_was_broken(
    pool: TicketPool, ticket_urls: list[URL], number: int, kind: str
) -> None:
    heard = Heard(pool)
    draw_from(pool, 1, 3)
    sequence = TicketSequence("photos", block=10)
    while pool.next_id(sequence) % 2:
        pass
    held = pool.buffered("photos")
    run(ticket_urls[0], f"UPDATE photos SET id = {number}")
    while not heard.quarantined:
        pool.next_ids("photos", held + 1)
        held = 0
    ((name, of, server, error),) = heard.quarantined
    assert (name, of, server, error.kind) == ("default", "photos", pool.servers[0], kind)
    assert [draw.error for draw in heard.drawn if draw.error] == [error]


@SQLITE
def test_error_of_all_servers_has_the_kind_of_each(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    draw_from(pool, 1, 3)
    draw_from(pool, 2, 3)
    for number, url in enumerate(ticket_urls, 1):
        run(url, f"UPDATE photos SET id = {number}")
    with pytest.raises(TicketIntegrityError, match="no ticket server of 'default'") as caught:
        pool.next_id("photos")
    assert caught.value.kind == "regression"


@SQLITE
def test_a_listener_that_fails_harms_nobody(
    pool: TicketPool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(draw: Draw) -> None:
        raise ValueError("of the listener")

    heard: list[Draw] = []
    event.listen(pool, "drawn", fail)
    event.listen(pool, "drawn", heard.append)
    assert residues(pool.next_id("photos") for _ in range(4)) == {0, 1}
    assert len(heard) == 4
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 4
    assert all(record.name == "sqla_tickets.events" for record in said)
    assert all("of the listener" in str(record.exc_info) for record in said)
    event.remove(pool, "drawn", fail)
    pool.next_id("photos")
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 4


@SQLITE
@pytest.mark.parametrize("of_all_pools", [False, True])
def test_first_listener_of_a_process_is_told(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch, of_all_pools: bool
) -> None:
    """No draw looks for listeners before there is one, after the pool has drawn or before."""
    monkeypatch.setattr(Dispatcher, "has_listeners", False)
    pool.next_id("photos")
    heard: list[Draw] = []
    target, listener = TicketPool if of_all_pools else pool, heard.append
    event.listen(target, "drawn", listener)
    try:
        pool.next_id("photos")
    finally:
        event.remove(target, "drawn", listener)
    assert len(heard) == 1


@SQLITE
def test_who_listens_may_change_at_any_time(pool: TicketPool) -> None:
    heard: list[Draw] = []

    def once(draw: Draw) -> None:
        event.remove(pool, "drawn", once)
        event.listen(pool, "drawn", heard.append)

    def last(draw: Draw) -> None:
        heard.append(draw)

    event.listen(pool, "drawn", once)
    event.listen(pool, "drawn", last)
    pool.next_id("photos")
    assert len(heard) == 1
    pool.next_id("photos")
    assert len(heard) == 3


@SQLITE
def test_a_listener_of_the_class_hears_every_pool(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    heard: list[Draw] = []

    def hear(draw: Draw) -> None:
        heard.append(draw)

    before = open_pool(ticket_urls)
    before.create_table("photos")
    event.listen(TicketPool, "drawn", hear)
    try:
        after = open_pool(ticket_urls)
        before.next_id("photos")
        after.next_id("photos")
        assert [draw.server for draw in heard] == [before.servers[0], after.servers[0]]
    finally:
        event.remove(TicketPool, "drawn", hear)
    before.next_id("photos")
    assert len(heard) == 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@MARIADB
def test_a_fork_counts_for_itself(pool: TicketPool) -> None:
    collector = TicketCollector(pool)
    pool.next_ids("photos", 5)
    collector.counts.lock.acquire()  # another thread is about to count
    try:
        answer = in_fork(
            lambda: (
                f"{pool.next_ids('photos', 3) and sorted(collector.counts.drawn.values())}"
                f" {sum(record.draws for record in pool.status())}"
            )
        )
    finally:
        collector.counts.lock.release()
    assert answer == "[3] 1"
    assert sum(collector.counts.drawn.values()) == 5


@MARIADB
def test_threads_count_together(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(ticket_urls, hedge=False)  # the tickets of a hedge that loses are drawn, too
    pool.create_table("photos")
    collector = TicketCollector(pool)
    with ThreadPoolExecutor(8) as threads:
        tickets = list(threads.map(lambda n: pool.next_ids("photos", n % 3 + 1), range(200)))
    counts, drawn = collector.counts, sum(map(len, tickets))
    assert sum(counts.drawn.values()) == drawn
    draws = sum(map(sum, counts.buckets.values()))
    assert draws == sum(r.draws for r in pool.status()) <= 200  # some threads share a draw


@MARIADB
def test_errors_have_a_kind(
    pool: TicketPool, servers: ServerFixtures, ticket_urls: list[URL]
) -> None:
    collector, (first, _) = TicketCollector(pool), pool.servers
    draw_from(pool, 1)
    draw_from(pool, 2)
    run(ticket_urls[0], "DROP TABLE photos")
    while not collector.counts.errors:
        pool.next_id("photos")
    assert set(collector.counts.errors) == {("default", "photos", first, "table_missing")}
    assert collector.counts.failovers[("default", first)] >= 1
    with pytest.raises(TicketError):
        pool.next_id("nothing")
    assert collector.counts.errors[("default", "nothing", first, "table_missing")] == 1
