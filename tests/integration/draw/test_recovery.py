"""A server that has just come back is there for the draw that has no other."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from sqla_tickets import (
    NoTicketServer,
    TicketIntegrityError,
    TicketPool,
    TicketServer,
    TicketServerError,
    TicketTableError,
)
from sqla_tickets.dialects import LayoutName
from sqla_tickets.draw.health_check import probe
from sqla_tickets.high_water import service
from sqla_tickets.tables import inspection
from sqla_tickets.tables.context import StatementContext
from sqla_tickets.tables.metadata import TableMetadata
from tests.support.draws import (
    PATIENCE,
    OpenPool,
    assert_unique,
    draw_from,
    fresh_pair,
    kill_connections,
    mysql_like,
    residues,
    until,
)
from tests.support.servers import ServerFixtures
from tests.support.tcp_proxy import Fault, TcpProxy
from tests.support.timing import set_timing

FOR_EVER = 60.0


def draw_until_it_is_given_up(pool: TicketPool) -> list[int]:
    """Draw while the first server is frozen, until nobody waits for it any more."""
    ids: list[int] = []
    end = time.monotonic() + PATIENCE
    while not pool.servers[0].breaker.timed_out:
        assert time.monotonic() < end
        ids.append(pool.next_id("photos"))
        time.sleep(0.005)
    return ids


def test_frozen_and_back_when_the_other_goes(servers: ServerFixtures, open_pool: OpenPool) -> None:
    """The chaos suite met this as draws that failed while one server served."""
    first, second, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls)
    pool.create_table("photos")
    ids = [pool.next_id("photos") for _ in range(4)]
    first.freeze()
    ids += draw_until_it_is_given_up(pool)
    time.sleep(2)  # the waits from one probe to the next have grown meanwhile
    first.thaw()
    second.kill()
    with ThreadPoolExecutor(8) as threads:
        ids += threads.map(lambda _: pool.next_id("photos"), range(8))
    assert_unique(ids)


def test_a_probe_that_hangs_does_not_hold_up_the_next(servers: ServerFixtures) -> None:
    """What it was sent over stays silent although the server is back."""
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with (
        TcpProxy(url.port) as proxy,
        TicketPool([url.set(port=proxy.port)], timeout=60) as pool,
    ):
        pool.create_table("photos")
        server = pool.servers[0]
        server.connections.close_idle()
        proxy.do(Fault("freeze"))
        server.breaker.record_failure(TicketServerError("unresponsive"), timed_out=True)
        probe(server)
        time.sleep(0.3)  # it has said its first word, which nobody will hear
        assert server.probes.are_under_way
        proxy.do(Fault())
        drawn, end = list[int](), time.monotonic() + 30  # long before its time-out
        while not drawn and time.monotonic() < end:
            with suppress(NoTicketServer):
                drawn.append(pool.next_id("photos"))
        assert drawn, "not before the probe has run into its time-out"
        assert server.breaker.is_closed


def test_only_a_server_that_has_failed_is_said_to_answer_again(
    servers: ServerFixtures, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow draw makes a healthy server suspect, which no log has called down."""
    caplog.set_level(logging.DEBUG, "sqla_tickets.draw.health_check")
    with TicketPool([servers.fresh_database(mysql_like(servers, "mariadb"))]) as pool:
        server = pool.servers[0]
        probe(server)
        until(lambda: not server.probes.are_under_way)
        assert [(r.levelname, r.message) for r in caplog.records] == [
            ("DEBUG", f"{server} answers")
        ]
        server.breaker.record_failure(TicketServerError("gone"))
        probe(server)
        until(lambda: not server.probes.are_under_way)
        assert (caplog.records[-1].levelname, caplog.messages[-1]) == (
            "INFO",
            f"{server} answers again",
        )


def test_a_frozen_server_is_warned_of_once(
    servers: ServerFixtures, caplog: pytest.LogCaptureFixture
) -> None:
    """Hedges answer its draws, so no draw fails and warns."""
    caplog.set_level(logging.INFO, "sqla_tickets.draw.health_check")
    process = servers.mariadb()
    url = servers.fresh_database(process)
    with TicketPool([url], timeout=0.5) as pool:
        server = pool.servers[0]
        process.freeze()
        for _ in range(2):
            probe(server)
            until(lambda: not server.probes.are_under_way)
        assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]
        assert all(str(server) in message for message in caplog.messages)


def test_a_probe_opens_no_connection_where_one_is_idle_unless_it_is_frozen(
    servers: ServerFixtures,
) -> None:
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with (
        TcpProxy(url.port) as proxy,
        TicketPool([url.set(port=proxy.port)], timeout=60) as pool,
    ):
        pool.create_table("photos")
        server, lines = pool.servers[0], proxy.connections
        server.breaker.record_failure(TicketServerError("slow"), timed_out=True)
        probe(server)
        until(lambda: server.breaker.is_closed)
        assert (proxy.connections, server.connections.has_idle) == (lines, True)
        proxy.forget()
        server.breaker.record_failure(TicketServerError("unresponsive"), timed_out=True)
        probe(server)
        until(lambda: server.breaker.is_closed)  # long before the time-out
        assert proxy.connections > lines
        assert pool.next_id("photos")


def test_a_probe_keeps_all_connections_that_are_idle(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    pool = open_pool([servers.fresh_database(mysql_like(servers, "mariadb"))])
    server = pool.servers[0]
    connections = [server.connect(), server.connect()]
    for connection in connections:
        server.connections.release(connection)
    server.breaker.record_failure(TicketServerError("slow"), timed_out=True)
    probe(server)
    until(lambda: server.breaker.is_closed and not server.probes.are_under_way)
    assert {server.connect(), server.connect()} == {*connections}


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_probe_ends_although_its_driver_waits_for_ever(
    servers: ServerFixtures, driver: str
) -> None:
    url = servers.fresh_database(servers.postgresql()).set(drivername=f"postgresql+{driver}")
    with (
        TcpProxy(url.port) as proxy,
        TicketPool([url.set(port=proxy.port)], timeout=0.1) as pool,
    ):
        pool.create_table("photos")
        server = pool.servers[0]
        proxy.forget()
        server.breaker.record_failure(TicketServerError("unresponsive"), timed_out=True)
        probe(server)
        until(lambda: not server.probes.are_under_way)
        assert server.breaker.is_closed


@pytest.mark.parametrize("hedge", [False, True])
def test_a_server_that_refused_is_asked_again_when_it_is_back_while_the_other_is_frozen(
    servers: ServerFixtures, hedge: bool
) -> None:
    first, second, urls = fresh_pair(servers, "mariadb")
    with (
        TcpProxy(first.port) as refusing,
        TcpProxy(second.port) as frozen,
        TicketPool(
            [urls[0].set(port=refusing.port), urls[1].set(port=frozen.port)], hedge=hedge
        ) as pool,
        ThreadPoolExecutor(1) as thread,
    ):
        pool.create_table("photos")
        ids = draw_from(pool, 1) + draw_from(pool, 2)
        refusing.do(Fault("refuse"))
        frozen.do(Fault("freeze"))
        draw = thread.submit(pool.next_id, "photos")
        until(lambda: not pool.servers[0].breaker.is_closed and bool(pool.servers[1].unresponsive))
        refusing.do(Fault())
        ids.append(draw.result())
    assert residues(ids[-1:]) == {1}
    assert_unique(ids)


def test_servers_that_stand_still_for_a_moment_get_no_new_connections(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients would open some at the same time, and the servers go on to stand still."""
    set_timing(monkeypatch, service, interval_seconds=FOR_EVER)
    first, second, urls = fresh_pair(servers, "mariadb")
    with TcpProxy(urls[0].port) as one, TcpProxy(urls[1].port) as other:
        there = [url.set(port=proxy.port) for url, proxy in zip(urls, (one, other), strict=True)]
        with TicketPool(there, timeout=20) as pool, ThreadPoolExecutor(1) as thread:
            pool.create_table("photos", layout="counter")
            for _ in range(50):
                pool.next_id("photos")
            lines = one.connections, other.connections
            try:
                first.freeze()
                second.freeze()
                drawn = thread.submit(pool.next_id, "photos")
                until(lambda: any(server.unresponsive for server in pool.servers))
                time.sleep(0.2)  # long enough for a probe, and for a hedge
            finally:
                first.thaw()
                second.thaw()
            drawn.result(PATIENCE)
            assert (one.connections, other.connections) == lines


def test_a_draw_takes_the_connection_that_a_probe_opens(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a server has stood still, two from each client would be twice the work."""
    set_timing(monkeypatch, service, interval_seconds=FOR_EVER)
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with (
        TcpProxy(url.port) as proxy,
        TicketPool([url.set(port=proxy.port)], timeout=20) as pool,
        ThreadPoolExecutor(1) as thread,
    ):
        pool.create_table("photos")
        pool.next_id("photos")
        server = pool.servers[0]
        server.connections.close_idle()
        lines = proxy.connections
        proxy.do(Fault("delay", 0.02))
        probe(server)
        until(lambda: proxy.connections > lines)
        drawn = thread.submit(pool.next_id, "photos")
        assert drawn.result(PATIENCE)
        assert proxy.connections == lines + 1


def test_a_draw_waits_for_a_connection_that_is_lent_for_a_moment(servers: ServerFixtures) -> None:
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with TicketPool([url]) as pool, ThreadPoolExecutor(1) as thread:
        pool.create_table("photos")
        pool.next_id("photos")
        connections = pool.servers[0].connections
        until(lambda: not connections.close_unused())
        lent = connections.acquire()
        lent.lent_at += FOR_EVER  # the machine may stand still
        drawn = thread.submit(pool.next_id, "photos")
        until(lambda: bool(connections.of_threads.queue) or drawn.done())
        connections.release(lent)
        assert drawn.result(PATIENCE)
        assert not connections.of_threads.are_several


def mute_probe(server: TicketServer, proxy: TcpProxy) -> None:
    """Have it asked over a connection on which nothing is ever heard."""
    proxy.do(Fault("freeze"))
    lines = proxy.connections
    probe(server)
    until(lambda: proxy.connections > lines)
    time.sleep(0.1)  # its first word has been said by then, and swallowed
    proxy.do(Fault())


def test_an_open_circuit_is_tried_again_where_what_was_asked_before_is_lost(
    servers: ServerFixtures,
) -> None:
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with TcpProxy(url.port) as proxy, TicketPool([url.set(port=proxy.port)], timeout=5) as pool:
        pool.create_table("photos")
        server = pool.servers[0]
        server.breaker.record_failure(TicketServerError("unresponsive"), timed_out=True)
        mute_probe(server, proxy)
        assert pool.next_id("photos")


def test_what_is_lost_says_nothing_against_a_server_that_has_answered_since(
    servers: ServerFixtures,
) -> None:
    url = servers.fresh_database(mysql_like(servers, "mariadb"))
    with TcpProxy(url.port) as proxy, TicketPool([url.set(port=proxy.port)]) as pool:
        pool.create_table("photos")
        server = pool.servers[0]
        mute_probe(server, proxy)
        assert server.is_unresponsive("photos")
        pool.next_id("photos")
        assert server.probes.are_under_way
        assert not server.is_unresponsive("photos")
        until(lambda: not server.probes.are_under_way)
        assert server.breaker.is_closed


@pytest.fixture
def whole_inspections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The servers whose tables were inspected as a whole."""
    inspected: list[str] = []

    def find(context: StatementContext, name: str) -> inspection.ActiveTable:
        inspected.append(context.server)
        return find_in(context, name)

    find_in = inspection.active_table
    monkeypatch.setattr(inspection, "active_table", find)
    return inspected


@pytest.mark.parametrize("layout", ["replace", "counter"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_who_connects_anew_sees_at_a_glance_that_a_table_is_as_it_was(
    servers: ServerFixtures,
    open_pool: OpenPool,
    whole_inspections: list[str],
    kind: str,
    layout: LayoutName,
) -> None:
    """A server that lost all its clients at once has enough to do."""
    first, second, urls = fresh_pair(servers, kind)
    pool = open_pool(urls)
    pool.create_table("photos", layout=layout)
    ids = draw_from(pool, 1) + draw_from(pool, 2)
    whole_inspections.clear()
    for _ in range(3):
        killed = kill_connections(first, urls[0]) + kill_connections(second, urls[1])
        ids += draw_from(pool, 1) + draw_from(pool, 2)
        assert (killed > 0, whole_inspections) == (True, [])
    assert_unique(ids)


@pytest.mark.parametrize("layout", ["replace", "counter"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_who_connects_anew_sees_that_a_table_is_numbered_otherwise(
    servers: ServerFixtures, open_pool: OpenPool, kind: str, layout: LayoutName
) -> None:
    """The server was not restarted, and its numbers go on: only the metadata tells."""
    first, _, urls = fresh_pair(servers, kind)
    pool = open_pool(urls)
    pool.create_table("photos", layout=layout)
    ids = draw_from(pool, 1) + draw_from(pool, 2)
    metadata = str(TableMetadata(layout, 4, 1))
    owner = open_pool(urls[:1], 2).servers[0]
    owner.do(
        "photos",
        lambda context: context.cursor.execute(f"ALTER TABLE photos COMMENT = '{metadata}'"),
    )
    ids += draw_from(pool, 2)
    kill_connections(first, urls[0])
    with pytest.raises(TicketTableError, match="numbered differently"):
        pool.servers[0].draw("photos", 1)
    assert_unique(ids + draw_from(pool, 2))


@pytest.mark.parametrize("layout", ["replace", "counter"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_who_connects_anew_sees_without_drawing_that_a_table_was_set_back(
    servers: ServerFixtures, open_pool: OpenPool, kind: str, layout: LayoutName
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

    def set_back(context: StatementContext) -> None:
        for statement in change:
            context.cursor.execute(statement, ())

    owner.do("photos", set_back)
    kill_connections(first, urls[0])
    kill_connections(second, urls[1])
    with pytest.raises(TicketIntegrityError, match="found a table at 99"):
        pool.servers[0].draw("photos", 1)
    assert owner.last_ticket("photos") == 99
    assert_unique(ids + draw_from(pool, 2))
