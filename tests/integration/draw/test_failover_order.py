"""Which server a process asks first, and which next."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketError, TicketPool
from sqla_tickets.connect.timeouts import CONNECT_TIMING
from sqla_tickets.draw.failover import servers_to_try
from sqla_tickets.draw.server import InFlightRequest, TicketServer
from sqla_tickets.errors import Deadlocked
from tests.support.draws import in_fork, residues

pytestmark = pytest.mark.ticket_servers("sqlite")
#: One run of so many that all begin with the same server, by chance, in 10^12.
MANY = 40
# As a program written in C forks that has Python inside: nobody tells Python of it.
FORKED_BY_C = f"""
import ctypes, json, os, sys
from sqla_tickets import TicketPool
pool = TicketPool(sys.argv[1:])
pool._on_sqlite = False
for _ in range({MANY}):
    if ctypes.PyDLL(None).fork() == 0:
        os.write(1, b"%d\\n" % pool.next_id("photos"))
        os._exit(0)
    os.wait()
"""


@pytest.fixture(autouse=True)
def _first_server_first() -> None:
    """As in production, which is what is tested here."""


def test_choice_of_the_first_server_differs_by_sequence(pool: TicketPool) -> None:
    for n in range(MANY):
        pool.create_table(f"album{n}")
    draws = [pool.next_ids(f"album{n}", 2) + pool.next_ids(f"album{n}", 2) for n in range(MANY)]
    assert residues(first for first, *_ in draws) == {0, 1}
    assert all(residues(drawn) == {0, 1} for drawn in draws), "the next draw is another server's"


def test_choice_of_the_first_server_differs_by_process(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    """Each has a pool of its own; that all seed their random numbers alike changes nothing."""
    firsts: list[int] = []
    for _ in range(MANY):
        random.seed(7)
        with TicketPool(ticket_urls) as one_draw:
            firsts.append(one_draw.next_id("photos"))
    assert residues(firsts) == {0, 1}


def test_choice_of_the_first_server_differs_by_fork(pool: TicketPool) -> None:
    firsts = [int(in_fork(lambda: str(pool.next_id("photos")))) for _ in range(MANY)]
    assert residues(firsts) == {0, 1}


def test_choice_of_the_first_server_differs_by_fork_of_c(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    """Nobody reseeds Python's random numbers in such a fork."""
    urls = [url.render_as_string(hide_password=False) for url in ticket_urls]
    arguments = [sys.executable, "-c", FORKED_BY_C, *urls]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout
    firsts = json.loads(f"[{','.join(said.split())}]")
    assert len(firsts) == MANY
    assert residues(firsts) == {0, 1}


@pytest.mark.parametrize("is_stuck", [False, True])
def test_draws_go_elsewhere_for_a_moment_while_a_mark_is_written(
    pool: TicketPool, *, is_stuck: bool
) -> None:
    """Else they would open another connection; one that stays lent keeps no draw away."""
    pool.create_table("photos")
    for _ in range(2 * len(pool.servers)):
        pool.next_id("photos")
    first = pool.servers[0]
    lent = first.connections.acquire()
    if is_stuck:
        lent.lent_at -= CONNECT_TIMING.recheck_seconds
    drawn = [pool.next_id("photos") for _ in range(6)]
    assert residues(drawn) == ({0, 1} if is_stuck else {0}), "the second one's numbers are even"
    first.connections.release(lent)
    assert residues(pool.next_id("photos") for _ in range(2)) == {0, 1}


@pytest.mark.parametrize("is_unresponsive", [False, True])
def test_draw_that_a_deadlock_ends_waits_for_no_unresponsive_server(
    pool: TicketPool, *, is_unresponsive: bool
) -> None:
    pool.create_table("photos")
    first, second = pool.servers
    if is_unresponsive:
        late = InFlightRequest(second, second.table("photos"), 1)
        late.since = time.monotonic()
        second.unresponsive.add(late)
    failures: dict[TicketServer, TicketError] = {first: Deadlocked("in this test")}
    asked = next(servers_to_try(pool.servers, "photos", 0, time.monotonic(), failures))
    assert asked is (first if is_unresponsive else second)
