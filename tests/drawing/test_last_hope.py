"""All servers are down: draws fail soon, and leave the machine the time to start the servers again."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Barrier

import pytest

from sqla_tickets import NoTicketServer, TicketPool, TicketServerError, choice, health
from tests.drawing.relay import Relay, relay_to
from tests.drawing.tools import assert_unique, fresh_pair, mysql_like, run
from tests.servers import Borrower

THREADS = 12


@contextmanager
def pool_of_one(servers: Borrower) -> Iterator[tuple[TicketPool, Relay]]:
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with relay_to(url.port) as relay, TicketPool([url.set(port=relay.port)]) as pool:
        pool.create_table("photos")
        yield pool, relay


def go_down(relay: Relay) -> None:
    relay.down = True
    relay.hang_up()


def test_draws_that_fail_together_have_one_of_them_ask(
    servers: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ONE_AT_A_TIME", 0.5)
    monkeypatch.setattr(choice, "LOOKS", 10_000)
    with pool_of_one(servers) as (pool, relay), ThreadPoolExecutor(THREADS) as threads:
        ids = [pool.next_id("photos")]
        go_down(relay)
        with pytest.raises(NoTicketServer):
            pool.next_id("photos")
        before, together = relay.lines, Barrier(THREADS)

        def draw(_: int) -> str:
            together.wait()
            with pytest.raises(NoTicketServer) as caught:
                pool.next_id("photos")
            return str(caught.value)

        said = list(threads.map(draw, range(THREADS)))
        assert relay.lines - before < THREADS / 2
        assert all(f"127.0.0.1:{relay.port}" in text for text in said)
        relay.down = False
        ids += threads.map(lambda _: pool.next_id("photos"), range(THREADS))
    assert_unique(ids)


def test_what_was_found_before_a_draw_began_does_not_fail_it(servers: Borrower) -> None:
    """A server may be back a moment after somebody was refused."""
    with pool_of_one(servers) as (pool, relay):
        ids = [pool.next_id("photos")]
        for _ in range(5):
            go_down(relay)
            for _ in range(3):
                with pytest.raises(NoTicketServer):
                    pool.next_id("photos")
            relay.down = False
            ids.append(pool.next_id("photos"))
    assert_unique(ids)


def test_what_was_found_while_a_draw_waited_for_another_server_does_not_fail_it(
    servers: Borrower,
) -> None:
    with pool_of_one(servers) as (pool, relay):
        pool.next_id("photos")
        began = time.monotonic()
        go_down(relay)
        for _ in range(2):  # the first one finds its connection cut off
            with pytest.raises(NoTicketServer):
                pool.next_id("photos")
        relay.down = False
        asked = next(choice.in_turn(pool.servers, "photos", 0, began, {}), None)
        assert asked is pool.servers[0]


def test_a_sequence_that_a_server_cannot_serve_fails_no_draw_of_another(
    servers: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table's trouble may look like its server's, as no list of the error codes is complete."""
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with TicketPool([url]) as pool:
        pool.create_table("photos")
        pool.create_table("albums")
        run(url, "ALTER TABLE albums DISCARD TABLESPACE")

        def draw_an_album(_: float = 0.0) -> None:
            monkeypatch.setattr(health, "ONE_AT_A_TIME", 0)
            with pytest.raises(NoTicketServer):
                pool.next_id("albums")
            monkeypatch.setattr(health, "ONE_AT_A_TIME", 60)

        draw_an_album()
        draw_an_album()
        monkeypatch.setattr(choice, "pause", draw_an_album)  # as another thread does meanwhile
        assert pool.next_id("photos")


def test_servers_that_refuse_and_those_that_keep_silent_are_waited_for_at_the_same_time(
    servers: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    first, second, urls = fresh_pair(servers, "mariadb")
    with (
        relay_to(first.port) as refusing,
        relay_to(second.port) as silent,
        TicketPool([urls[0].set(port=refusing.port), urls[1].set(port=silent.port)]) as pool,
    ):
        pool.create_table("photos")
        silent.deaf = True
        pool.servers[1].breaker.trip(TicketServerError("silent"), slow=True)
        go_down(refusing)
        for _ in range(2):  # the first one finds its connection cut off
            with pytest.raises(NoTicketServer):
                pool.next_id("photos")
        monkeypatch.setattr(health, "ONE_AT_A_TIME", 60)
        monkeypatch.setattr(choice, "pause", pause)
        with pytest.raises(NoTicketServer):
            pool.next_id("photos")
        assert 0 < len(pauses) <= choice.LOOKS


class Variable:
    """Of who calls a pool."""


def test_an_outage_that_is_over_keeps_nobody_s_variables(
    servers: Borrower, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "sqla_tickets")  # else it keeps the errors
    with pool_of_one(servers) as (pool, relay):
        pool.next_id("photos")

        def meet_an_outage() -> weakref.ref[Variable]:
            variable = Variable()
            go_down(relay)
            for _ in range(3):
                with suppress(NoTicketServer):
                    pool.next_id("photos")
            return weakref.ref(variable)

        kept = meet_an_outage()
        relay.down = False
        pool.next_id("photos")
        gc.collect()
        assert kept() is None
