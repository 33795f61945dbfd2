"""What could repeat an id, where no other test shows what becomes of it: see docs/understand/causes.md."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import URL, Engine, create_engine

from sqla_tickets import TicketIntegrityError, TicketPool, TicketSequence, TicketTableError
from sqla_tickets.connect.cursor import DrawCursor
from sqla_tickets.dialects import LayoutName
from sqla_tickets.maintenance import operations
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
)
from tests.support.servers import PASSWORD, USER, MySQLLike, ServerFixtures, plain_client
from tests.support.set_back import assert_quarantined

# What is asked here depends on the kind of database.
pytestmark = pytest.mark.every_kind

if TYPE_CHECKING:
    from pymysql.connections import Connection

MYSQL_LIKE = pytest.mark.ticket_servers("mariadb", "mysql")
LAYOUTS: list[LayoutName] = ["replace", "counter"]
#: The largest integer up to which JavaScript, and every float of 64 bits, tells neighbours apart.
LARGEST_SAFE = 2**53 - 1


class Address:
    """One address behind which first one server answers, then another."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self.engine: Engine = create_engine("mysql+pymysql://", creator=self._connect)

    def _connect(self) -> Connection:
        return plain_client(self.url, autocommit=False)

    def lead_to(self, url: URL, pool: TicketPool) -> None:
        """Lead elsewhere; who was connected has to connect anew, as after the loss of a server."""
        self.url = url
        pool.dispose()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def draw_until_seen_through(pool: TicketPool) -> list[int]:
    """Draw until the first server is quarantined; under load it is not asked at once."""
    ids: list[int] = []
    deadline = time.monotonic() + PATIENCE
    while pool.servers[0].table("photos").state != "quarantined":
        assert time.monotonic() < deadline, pool.status()
        ids.append(pool.next_id("photos"))
        time.sleep(0.01)
    return ids


# -- a server that knows less than it has issued


def replicate(primary: MySQLLike, replica: MySQLLike) -> None:
    with primary.administrator() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        row = cursor.fetchone()
    assert row is not None
    with replica.administrator() as cursor:
        cursor.execute(
            "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s, MASTER_USER = 'root',"
            " MASTER_PASSWORD = %s, MASTER_LOG_FILE = %s, MASTER_LOG_POS = %s",
            [primary.host, primary.port, PASSWORD, row[0], row[1]],
        )
        cursor.execute("START SLAVE")


@pytest.mark.parametrize("lags", [True, False], ids=["lagging", "in time"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_replica_that_is_promoted(
    servers: ServerFixtures,
    open_pool: OpenPool,
    layout: LayoutName,
    lags: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    primary, replica = (
        servers.new_mariadb("--log-bin", f"--server-id={n}", "--binlog-format=ROW") for n in (1, 2)
    )
    replicate(primary, replica)
    here = servers.fresh_database(primary)
    there = replica.url(str(here.database))
    other = servers.fresh_database(servers.mariadb(1))
    address = Address(here)
    pool = open_pool([address.engine, other])
    pool.create_table("photos", layout=layout)
    ids = draw_from(pool, 1, 3)

    def is_in_time() -> bool:
        return run(there, "SELECT MAX(id) FROM photos") == run(here, "SELECT MAX(id) FROM photos")

    with replica.administrator() as cursor:
        wait_until(lambda: replica.answers() and is_there(replica, here))
        cursor.execute(f"GRANT ALL ON `{here.database}`.* TO '{USER}'@'%'")
        wait_until(is_in_time)
        if lags:
            cursor.execute("STOP SLAVE")
        ids += draw_from(pool, 1, 5)
        if not lags:
            wait_until(is_in_time)
        primary.kill()
        cursor.execute("STOP SLAVE")
    address.lead_to(there, pool)
    ids += draw_until_seen_through(pool) if lags else draw_from(pool, 1, 4)
    assert_unique(ids)
    if lags:
        assert_quarantined(pool, caplog, "expected a ticket above", "promoted")


def is_there(server: MySQLLike, url: URL) -> bool:
    with server.administrator() as cursor:
        cursor.execute(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = 'photos'",
            [url.database],
        )
        return cursor.fetchone() is not None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_crash_that_loses_the_last_tickets(
    servers: ServerFixtures,
    open_pool: OpenPool,
    layout: LayoutName,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On disk: in memory MariaDB maps its log, and forgets nothing.
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    forgetful = servers.new_mariadb(
        "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-log-at-timeout=2700"
    )
    urls = [servers.fresh_database(s) for s in (forgetful, servers.mariadb(1))]
    pool = open_pool(urls)
    pool.create_table("photos", layout=layout)
    ids: list[int] = []
    for _ in range(5):  # an idle server may have flushed before it is killed
        ids += [pool.next_id("photos") for _ in range(40)]
        forgetful.kill()
        forgetful.start()
        ((found,),) = run(urls[0], "SELECT MAX(id) FROM photos")
        if int(str(found)) < max(ids) - 2:
            break
    else:
        raise AssertionError("no crash has lost anything, so this shows nothing")
    ids += draw_until_seen_through(pool)
    assert_unique(ids)
    assert "innodb_flush_log_at_trx_commit = 0" in caplog.text
    assert_quarantined(pool, caplog, "expected a ticket above")


def test_a_server_that_may_lose_its_binary_log_is_warned_of(
    servers: ServerFixtures, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash, InnoDB rolls back what that lacks."""
    pool = open_pool([servers.fresh_database(servers.new_mariadb("--log-bin", "--server-id=1"))])
    pool.create_table("photos")
    pool.next_id("photos")
    assert "sync_binlog = 0" in caplog.text


@pytest.mark.ticket_servers("sqlite")
def test_a_power_cut_rolls_back_no_commit_of_sqlite(pool: TicketPool) -> None:
    """Each connection that draws also syncs the folder of the journal."""
    for server in pool.servers:
        server.close()
        draw_from(pool, server.offset)
        (connection,) = server.connections.of_threads
        connection.cursor.execute("PRAGMA synchronous")
        assert connection.cursor.fetchall() == [(3,)]


def test_a_crash_of_a_postgresql_that_answers_before_it_has_flushed(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """It loses what others have committed last, and no ticket."""
    lazy = ("synchronous_commit=off", "wal_writer_delay=10s", "wal_writer_flush_after=2GB")
    forgetful = servers.new_postgresql(*(word for option in lazy for word in ("-c", option)))
    url = servers.fresh_database(forgetful)
    pool = open_pool([url])
    pool.create_table("photos")
    ids: list[int] = []
    for number in range(5):  # an idle server may have flushed before it is killed
        ids += [pool.next_id("photos") for _ in range(5)]
        run(url, f"CREATE TABLE lost{number} (n INTEGER)")
        forgetful.kill()
        forgetful.start()
        ((found,),) = run(url, "SELECT id FROM photos")
        assert int(str(found)) >= max(ids)
        if run(url, f"SELECT to_regclass('lost{number}')") == [(None,)]:
            break
    else:
        raise AssertionError("no crash has lost anything, so this shows nothing")
    ids += draw_from(pool, 1, 3)
    assert_unique(ids)


def two_primaries(
    servers: ServerFixtures, open_pool: OpenPool, layout: LayoutName
) -> tuple[TicketPool, Address, list[URL], URL]:
    """A pool whose first server is behind an address that can lead to a duplicate of it; and where both are."""
    _, second, urls = fresh_pair(servers, "mariadb")
    duplicate, its_peer = servers.fresh_database(second), servers.fresh_database(second)
    address = Address(urls[0])
    pool, of_the_duplicate = open_pool([address.engine, urls[1]]), open_pool([duplicate, its_peer])
    pool.create_table("photos", layout=layout)
    of_the_duplicate.create_table("photos", layout=layout)
    return pool, address, urls, duplicate


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_primaries_behind_one_address(
    servers: ServerFixtures,
    open_pool: OpenPool,
    layout: LayoutName,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, address, urls, duplicate = two_primaries(servers, open_pool, layout)
    ids = draw_from(pool, 1, 4)
    address.lead_to(duplicate, pool)
    ids += draw_until_seen_through(pool)
    address.lead_to(urls[0], pool)
    ids += [pool.next_id("photos") for _ in range(6)]
    assert_unique(ids)
    assert_quarantined(pool, caplog, "expected a ticket above")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_primaries_that_answer_at_the_same_time(
    servers: ServerFixtures,
    open_pool: OpenPool,
    layout: LayoutName,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, address, _, duplicate = two_primaries(servers, open_pool, layout)
    server = pool.servers[0]
    server.last_ticket("photos")
    found = server.table("photos").layout
    assert found is not None
    draw, answered, other_has_drawn = found.draw, threading.Event(), threading.Event()

    def draw_and_be_late(cursor: DrawCursor, n: int, *, has_waited: bool = False) -> list[range]:
        blocks = draw(cursor, n, has_waited=has_waited)
        if not answered.is_set():
            answered.set()
            assert other_has_drawn.wait(PATIENCE)
        return blocks

    monkeypatch.setattr(found, "draw", draw_and_be_late)
    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(server.draw, "photos", 3)
        assert answered.wait(PATIENCE)
        address.url = duplicate
        try:
            drawn = server.draw("photos", 1)
        finally:
            other_has_drawn.set()
        with pytest.raises(TicketIntegrityError, match="two servers answer"):
            late.result()
    assert drawn == [range(3, 5, 2)]
    assert_quarantined(pool, caplog, "no concurrent draw", "two servers")


@pytest.mark.filterwarnings("ignore:MariaDB .* before 10.2.9")
def test_a_server_that_keeps_its_counter_in_memory(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """That version goes on from the row's number when it was started again."""
    old = servers.new_mariadb("--version=10.2.3-MariaDB")
    urls = [servers.fresh_database(s) for s in (old, servers.mariadb(1))]
    for offset, url in enumerate(urls, 1):
        run(url, FLICKRS_TABLE.format(name="photos", engine="InnoDB"))
        run(url, f"REPLACE INTO photos (id, stub) VALUES ({offset}, 'a')")
    pool = open_pool(urls)
    assert residues(pool.next_id("photos") for _ in range(4)) == {0}
    (record, _) = pool.status()
    assert record.error is not None
    assert "counter in memory" in record.error
    with pytest.raises(TicketTableError, match="'counter'"):
        pool.create_table("users", layout="replace")
    pool.create_table("albums", layout="counter")
    assert residues(pool.next_id("albums") for _ in range(4)) == {0, 1}


# -- settings and clocks of servers


@MYSQL_LIKE
@pytest.mark.parametrize(("increment", "offset"), [(7, 2), (1, 1), (3, 9)])
def test_settings_that_are_not_the_pool_s(
    servers: ServerFixtures, open_pool: OpenPool, ticket_kind: str, increment: int, offset: int
) -> None:
    """As a cluster writes them, as they are when my.cnf is lost, and invalid ones."""
    first, second, urls = fresh_pair(servers, ticket_kind)
    pool = open_pool(urls)
    pool.create_table("photos")
    ids = [pool.next_id("photos") for _ in range(4)]
    pair = {"auto_increment_increment": increment, "auto_increment_offset": offset}
    with setting(first, **pair), setting(second, **pair):
        pool.dispose()  # such settings are those of new sessions
        for later in (pool, open_pool(urls)):
            ids += [later.next_id("photos") for _ in range(4)] + later.next_ids("photos", 9)
    assert_unique(ids)
    assert residues(ids[-13:]) == {0, 1}
    assert {record.breaker for record in pool.status()} == {"closed"}


@MYSQL_LIKE
def test_a_table_that_is_altered_in_the_session_that_draws(pool: TicketPool) -> None:
    """Some servers reset the increment of a session that alters a table (MDEV-27123)."""
    ids = [pool.next_id("photos") for _ in range(4)]
    for server in pool.servers:
        server.do("photos", lambda context: context.cursor.execute("ALTER TABLE photos FORCE", ()))
    ids += [pool.next_id("photos") for _ in range(4)] + pool.next_ids("photos", 9)
    assert_unique(ids)
    assert residues(ids[4:8]) == {0, 1}
    assert {record.breaker for record in pool.status()} == {"closed"}


@MYSQL_LIKE
def test_a_server_whose_clock_was_set_back(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    open_pool(ticket_urls).create_table("photos")
    ids: list[int] = []
    for now in (2_000_000_000, 1_000_000_000, 1):
        command = {"init_command": f"SET SESSION timestamp = {now}"}
        later = open_pool([url.update_query_dict(command) for url in ticket_urls])
        ids += [later.next_id("photos") for _ in range(4)] + later.next_ids("photos", 3)
    assert_unique(ids)
    assert max(ids) < 60


# -- buffered blocks


def test_a_block_belongs_to_who_drew_it(
    ticket_urls: list[URL], open_pool: OpenPool, ticket_kind: str
) -> None:
    """Whatever becomes of the table: no other process is given a number of the block."""
    photos = TicketSequence("photos", block=30)
    holder, pool = open_pool(ticket_urls), open_pool(ticket_urls)
    pool.create_table("photos")
    ids = holder.next_ids(photos, 3)
    ids += pool.next_ids("photos", 50)
    if ticket_kind in ("mariadb", "mysql"):
        operations.convert(pool, "photos", "counter")
    ids += pool.next_ids("photos", 50)
    operations.rename(pool, "photos", "pictures")
    ids += pool.next_ids("pictures", 50)
    ids += [holder.next_id(photos) for _ in range(40)]
    assert_unique(ids)


# -- what reads them


def test_ids_that_javascript_would_take_for_one(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter", start=LARGEST_SAFE + 1)
    ids = [pool.next_id("photos") for _ in range(8)]
    assert_unique(ids)
    as_numbers = json.loads(json.dumps(ids), parse_int=float)
    assert len(set(as_numbers)) < len(ids)
    as_strings = json.loads(json.dumps([str(id_) for id_ in ids]), parse_int=float)
    assert [int(text) for text in as_strings] == ids
    assert all((record.last_ticket or 0) > LARGEST_SAFE for record in pool.status())
