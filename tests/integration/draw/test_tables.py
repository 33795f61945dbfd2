"""Ticket tables: Flickr's own, made twice, by many at once, and by somebody who died."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool, TicketTableError
from sqla_tickets.dialects import LayoutName
from tests.support.draws import (
    FLICKRS_TABLE,
    OpenPool,
    assert_unique,
    draw_from,
    fresh_pair,
    in_processes,
    kill_connections,
    residues,
    run,
    skip_unless_it_has,
)
from tests.support.servers import ServerFixtures

# What is asked here depends on the kind of database.
pytestmark = pytest.mark.every_kind

MYSQL_LIKE = pytest.mark.ticket_servers("mariadb", "mysql")
ENGINES = pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
CREATORS = 8


def columns_and_keys(url: URL, table: str) -> list[str]:
    """The lines of SHOW CREATE TABLE between the brackets."""
    ((_, text),) = run(url, f"SHOW CREATE TABLE `{table}`")
    return re.findall(r"^ +(.*?),?$", str(text), re.MULTILINE)


@MYSQL_LIKE
@ENGINES
def test_the_table_is_flickrs_column_for_column(
    ticket_urls: list[URL], open_pool: OpenPool, engine: str
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", engine=engine)
    for url in ticket_urls:
        run(url, FLICKRS_TABLE.format(name="flickrs", engine=engine))
        assert columns_and_keys(url, "photos") == columns_and_keys(url, "flickrs")
        asked = "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_NAME = 'photos'"
        assert run(url, f"{asked} AND TABLE_SCHEMA = '{url.database}'") == [(engine,)]


@MYSQL_LIKE
def test_the_table_of_32_bits_is_flickrs(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    open_pool(ticket_urls).create_table("Tickets32", bits=32)
    asked = "SELECT COLUMN_TYPE FROM information_schema.COLUMNS WHERE COLUMN_NAME = 'id'"
    ((column_type,),) = run(
        ticket_urls[0], f"{asked} AND TABLE_SCHEMA = '{ticket_urls[0].database}'"
    )
    assert re.fullmatch(r"int(\(10\))? unsigned", str(column_type))


@MYSQL_LIKE
@ENGINES
@pytest.mark.parametrize("table", ["Tickets32", "Tickets64"])
def test_flickrs_own_tables_are_drawn_from(
    ticket_urls: list[URL], open_pool: OpenPool, engine: str, table: str
) -> None:
    text = FLICKRS_TABLE.format(name=table, engine=engine)
    if table == "Tickets32":
        text = text.replace("bigint(20)", "int(10)")
    ids: list[int] = []
    for offset, url in enumerate(ticket_urls, 1):
        pair = f"SET SESSION auto_increment_increment = 2, auto_increment_offset = {offset}"
        ask = [pair, f"REPLACE INTO {table} (stub) VALUES ('a')", "SELECT LAST_INSERT_ID()"]
        ids += [int(str(n)) for ((n,),) in [run(url, text, *ask), run(url, *ask)]]
    pool = open_pool(ticket_urls)
    pool.create_table(table)
    ids += pool.next_ids(table, 30) + pool.next_ids(table, 30) + draw_from(pool, 1, 1, table)
    for offset, url in enumerate(ticket_urls, 1):
        pair = f"SET SESSION auto_increment_increment = 2, auto_increment_offset = {offset}"
        ((n,),) = run(
            url, pair, f"REPLACE INTO {table} (stub) VALUES ('a')", "SELECT LAST_INSERT_ID()"
        )
        ids.append(int(str(n)))
    assert_unique(ids)
    assert {(r.is_foreign, r.layout) for r in pool.status()} == {(True, "replace")}


def test_create_table_again_changes_nothing(pool: TicketPool) -> None:
    ids = pool.next_ids("photos", 3) + pool.next_ids("photos", 3)
    for _ in range(2):
        pool.create_table("photos")
        with pytest.raises(TicketTableError, match=r"'photos'.*below start=1000000.*omit start"):
            pool.create_table("photos", start=10**6)
        ids += pool.next_ids("photos", 3) + pool.next_ids("photos", 3)
    assert_unique(ids)
    assert max(ids) < 10**6


def test_drop_table_again_changes_nothing(pool: TicketPool) -> None:
    pool.drop_table("photos")
    pool.drop_table("photos")


@MYSQL_LIKE
def test_a_table_of_the_other_layout_is_not_the_one_meant(pool: TicketPool) -> None:
    with pytest.raises(TicketTableError, match=r"'photos'.*'replace', not 'counter'.*convert"):
        pool.create_table("photos", layout="counter")


@pytest.mark.parametrize("layout", ["replace", "counter"])
def test_a_table_missing_on_one_server_is_made_there(
    ticket_urls: list[URL], ticket_kind: str, open_pool: OpenPool, layout: LayoutName
) -> None:
    """With the layout that it has elsewhere, since a cluster may refuse the other one."""
    skip_unless_it_has(layout, ticket_kind)
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout=layout)
    ids = pool.next_ids("photos", 3) + pool.next_ids("photos", 3)
    pool.dispose()  # which writes the marks
    run(ticket_urls[1], "DROP TABLE photos")
    pool.create_table("photos", start=max(ids) + 1)
    ids += draw_from(pool, 1) + (found := draw_from(pool, 2))
    assert_unique(ids)
    assert min(found) > max(ids[:3]) + pool._marks.margin, "it may have issued more than its mark"
    assert {record.layout for record in pool.status()} == {layout}


@pytest.mark.parametrize("layout", ["replace", "counter"])
@pytest.mark.parametrize("index", [0, 1])
def test_raising_a_sequence_gives_an_emptied_table_its_row(
    ticket_urls: list[URL], ticket_kind: str, open_pool: OpenPool, layout: LayoutName, index: int
) -> None:
    skip_unless_it_has(layout, ticket_kind)
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout=layout)
    ids = pool.next_ids("photos", 20) + pool.next_ids("photos", 20)
    run(ticket_urls[index], "DELETE FROM photos")
    pool.raise_above("photos", 1000)
    with open_pool(ticket_urls) as fresh:
        later = [fresh.next_id("photos") for _ in range(4)]
    assert residues(later) == {0, 1}
    assert min(later) > 1000
    assert_unique(ids + later)


@pytest.mark.parametrize("layout", ["replace", "counter"])
def test_raising_a_sequence_never_lowers_it(
    ticket_urls: list[URL], ticket_kind: str, open_pool: OpenPool, layout: LayoutName
) -> None:
    """Not even during draws, by which the number passes the one that it is raised to."""
    skip_unless_it_has(layout, ticket_kind)
    pool, other = open_pool(ticket_urls), open_pool(ticket_urls)
    pool.create_table("photos", layout=layout)
    pool.raise_above("photos", 5000)
    ids = [other.next_id("photos") for _ in range(4)]
    for above in (0, 50, 5000, min(ids)):
        earlier = [server.last_ticket("photos") for server in pool.servers]
        pool.raise_above("photos", above)
        stands = [server.last_ticket("photos") for server in pool.servers]
        assert all(now >= before > 5000 for now, before in zip(stands, earlier, strict=True))
    with ThreadPoolExecutor(2) as threads:
        drawing = [
            threads.submit(lambda: [t for _ in range(20) for t in other.next_ids("photos", 3)])
            for _ in range(2)
        ]
        for more in range(0, 60, 6):
            pool.raise_above("photos", max(ids) + more)
        ids += [ticket for drawn in drawing for ticket in drawn.result()]
    ids += pool.next_ids("photos", 4)
    assert_unique(ids)
    assert min(ids) > 5000
    assert "quarantined" not in {record.breaker for record in other.status()}


def create_and_draw(urls: list[str], layout: LayoutName | None) -> list[int]:
    with TicketPool(urls) as pool:
        pool.create_table("photos", layout=layout)
        return [pool.next_id("photos"), *pool.next_ids("photos", 3), pool.next_id("photos")]


@pytest.mark.parametrize("layout", [None, "counter"])
def test_many_processes_create_one_table(ticket_urls: list[URL], layout: LayoutName | None) -> None:
    texts = [url.render_as_string(hide_password=False) for url in ticket_urls]
    drawn = in_processes(create_and_draw, *[(texts, layout)] * CREATORS)
    assert_unique([ticket for some in drawn for ticket in some])


@pytest.mark.parametrize("shared", [True, False], ids=["one pool", "a pool each"])
def test_many_threads_create_one_table(
    ticket_urls: list[URL], open_pool: OpenPool, shared: bool
) -> None:
    pools = [open_pool(ticket_urls)] * CREATORS
    if not shared:
        pools = [open_pool(ticket_urls) for _ in range(CREATORS)]
    together = threading.Barrier(CREATORS)

    def create(pool: TicketPool) -> list[int]:
        together.wait()
        pool.create_table("photos")
        return pool.next_ids("photos", 2) + pool.next_ids("photos", 2)

    with ThreadPoolExecutor(CREATORS) as threads:
        drawn = list(threads.map(create, pools))
    assert_unique([ticket for some in drawn for ticket in some])


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@pytest.mark.parametrize("layout", ["replace", "counter"])
def test_a_creation_that_is_killed_is_made_good_by_the_next(
    servers: ServerFixtures, open_pool: OpenPool, kind: str, layout: LayoutName
) -> None:
    """The server dies while tables are created: each is there with its row, or is not there."""
    first, _, urls = fresh_pair(servers, kind)
    pool, made = open_pool(urls[:1]), []

    def create() -> None:
        for number in range(10_000):
            made.append(f"t{number}")
            pool.create_table(f"t{number}", layout=layout)

    with ThreadPoolExecutor(1) as threads:
        creating = threads.submit(create)
        while len(made) < 4:
            time.sleep(0.005)
        first.kill()
        assert creating.exception() is not None
    first.start()
    for name in made[-3:]:
        pool.create_table(name, layout=layout)
        assert_unique(pool.next_ids(name, 3))


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_creation_whose_connection_is_killed(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    first, _, urls = fresh_pair(servers, kind)
    pool, over = open_pool(urls[:1]), threading.Event()

    def kill() -> None:
        while not over.is_set():
            kill_connections(first, urls[0])

    with ThreadPoolExecutor(1) as killer:
        ended = killer.submit(kill)
        failed: list[str] = []
        try:
            for number in range(20):
                try:
                    pool.create_table(f"t{number}")
                except Exception as error:  # noqa: BLE001  # looked at below
                    failed.append(type(error).__name__)
        finally:
            over.set()
        ended.result()
    assert set(failed) <= {"TicketServerError"}
    for number in range(20):
        pool.create_table(f"t{number}")
        assert residues(pool.next_ids(f"t{number}", 2), 1) == {0}
