"""A server that has just come back is there for the draw that has no other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from sqla_tickets import NoTicketServer, TicketPool, TicketServerError
from sqla_tickets.probes import probe
from tests.drawing.conftest import OpenPool
from tests.drawing.relay import relay_to
from tests.drawing.tools import assert_unique, fresh_pair, mysql_like
from tests.servers import Borrower


def draw_until_it_is_given_up(pool: TicketPool) -> list[int]:
    """Draw while the first server is frozen, until nobody waits for it any more."""
    ids: list[int] = []
    end = time.monotonic() + 30
    while not pool.servers[0].breaker.slow:
        assert time.monotonic() < end
        ids.append(pool.next_id("photos"))
        time.sleep(0.005)
    return ids


@pytest.mark.parametrize("how", ["kill", "stop", "read_only"])
def test_frozen_and_back_when_the_other_goes(
    servers: Borrower, open_pool: OpenPool, how: str
) -> None:
    """The chaos suite met this as draws that failed while one server served."""
    first, second, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls)
    pool.create_table("photos")
    ids = [pool.next_id("photos") for _ in range(4)]
    first.freeze()
    ids += draw_until_it_is_given_up(pool)
    time.sleep(2)  # the waits from one probe to the next have grown meanwhile
    first.thaw()
    if how == "read_only":
        with second.administrator() as cursor:
            cursor.execute("SET GLOBAL read_only = 1")
    else:
        getattr(second, how)()
    try:
        with ThreadPoolExecutor(8) as threads:
            ids += threads.map(lambda _: pool.next_id("photos"), range(8))
    finally:
        if how == "read_only":
            with second.administrator() as cursor:
                cursor.execute("SET GLOBAL read_only = 0")
    assert_unique(ids)


def test_a_probe_that_hangs_does_not_hold_up_the_next(servers: Borrower) -> None:
    """What it was sent over stays silent although the server is back."""
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with (
        relay_to(url.port) as relay,
        TicketPool([url.set(port=relay.port)], timeout=60) as pool,
    ):
        pool.create_table("photos")
        server = pool.servers[0]
        server.connections.close_idle()
        relay.deaf = True
        server.breaker.trip(TicketServerError("silent"), slow=True)
        probe(server)
        time.sleep(0.3)  # it has said its first word, which nobody will hear
        assert server.probes.are_under_way
        relay.deaf = False
        drawn, end = list[int](), time.monotonic() + 7  # long before its time-out
        while not drawn and time.monotonic() < end:
            with suppress(NoTicketServer):
                drawn.append(pool.next_id("photos"))
        assert drawn, "not before the probe has run into its time-out"
        assert server.breaker.is_closed
