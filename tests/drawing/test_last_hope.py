"""All servers are down: draws fail soon, and leave the machine the time to start the servers again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import pytest

from sqla_tickets import NoTicketServer, TicketPool, choice, health
from tests.drawing.relay import Relay, relay_to
from tests.drawing.tools import assert_unique, mysql_like
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
