"""A table that is met while no peer can tell how far it had come: said aloud, met again, or refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine

from sqla_tickets import (
    NoTicketServer,
    TicketArgumentError,
    TicketError,
    TicketIntegrityError,
    TicketPool,
    TicketSequence,
    TicketTableError,
)
from sqla_tickets.draw import server
from sqla_tickets.high_water.statements import MARKS
from tests.support.draws import (
    FLICKRS_TABLE,
    PATIENCE,
    OpenPool,
    assert_unique,
    draw_from,
    fresh_pair,
    residues,
    run,
    setting,
    until,
)
from tests.support.drivers import Route, routes
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.timing import set_timing

MARIADB = pytest.mark.ticket_servers("mariadb")
NEW = {"photos": 20, "albums": 3}
#: Longer than any loaded machine takes, in seconds.
FOR_EVER = 30.0


def as_restored(urls: list[URL]) -> list[int]:
    """Two sequences on two servers, of which the second forgets what it has issued; what was issued."""
    issued: list[int] = []
    with TicketPool(urls, hedge=False) as pool:
        for name, n in NEW.items():
            pool.create_table(name, layout="counter")
            issued += [*draw_from(pool, 1, n, name), *draw_from(pool, 2, n, name)]
    run(urls[1], "UPDATE photos SET id = 2", "UPDATE albums SET id = 2")
    return issued


@contextmanager
def pair_of(servers: ServerFixtures) -> Iterator[tuple[MySQLLike, list[URL]]]:
    """The second of two servers was restored, and the first is down."""
    first, _, urls = fresh_pair(servers, "mariadb")
    as_restored(urls)
    first.stop()
    yield first, urls


def said(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    name = "sqla_tickets.high_water.service"
    return [r.getMessage() for r in caplog.records if (r.name, r.levelno) == (name, level)]


def until_it_answers(pool: TicketPool, name: str) -> None:
    """Draw of one sequence until the first server has answered."""
    until(lambda: bool(pool.next_id(name)) and pool.servers[0].breaker.is_closed)


@MARIADB
def test_table_verified_without_peers_is_said_once(
    servers: ServerFixtures, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    with pair_of(servers) as (_, urls):
        pool = open_pool(urls)
        for _ in range(3):
            pool.next_id("photos")
        (text,) = said(caplog)
        for words in ("'photos' is drawn from", *map(str, pool.servers), "require_peer", "gone"):
            assert words in text
        pool.next_id("albums")
        assert len(said(caplog)) == 2


def test_table_verified_with_peers_says_nothing(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Peers that have no mark of a new sequence have told that there is none."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos")
    draw_from(pool, 1)
    draw_from(pool, 2)
    alone = open_pool(ticket_urls[:1], 2)
    alone.next_id("photos")
    assert said(caplog) == []


@MARIADB
def test_table_is_verified_again_when_a_peer_answers(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    with pair_of(servers) as (first, urls):
        pool = open_pool(urls)
        assert pool.next_id("photos") <= 2 * NEW["photos"]  # nobody is there to tell
        first.start()
        until_it_answers(pool, "albums")
        with pytest.raises(TicketIntegrityError, match="its peers know"):
            pool.servers[1].draw("photos", 1)
        assert residues(pool.next_id("photos") for _ in range(4)) == {1}


@MARIADB
def test_draws_wait_for_the_one_that_asks_a_peer(
    servers: ServerFixtures, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one draw has begun to ask, no other one takes for answered."""
    with pair_of(servers) as (first, urls):
        pool = open_pool(urls)
        pool.next_id("photos")
        first.start()
        until_it_answers(pool, "albums")
        peer, restored = pool.servers
        asked, answers = threading.Event(), threading.Event()
        use = peer.use

        def use_late(work: Callable[..., None]) -> None:
            asked.set()
            answers.wait(PATIENCE)
            use(work)

        monkeypatch.setattr(peer, "use", use_late)
        outcomes: list[object] = []

        def draw() -> None:
            try:
                outcomes.append(restored.draw("photos", 1))
            except TicketError as error:
                outcomes.append(type(error))

        threads = [threading.Thread(target=draw) for _ in range(3)]
        threads[0].start()
        assert asked.wait(PATIENCE)
        for thread in threads[1:]:
            thread.start()
        threads[1].join(0.2)
        answers.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert outcomes == [TicketIntegrityError] * 3


@MARIADB
def test_block_drawn_without_a_peer_is_dropped(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    photos = TicketSequence("photos", block=100)
    with pair_of(servers) as (first, urls):
        pool = open_pool(urls)
        pool.next_id(photos)
        assert pool.buffered("photos") == 99
        first.start()
        until_it_answers(pool, "albums")
        assert pool.buffered("photos") == 0
        # the second server's next block may be above all that it had issued
        assert min(pool.next_id(photos) for _ in range(150)) > 2 * NEW["photos"]


@MARIADB
def test_block_survives_peers_that_had_told(servers: ServerFixtures, open_pool: OpenPool) -> None:
    photos = TicketSequence("photos", block=100)
    first, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls)
    pool.create_table("photos")
    pool.create_table("albums")
    draw_from(pool, 2, sequence="albums")
    pool.next_id(photos)
    first.kill()
    draw_from(pool, 2, 3, "albums")
    until(lambda: bool(pool.next_id("albums")) and not pool.servers[0].breaker.is_closed)
    first.start()
    until_it_answers(pool, "albums")
    assert pool.buffered("photos") == 99


# -- require_peer


@MARIADB
def test_required_peer_that_is_down_refuses_table(servers: ServerFixtures) -> None:
    with pair_of(servers) as (first, urls):
        issued = range(1, 2 * NEW["photos"] + 1)
        with TicketPool(urls, hedge=False, require_peer=True) as pool:
            for _ in range(3):
                with pytest.raises(
                    NoTicketServer, match=r"'photos' is not drawn from.*require_peer"
                ):
                    pool.next_id("photos")
            with pytest.raises(NoTicketServer) as none:
                pool.next_id("photos")
            assert TicketTableError in map(type, none.value.failures.values())
            first.start()
            later: list[int] = []

            def draws() -> bool:
                try:
                    later.append(pool.next_id("photos"))
                except NoTicketServer:
                    return False
                return pool.servers[1].table("photos").state == "quarantined"

            until(draws)
            assert not set(issued) & set(later)


@pytest.mark.parametrize("route", routes("mariadb", "postgresql", "sqlite"), ids=str)
def test_required_peer_recovers_with_every_driver(
    route: Route, servers: ServerFixtures, tmp_path: Path
) -> None:
    """The peer keeps no marks at first: its table is hidden, and comes back."""
    urls = [route.fresh_database(servers, tmp_path, n) for n in range(2)]
    plain = {"mariadb": "mysql+pymysql", "postgresql": "postgresql+psycopg", "sqlite": "sqlite"}
    first = urls[0].set(drivername=plain[route.kind])

    def work() -> None:
        with TicketPool(urls, hedge=False) as before:
            before.create_table("photos", layout="counter")
            before.next_ids("photos", 5)
        with TicketPool(urls, hedge=False, require_peer=True) as pool:
            run(first, f"ALTER TABLE {MARKS} RENAME TO hidden")
            with pytest.raises(TicketTableError, match="cannot read its table"):
                pool.servers[1].draw("photos", 1)
            assert pool.servers[0].draw("photos", 1)
            run(first, f"ALTER TABLE hidden RENAME TO {MARKS}")
            assert pool.servers[1].draw("photos", 1)

    route.run(work)


@MARIADB
def test_required_peer_that_takes_no_writes_tells(servers: ServerFixtures) -> None:
    first, _, urls = fresh_pair(servers, "mariadb")
    as_restored(urls)
    with TicketPool(urls, hedge=False, require_peer=True) as pool, setting(first, read_only=1):
        with pytest.raises(TicketError):
            pool.servers[0].draw("albums", 1)
        assert not pool.servers[0].breaker.is_closed
        with pytest.raises(TicketIntegrityError, match="its peers know"):
            pool.servers[1].draw("photos", 1)


@contextmanager
def marks_locked(url: URL, seconds: float) -> Iterator[None]:
    """The marks can be neither read nor written for so long, as on a busy server or file."""
    begin, end = {
        "mysql": (f"LOCK TABLES {MARKS} WRITE", "UNLOCK TABLES"),
        "postgresql": (f"BEGIN; LOCK TABLE {MARKS}", "ROLLBACK"),
        "sqlite": ("BEGIN EXCLUSIVE", "ROLLBACK"),
    }[url.get_backend_name()]
    kw = {"check_same_thread": False} if url.get_backend_name() == "sqlite" else {}
    engine = create_engine(url, isolation_level="AUTOCOMMIT", connect_args=kw)
    connection = engine.raw_connection()
    cursor = connection.cursor()
    cursor.execute(begin)
    free = threading.Timer(seconds, cursor.execute, [end])
    free.start()
    try:
        yield
    finally:
        free.join()
        connection.close()
        engine.dispose()


@pytest.mark.ticket_servers("mariadb", "postgresql", "sqlite")
@pytest.mark.usefixtures("impatient")
def test_required_peer_that_is_busy_is_waited_for(ticket_urls: list[URL]) -> None:
    """A peer that takes longer than a draw waits for marks it can do without is no peer that cannot tell."""
    with TicketPool(ticket_urls, hedge=False) as before:
        before.create_table("photos", layout="counter")
        before.next_ids("photos", 5)
    with (
        TicketPool(ticket_urls, hedge=False, require_peer=True, timeout=20, lock_wait=20) as pool,
        marks_locked(ticket_urls[0], 1.3),
    ):
        assert pool.servers[1].draw("photos", 1)


@MARIADB
def test_required_peer_that_dies_later_stops_nobody(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that has been told goes on, also when it was idle meanwhile."""
    first, _, urls = fresh_pair(servers, "mariadb")
    with TicketPool(urls, hedge=False, require_peer=True) as pool:
        pool.create_table("photos")
        ids = draw_from(pool, 2)
        first.kill()
        set_timing(monkeypatch, server, idle_seconds=0.0)
        ids += draw_from(pool, 2, 5)
        assert_unique(ids)
        assert not [text for text in said(caplog) if "no peer can report" in text]


@MARIADB
def test_required_peer_without_marks_refuses(ticket_urls: list[URL]) -> None:
    for offset, url in enumerate(ticket_urls, 1):
        run(url, FLICKRS_TABLE.format(name="photos", engine="InnoDB"))
        run(url, f"REPLACE INTO photos (id, stub) VALUES ({offset}, 'a')")
    with TicketPool(ticket_urls, hedge=False, require_peer=True) as pool:
        with pytest.raises(TicketTableError, match=r"require_peer=True.*cannot read its table"):
            pool.next_id("photos")
        pool.create_table("photos")
        assert_unique([*draw_from(pool, 1), *draw_from(pool, 2)])


def test_required_peer_of_memory_is_not_needed() -> None:
    """What lives in this process has no past that a peer could tell of."""
    with TicketPool(["sqlite://", "sqlite://"], require_peer=True) as pool:
        pool.create_table("photos")
        assert_unique(pool.next_ids("photos", 3))


@pytest.mark.parametrize("wrong", [None, 1, "yes", 0])
def test_require_peer_that_is_no_flag_is_refused(wrong: bool) -> None:
    with pytest.raises(TicketArgumentError, match="require_peer"):
        TicketPool(["sqlite:///a", "sqlite:///b"], require_peer=wrong)


def test_require_peer_of_one_server_is_refused() -> None:
    with pytest.raises(TicketArgumentError, match="require_peer"):
        TicketPool(["sqlite:///a"], stride=2, require_peer=True)
