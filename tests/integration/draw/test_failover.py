"""Any server may die, refuse or fall silent: tickets go on, and none comes twice."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import URL, create_engine

from sqla_tickets import (
    NoTicketServer,
    TicketPool,
    TicketSequence,
    TicketServerError,
    TicketTableMissing,
)
from sqla_tickets.dialects import LayoutName
from sqla_tickets.draw import circuit_breaker
from tests.support.draws import (
    OpenPool,
    assert_unique,
    connections_to,
    draw_from,
    fresh_pair,
    grant_only,
    mysql_like,
    residues,
    run,
    setting,
)
from tests.support.servers import PASSWORD, ServerFixtures
from tests.support.tcp_proxy import Fault, TcpProxy
from tests.support.timing import set_timing

MYSQL_LIKE = pytest.mark.parametrize("kind", ["mariadb", "mysql"])
# A container takes seconds to start again, a process less than one.
EVERY_LAYOUT = pytest.mark.parametrize(
    ("kind", "layout"), [("mariadb", "replace"), ("mariadb", "counter"), ("mysql", "replace")]
)


def with_photos(pool: TicketPool, layout: LayoutName) -> TicketPool:
    pool.create_table("photos", layout=layout)
    return pool


def test_every_sequence_rotates_the_servers(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = with_photos(open_pool(ticket_urls), "counter")
    pool.create_table("tags", layout="counter")
    drawn = [(pool.next_id("photos"), pool.next_id("tags")) for _ in range(8)]
    assert residues([photo for photo, _ in drawn]) == {0, 1}
    assert residues([tag for _, tag in drawn]) == {0, 1}


@MYSQL_LIKE
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_one_server_down_then_the_other(
    servers: ServerFixtures, open_pool: OpenPool, kind: str, how: str
) -> None:
    first, second, urls = fresh_pair(servers, kind)
    pool = with_photos(open_pool(urls), "counter")
    ids = pool.next_ids("photos", 3) + pool.next_ids("photos", 3)
    for offset, server in enumerate((first, second), 1):
        getattr(server, how)()
        survivors = [pool.next_id("photos") for _ in range(5)] + pool.next_ids("photos", 7)
        assert residues(survivors) == {(offset + 1) % 2}
        server.start()
        ids += survivors + draw_from(pool, offset)
    assert_unique(ids)


def test_a_server_that_was_frozen_is_the_last_one_and_answers_again(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """What others have answered in its place has opened the breaker of its table, too, for seconds."""
    _, second, urls = fresh_pair(servers, "mariadb")
    pool = with_photos(open_pool(urls), "counter")
    unresponsive = pool.servers[0]
    ids = draw_from(pool, 1) + draw_from(pool, 2)
    for _ in range(8):
        unresponsive.table("photos").breaker.record_failure(
            TicketServerError("its draws were beaten")
        )
    unresponsive.breaker.record_failure(TicketServerError("no answer in time"), timed_out=True)
    second.kill()
    ids.append(pool.next_id("photos"))
    assert residues(ids[-1:]) == {1}
    assert_unique(ids)
    second.start()


@pytest.mark.parametrize("what", ["server", "table"])
def test_a_server_with_an_open_circuit_is_asked_when_the_other_freezes(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It has been back for a while, and nobody was to ask it yet."""
    set_timing(monkeypatch, circuit_breaker, longest_wait_seconds=3600.0)
    _, second, urls = fresh_pair(servers, "mariadb")
    with (
        TcpProxy(second.port) as proxy,
        TicketPool([urls[0], urls[1].set(port=proxy.port)], timeout=20) as pool,
    ):
        refusing, unresponsive = with_photos(pool, "counter").servers
        ids = draw_from(pool, 1) + draw_from(pool, 2)
        breaker = refusing.breaker if what == "server" else refusing.table("photos").breaker
        breaker.failures = 20
        breaker.record_failure(TicketServerError("it was down for a minute"))
        proxy.do(Fault("freeze"))
        ids.append(pool.next_id("photos"))
        assert residues(ids[-1:]) == {1}
        assert unresponsive.table("photos").errors == 0, "the draw has waited for the time-out"
    assert_unique(ids)


def test_the_last_server_is_asked_although_no_thread_can_be_started(
    servers: ServerFixtures, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second, urls = fresh_pair(servers, "mariadb")
    pool = with_photos(open_pool(urls), "counter")
    ids = draw_from(pool, 1) + draw_from(pool, 2)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    pool.servers[0].breaker.record_failure(TicketServerError("no answer in time"), timed_out=True)
    second.kill()
    ids.append(pool.next_id("photos"))
    monkeypatch.undo()
    assert residues(ids[-1:]) == {1}
    assert_unique(ids)
    second.start()


@MYSQL_LIKE
def test_no_server_left(
    servers: ServerFixtures, open_pool: OpenPool, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, urls = fresh_pair(servers, kind)
    pool = with_photos(open_pool(urls), "replace")
    ids = [pool.next_id("photos") for _ in range(4)]
    first.kill(), second.kill()
    with pytest.raises(NoTicketServer, match="'photos'") as caught:
        pool.next_id("photos")
    assert set(caught.value.failures) == {str(server) for server in pool.servers}
    assert all(isinstance(e, TicketServerError) for e in caught.value.failures.values())
    assert all(name in str(caught.value) for name in caught.value.failures)
    assert PASSWORD not in caplog.text + str(caught.value) + repr(caught.value)
    assert {(r.up, r.breaker) for r in pool.status()} == {(False, "open")}
    first.start(), second.start()
    ids += draw_from(pool, 1) + draw_from(pool, 2)
    assert_unique(ids)


@MYSQL_LIKE
def test_a_server_down_at_the_start(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    with_photos(open_pool(urls), "replace")
    first.kill()
    pool = open_pool(urls)
    ids = [pool.next_id("photos") for _ in range(4)]
    assert residues(ids) == {0}
    down, up = pool.status()
    assert (down.up, up.up) == (False, True)
    assert down.error is not None
    assert str(pool.servers[0]) in down.error
    first.start()
    assert_unique(ids + draw_from(pool, 1))


@MYSQL_LIKE
def test_a_frozen_server_is_given_up(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool = with_photos(open_pool(urls), "counter")
    ids = [pool.next_id("photos") for _ in range(4)]
    first.freeze()
    ids += [pool.next_id("photos") for _ in range(4)]
    ids += pool.next_ids("photos", 5)
    first.thaw()
    ids += draw_from(pool, 1)
    assert_unique(ids)


@MYSQL_LIKE
def test_a_restart_between_two_draws_costs_no_error(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool = with_photos(open_pool(urls), "counter")
    ids = [pool.next_id("photos") for _ in range(4)]
    first.stop()
    first.start()
    ids += draw_from(pool, 1) + draw_from(pool, 2)
    assert_unique(ids)
    assert {(r.errors, r.breaker) for r in pool.status()} == {(0, "closed")}


@pytest.mark.parametrize("kind", ["mariadb"])
def test_a_restart_costs_status_and_tables_no_error(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool = with_photos(open_pool(urls), "replace")
    [pool.next_id("photos") for _ in range(4)]
    first.stop()
    first.start()
    assert [(r.up, r.breaker) for r in pool.status()] == [(True, "closed")] * 2
    first.stop()
    first.start()
    pool.create_table("users")


@MYSQL_LIKE
def test_a_connection_that_the_server_dropped(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, second, urls = fresh_pair(servers, kind)
    pool = with_photos(open_pool(urls), "replace")
    ids = [pool.next_id("photos") for _ in range(4)]
    for server, url in ((first, urls[0]), (second, urls[1])):
        with server.administrator() as cursor:
            for connection in connections_to(server, url):
                cursor.execute(f"KILL {connection}")
        ids += draw_from(pool, 1) + draw_from(pool, 2)
    assert_unique(ids)
    assert {(r.errors, r.breaker) for r in pool.status()} == {(0, "closed")}


@MYSQL_LIKE
def test_a_server_that_was_demoted(servers: ServerFixtures, open_pool: OpenPool, kind: str) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool = with_photos(open_pool(urls), "counter")
    ids = [pool.next_id("photos") for _ in range(4)]
    with setting(first, read_only=1):
        drawn = [pool.next_id("photos") for _ in range(4)] + pool.next_ids("photos", 4)
        assert residues(drawn) == {0}
        (refused,) = [r for r in pool.status() if r.server == str(pool.servers[0])]
        assert refused.breaker == "open"
        assert "takes no writes" in (refused.error or "")
        shown = {r.sequence: r.up for r in pool.status(["albums"]) if r.server == refused.server}
        assert shown == {"albums": False, "photos": True}, "it answers, and has no table albums"
    ids += drawn + draw_from(pool, 1)
    assert_unique(ids)


def test_a_table_that_somebody_locked_opens_its_circuit(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    first, _, urls = fresh_pair(servers, "mariadb")
    pool = with_photos(open_pool(urls), "replace")
    with first.administrator() as cursor:
        cursor.execute(f"LOCK TABLES `{urls[0].database}`.photos WRITE")
        ids = [pool.next_id("photos"), pool.next_id("photos")]
    assert residues(ids) == {0}
    assert_unique(ids + draw_from(pool, 1))


@pytest.mark.ticket_servers("postgresql")
def test_a_row_that_an_open_transaction_holds_is_no_fault_of_its_server(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    ids = draw_from(pool, 1) + draw_from(pool, 2)
    engine = create_engine(ticket_urls[0])
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT id FROM photos FOR UPDATE")
        drawn = [pool.next_id("photos"), pool.next_id("photos")]
    engine.dispose()
    assert residues(drawn) == {0}
    assert "holds the ticket table" in str(pool.servers[0].table("photos").reason)
    assert pool.servers[0].breaker.failures == 0
    assert_unique(ids + drawn + draw_from(pool, 1))


@MYSQL_LIKE
def test_a_privilege_that_is_missing_on_one_server(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    with_photos(open_pool(urls), "replace")
    grant_only(first, urls[0], "SELECT")
    pool = open_pool(urls)
    ids = [pool.next_id("photos") for _ in range(4)]
    assert residues(ids) == {0}
    (refused,) = [r for r in pool.status() if r.server == str(pool.servers[0])]
    assert "GRANT INSERT, DELETE" in (refused.error or "")


@EVERY_LAYOUT
def test_killed_again_and_again_under_load(
    servers: ServerFixtures, open_pool: OpenPool, kind: str, layout: LayoutName
) -> None:
    """Each server is killed as by a power cut while threads draw: what was acknowledged stays."""
    first, second, urls = fresh_pair(servers, kind)
    pool = with_photos(open_pool(urls), layout)
    over = threading.Event()

    def draw(n: int) -> list[int]:
        drawn: list[int] = []
        while not over.is_set():
            drawn += pool.next_ids("photos", n)
        return drawn

    with ThreadPoolExecutor(4) as threads:
        drawing = [threads.submit(draw, n) for n in (1, 1, 3, 40)]
        try:
            for server in (first, second):
                server.kill()
                server.start()
                draw_from(pool, 1 if server is first else 2)
        finally:
            over.set()
        ids = [ticket for drawn in drawing for ticket in drawn.result()]
    assert_unique(ids)


def test_buffered_blocks_outlive_an_outage(servers: ServerFixtures, open_pool: OpenPool) -> None:
    first, second, urls = fresh_pair(servers, "mariadb")
    pool = with_photos(open_pool(urls), "replace")
    photos = TicketSequence("photos", block=10)
    ids = pool.next_ids(photos, 3)
    first.kill(), second.kill()
    ids += pool.next_ids(photos, 3)
    with pytest.raises(NoTicketServer):
        pool.next_ids(photos, 100)
    ids += pool.next_ids(photos, 4)
    assert_unique(ids)


def test_postgresql_goes_away_and_comes_back(servers: ServerFixtures, open_pool: OpenPool) -> None:
    server = servers.postgresql()
    urls = [servers.fresh_database(server), servers.fresh_database(server)]
    pool = open_pool(urls)
    pool.create_table("photos")
    ids = [pool.next_id("photos") for _ in range(4)]
    server.kill()
    with pytest.raises(NoTicketServer) as caught:
        pool.next_id("photos")
    assert PASSWORD not in str(caught.value)
    server.start()
    ids += draw_from(pool, 1) + draw_from(pool, 2)
    server.stop()
    server.start()
    ids += [pool.next_id("photos") for _ in range(4)]
    assert_unique(ids)


@pytest.mark.ticket_servers("postgresql", "sqlite")
def test_a_database_that_takes_no_writes(
    ticket_urls: list[URL], servers: ServerFixtures, open_pool: OpenPool, ticket_kind: str
) -> None:
    open_pool(ticket_urls).create_table("photos")
    first, second = ticket_urls
    if ticket_kind == "postgresql":
        with servers.postgresql().administrator() as cursor:
            cursor.execute(
                f"ALTER DATABASE {first.database} SET default_transaction_read_only = on".encode()
            )
    else:
        query = {"mode": "ro", "uri": "true"}
        first = URL.create("sqlite", database=f"file:{first.database}", query=query)
    pool = open_pool([first, second])
    ids = [pool.next_id("photos") for _ in range(4)]
    assert residues(ids) == {0}
    assert_unique(ids)
    assert "takes no writes" in " ".join(r.error or "" for r in pool.status())


@MYSQL_LIKE
def test_a_pool_is_at_rest_when_closed(servers: ServerFixtures, kind: str) -> None:
    server = mysql_like(servers, kind)
    url = servers.fresh_database(server)
    with TicketPool([url]) as pool:
        pool.create_table("photos")
        pool.next_id("photos")
        assert connections_to(server, url)
    with server.administrator() as cursor:
        cursor.execute("DO SLEEP(0.2)")
    assert not connections_to(server, url)


def test_table_that_stays_unfit_is_warned_about_once(
    open_pool: OpenPool, ticket_urls: list[URL], caplog: pytest.LogCaptureFixture
) -> None:
    """Each retry finds the same; after a repair, the next failure is news."""
    with caplog.at_level(logging.INFO, "sqla_tickets.draw.failover"):
        pool = open_pool(ticket_urls)
        for repairs in range(2):
            pool.create_table("photos")
            for server in pool.servers:
                server.draw("photos", 1)
            caplog.clear()
            for url in ticket_urls:
                run(url, "DROP TABLE photos")
            for _ in range(5):
                with pytest.raises(TicketTableMissing):
                    pool.next_id("photos")
            levels = [r.levelno for r in caplog.records if "photos" in r.getMessage()]
            assert levels.count(logging.WARNING) == 2, repairs
            assert levels.count(logging.INFO) == 8
