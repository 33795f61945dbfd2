"""A hedge that wins leaves the overdue draw's connection open: the late answer is read, and is nobody's ticket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.draw.server import InFlightRequest, TicketServer
from sqla_tickets.draw.slow_path import CancelReason
from sqla_tickets.draw.timing import TIMING
from sqla_tickets.high_water import service
from tests.support.draws import (
    PATIENCE,
    assert_unique,
    connections_to,
    draw_from,
    fresh_pair,
    in_fork,
    until,
)
from tests.support.servers import ServerFixtures
from tests.support.timing import set_timing

#: Longer than a test waits, in seconds: nothing is probed, and nothing times out.
FOR_EVER = 500.0


class Pair:
    """Two servers, and a pool that knows both well."""

    def __init__(self, servers: ServerFixtures, stack: ExitStack, kind: str) -> None:
        self.first, self.second, self.urls = fresh_pair(servers, kind)
        self.pool = stack.enter_context(TicketPool(self.urls, timeout=FOR_EVER))
        for name in ("photos", "users"):
            self.pool.create_table(name, layout="counter")
        self.pool.raise_above("users", 1_000_000)
        self.ids = [self.pool.next_id("photos") for _ in range(30)]
        self.pool.next_ids("users", 2)
        stack.callback(self.thaw)

    def thaw(self) -> None:
        """Let both servers go on."""
        for server in (self.first, self.second):
            server.thaw()

    @property
    def detached(self) -> list[InFlightRequest]:
        """The draws on the first server whose callers have another server's answer."""
        return list(self.pool.servers[0].detached)

    def freeze_and_draw(self) -> None:
        """Freeze the first server, and draw until a draw was sent to it."""
        monitor = self.pool._monitor
        monitor._usual = monitor.patience = TIMING.first_patience_seconds
        monitor._tokens = TIMING.most_tokens
        self.first.freeze()
        end = time.monotonic() + PATIENCE
        while not self.detached:
            assert time.monotonic() < end
            self.ids.append(self.pool.next_id("photos"))

    def draw_until_it_has_answered(self) -> None:
        """Draw until the late answer was read."""
        end = time.monotonic() + PATIENCE
        while self.detached:
            assert time.monotonic() < end
            self.ids.append(self.pool.next_id("photos"))


@pytest.fixture(params=["mariadb", "mysql"])
def pair(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Pair]:
    set_timing(monkeypatch, service, interval_seconds=FOR_EVER)  # no marks, which need connections
    with ExitStack() as stack:
        yield Pair(servers, stack, request.param)


def test_late_answer_is_read_and_its_connection_kept(pair: Pair) -> None:
    pair.freeze_and_draw()
    connection = pair.detached[0].connection
    pair.first.thaw()
    pair.draw_until_it_has_answered()
    pair.ids += draw_from(pair.pool, 1, 5)
    assert connection in pair.pool.servers[0].connections.of_threads
    assert_unique(pair.ids)


def test_late_answer_is_no_ticket_of_another_sequence(pair: Pair) -> None:
    pair.freeze_and_draw()
    pair.first.thaw()
    pair.draw_until_it_has_answered()
    users = draw_from(pair.pool, 1, 10, "users")
    assert min(users) > 1_000_000 > max(pair.ids)
    assert_unique(users)


def is_well(server: TicketServer) -> bool:
    """Whether draws of photos prefer no other server."""
    return server.is_well("photos") and not server.is_unresponsive("photos")


@pytest.fixture
def hedged(pair: Pair) -> Iterator[tuple[InFlightRequest, Future[int]]]:
    """A draw that waits for its hedge, while both servers are frozen."""
    pool, (one, other) = pair.pool, pair.pool.servers
    pair.freeze_and_draw()
    pair.thaw()
    pair.draw_until_it_has_answered()
    for server in (one, other):  # a busy machine may have kept one from answering
        until(partial(is_well, server))
        pair.ids += draw_from(pool, server.offset, 3)
    with ThreadPoolExecutor(1) as thread:
        try:
            pair.first.freeze()
            pair.second.freeze()
            pool._monitor._tokens = TIMING.most_tokens
            drawn = thread.submit(pool.next_id, "photos")
            until(lambda: bool(one.in_flight and other.in_flight))
            (draw,) = [r for r in {*one.in_flight, *other.in_flight} if r.waits_for_hedge]
            yield draw, drawn
        finally:
            pair.thaw()


def test_own_answer_ends_the_wait_for_a_hedge(
    pair: Pair, hedged: tuple[InFlightRequest, Future[int]]
) -> None:
    """The hedge's server may be frozen, too, and is not blamed for that."""
    draw, drawn = hedged
    is_on_second = draw.server is pair.pool.servers[1]
    (pair.second if is_on_second else pair.first).thaw()
    assert drawn.result(PATIENCE) % 2 == draw.server.offset % 2
    assert pair.pool.servers[not is_on_second].table("photos").reason is None


def test_hedge_answers_a_draw_that_was_cancelled(
    pair: Pair, hedged: tuple[InFlightRequest, Future[int]]
) -> None:
    draw, drawn = hedged
    is_on_second = draw.server is pair.pool.servers[1]
    hedging = pair.pool.servers[not is_on_second]
    drawn_before = hedging.table("photos").draws
    assert draw.cancel(CancelReason.TIMED_OUT)
    (pair.first if is_on_second else pair.second).thaw()
    assert drawn.result(PATIENCE) % 2 == hedging.offset % 2
    assert hedging.table("photos").draws == drawn_before + 1


def test_dispose_closes_the_connection_of_a_late_answer(pair: Pair) -> None:
    pair.freeze_and_draw()
    pair.pool.dispose()
    assert not pair.detached
    pair.first.thaw()
    until(lambda: not connections_to(pair.first, pair.urls[0]))


def test_fork_leaves_a_late_answer_to_its_parent(pair: Pair) -> None:
    pair.freeze_and_draw()
    drawn = in_fork(lambda: f"{len(pair.detached)} {pair.pool.next_id('photos')}").split()
    assert drawn[0] == "0", drawn
    connection = pair.detached[0].connection
    pair.first.thaw()
    pair.draw_until_it_has_answered()
    pair.ids += draw_from(pair.pool, 1, 5)
    assert connection in pair.pool.servers[0].connections.of_threads
    assert_unique([*pair.ids, int(drawn[1])])


def test_server_that_dies_before_its_late_answer_is_used_again(pair: Pair) -> None:
    pair.freeze_and_draw()
    pair.first.kill()
    pair.first.start()
    pair.draw_until_it_has_answered()
    pair.ids += draw_from(pair.pool, 1, 5)
    assert_unique(pair.ids)


def test_server_is_alive_as_soon_as_its_late_answer_is_read(pair: Pair) -> None:
    pair.freeze_and_draw()
    assert pair.pool.servers[0].is_unresponsive("photos")
    pair.first.thaw()
    pair.draw_until_it_has_answered()
    assert not pair.pool.servers[0].is_unresponsive("photos")
    assert pair.pool.servers[0].is_alive
