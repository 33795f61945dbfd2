"""A server that has just come back is there for the draw that has no other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
from sqlalchemy.engine.interfaces import DBAPICursor

from sqla_tickets import (
    NoTicketServer,
    TicketPool,
    TicketServer,
    TicketServerError,
    TicketTableError,
    TicketViolation,
    choice,
    tables,
)
from sqla_tickets.note import LayoutName, Note
from sqla_tickets.place import Place
from sqla_tickets.probes import probe
from tests.chaos.proxy import Fault, Proxy
from tests.drawing.conftest import OpenPool
from tests.drawing.relay import Relay, relay_to
from tests.drawing.tools import (
    assert_unique,
    draw_from,
    fresh_pair,
    kill_connections,
    mysql_like,
    residues,
    until,
)
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


def test_a_probe_opens_no_connection_where_one_is_idle_unless_it_keeps_silent(
    servers: Borrower,
) -> None:
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with (
        relay_to(url.port) as relay,
        TicketPool([url.set(port=relay.port)], timeout=60) as pool,
    ):
        pool.create_table("photos")
        server, lines = pool.servers[0], relay.lines
        server.breaker.trip(TicketServerError("slow"), slow=True)
        probe(server)
        until(lambda: server.breaker.is_closed)
        assert (relay.lines, server.connections.has_idle) == (lines, True)
        relay.forget()
        server.breaker.trip(TicketServerError("silent"), slow=True)
        probe(server)
        until(lambda: server.breaker.is_closed)  # long before the time-out
        assert relay.lines > lines
        assert pool.next_id("photos")


def test_a_probe_keeps_all_connections_that_are_idle(
    servers: Borrower, open_pool: OpenPool
) -> None:
    pool = open_pool([servers.fresh_database(mysql_like(servers, "mariadb"))])
    server = pool.servers[0]
    connections = [server.connect(), server.connect()]
    for connection in connections:
        server.connections.give(connection)
    server.breaker.trip(TicketServerError("slow"), slow=True)
    probe(server)
    until(lambda: server.breaker.is_closed and not server.probes.are_under_way)
    assert {server.connect(), server.connect()} == {*connections}


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_probe_ends_although_its_driver_waits_for_ever(servers: Borrower, driver: str) -> None:
    url = servers.fresh_database(servers.postgresql()).set(drivername=f"postgresql+{driver}")
    with (
        relay_to(url.port) as relay,
        TicketPool([url.set(port=relay.port)], timeout=0.1) as pool,
    ):
        pool.create_table("photos")
        server = pool.servers[0]
        relay.forget()
        server.breaker.trip(TicketServerError("silent"), slow=True)
        probe(server)
        until(lambda: not server.probes.are_under_way)
        assert server.breaker.is_closed


@pytest.mark.parametrize("hedge", [False, True])
def test_a_server_that_refused_is_asked_again_when_it_is_back_while_the_other_keeps_silent(
    servers: Borrower, hedge: bool
) -> None:
    first, second, urls = fresh_pair(servers, "mariadb")
    proxy = Proxy(first.port)
    with (
        closing(proxy),
        relay_to(second.port) as relay,
        TicketPool(
            [urls[0].set(port=proxy.port), urls[1].set(port=relay.port)], hedge=hedge
        ) as pool,
        ThreadPoolExecutor(1) as thread,
    ):
        pool.create_table("photos")
        ids = draw_from(pool, 1) + draw_from(pool, 2)
        proxy.do(Fault("refuse"))
        relay.deaf = True
        draw = thread.submit(pool.next_id, "photos")
        until(lambda: not pool.servers[0].breaker.is_closed and bool(pool.servers[1].silent))
        proxy.do(Fault())
        ids.append(draw.result())
    assert residues(ids[-1:]) == {1}
    assert_unique(ids)


def mute_probe(server: TicketServer, relay: Relay) -> None:
    """Have it asked over a connection on which nothing is ever heard."""
    relay.deaf = True
    lines = relay.lines
    probe(server)
    until(lambda: relay.lines > lines)
    time.sleep(0.1)  # its first word has been said by then, and swallowed
    relay.deaf = False


def test_the_last_hope_is_asked_again_where_what_was_asked_before_is_lost(
    servers: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "LOOKS", 10_000)
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with relay_to(url.port) as relay, TicketPool([url.set(port=relay.port)]) as pool:
        pool.create_table("photos")
        server = pool.servers[0]
        server.breaker.trip(TicketServerError("silent"), slow=True)
        mute_probe(server, relay)
        assert pool.next_id("photos")


def test_what_is_lost_says_nothing_against_a_server_that_has_answered_since(
    servers: Borrower,
) -> None:
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with relay_to(url.port) as relay, TicketPool([url.set(port=relay.port)]) as pool:
        pool.create_table("photos")
        server = pool.servers[0]
        mute_probe(server, relay)
        assert server.is_suspect("photos")
        pool.next_id("photos")
        assert server.probes.are_under_way
        assert not server.is_suspect("photos")
        until(lambda: not server.probes.are_under_way)
        assert server.breaker.is_closed


@pytest.fixture
def whole_looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The servers that were looked at with all that a look takes."""
    looks: list[str] = []

    def find(cursor: DBAPICursor, place: Place, name: str) -> tuple[LayoutName, Note | None]:
        looks.append(place.server)
        return find_in(cursor, place, name)

    find_in = tables.find
    monkeypatch.setattr(tables, "find", find)
    return looks


@pytest.mark.parametrize("layout", ["replace", "counter"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_who_connects_anew_sees_at_a_glance_that_a_table_is_as_it_was(
    servers: Borrower, open_pool: OpenPool, whole_looks: list[str], kind: str, layout: LayoutName
) -> None:
    """A server that lost all its clients at once has enough to do."""
    first, second, urls = fresh_pair(servers, kind)
    pool = open_pool(urls)
    pool.create_table("photos", layout=layout)
    ids = draw_from(pool, 1) + draw_from(pool, 2)
    whole_looks.clear()
    for _ in range(3):
        killed = kill_connections(first, urls[0]) + kill_connections(second, urls[1])
        ids += draw_from(pool, 1) + draw_from(pool, 2)
        assert (killed > 0, whole_looks) == (True, [])
    assert_unique(ids)


@pytest.mark.parametrize("layout", ["replace", "counter"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_who_connects_anew_sees_that_a_table_is_numbered_otherwise(
    servers: Borrower, open_pool: OpenPool, kind: str, layout: LayoutName
) -> None:
    """The server was not restarted, and its numbers go on: only the note tells."""
    first, _, urls = fresh_pair(servers, kind)
    pool = open_pool(urls)
    pool.create_table("photos", layout=layout)
    ids = draw_from(pool, 1) + draw_from(pool, 2)
    note = str(Note(layout, 4, 1))
    owner = open_pool(urls[:1], 2).servers[0]
    owner.do("photos", lambda cursor, _: cursor.execute(f"ALTER TABLE photos COMMENT = '{note}'"))
    ids += draw_from(pool, 2)
    kill_connections(first, urls[0])
    with pytest.raises(TicketTableError, match="numbered otherwise"):
        pool.servers[0].draw("photos", 1)
    assert_unique(ids + draw_from(pool, 2))


@pytest.mark.parametrize("layout", ["replace", "counter"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_who_connects_anew_sees_without_drawing_that_a_table_was_set_back(
    servers: Borrower, open_pool: OpenPool, kind: str, layout: LayoutName
) -> None:
    first, second, urls = fresh_pair(servers, kind)
    pool = open_pool(urls)
    pool.create_table("photos", layout=layout)
    ids = pool.next_ids("photos", 1000) + pool.next_ids("photos", 1000)
    owner = open_pool(urls[:1], 2).servers[0]
    if layout == "replace":
        change = ["DELETE FROM photos", "ALTER TABLE photos AUTO_INCREMENT = 101"]
        change.append("INSERT INTO photos (id, stub) VALUES (99, 'a')")
    else:
        change = ["UPDATE photos SET id = 99"]

    def set_back(cursor: DBAPICursor, place: Place) -> None:
        for statement in change:
            cursor.execute(statement, ())

    owner.do("photos", set_back)
    kill_connections(first, urls[0])
    kill_connections(second, urls[1])
    with pytest.raises(TicketViolation, match=r"found 10[01]"):
        pool.servers[0].draw("photos", 1)
    assert owner.last_ticket("photos") == 99
    assert_unique(ids + draw_from(pool, 2))
