"""Whatever happens to a ticket table behind the pool's back, no ticket is handed out twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import URL

from sqla_tickets import (
    NoTicketServer,
    TicketError,
    TicketIntegrityError,
    TicketPool,
    TicketTableError,
)
from tests.support.draws import (
    OpenPool,
    assert_unique,
    draw_from,
    fresh_pair,
    grant_only,
    mysql_like,
    residues,
    run,
)
from tests.support.servers import ServerFixtures
from tests.support.set_back import SET_BACK, assert_quarantined

MYSQL_LIKE = pytest.mark.ticket_servers("mariadb", "mysql")


@MYSQL_LIKE
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("how", SET_BACK)
def test_a_number_that_was_set_back(
    ticket_urls: list[URL],
    open_pool: OpenPool,
    how: str,
    n: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    layout, statements = SET_BACK[how]
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout=layout)
    ids = pool.next_ids("photos", 20) + [pool.next_id("photos") for _ in range(8)]
    run(ticket_urls[0], *statements)
    for _ in range(8):
        ids += pool.next_ids("photos", n)
    assert_unique(ids)
    assert_quarantined(
        pool, caplog, "expected a ticket above", "had issued before", "sqla-tickets restore"
    )


def test_a_counter_row_that_was_lowered(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    ids = [pool.next_id("photos") for _ in range(8)]
    run(ticket_urls[0], "UPDATE photos SET id = 1")
    ids += [pool.next_id("photos") for _ in range(8)]
    assert_unique(ids)
    assert_quarantined(pool, caplog, "expected a ticket above")


def test_no_server_left_that_keeps_its_promise(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    pool.next_ids("photos", 3)
    ids = {pool.next_id("photos") for _ in range(4)}
    for url in ticket_urls:
        run(url, "UPDATE photos SET id = id - 4")
    for _ in range(3):
        with pytest.raises(TicketIntegrityError, match="'photos'"):
            pool.next_id("photos")
    assert len(ids) == 4


def test_a_quarantine_is_of_one_sequence_alone(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(ticket_urls)
    for name in ("photos", "users"):
        pool.create_table(name, layout="counter")
        pool.next_ids(name, 2)
        pool.next_ids(name, 2)
    run(ticket_urls[0], "UPDATE photos SET id = 1")
    assert residues(pool.next_id("photos") for _ in range(4)) == {0}
    assert residues(pool.next_id("users") for _ in range(4)) == {0, 1}


def test_a_table_made_anew_ends_the_quarantine(pool: TicketPool, ticket_urls: list[URL]) -> None:
    pool.drop_table("photos")
    pool.create_table("photos", layout="counter")
    draw_from(pool, 1, 2)
    run(ticket_urls[0], "UPDATE photos SET id = 1")
    pool.next_id("photos"), pool.next_id("photos")
    pool.drop_table("photos")
    pool.create_table("photos", layout="counter", start=1000)
    assert residues(pool.next_id("photos") for _ in range(4)) == {0, 1}


def test_a_counter_row_in_another_residue(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    ids = [pool.next_id("photos") for _ in range(4)]
    run(ticket_urls[0], "UPDATE photos SET id = 1000")
    ids += [pool.next_id("photos") for _ in range(4)]
    assert_unique(ids)
    assert_quarantined(pool, caplog, "1 modulo 2", "1002")


@MYSQL_LIKE
def test_a_trigger_that_numbers_otherwise(
    ticket_urls: list[URL],
    open_pool: OpenPool,
    servers: ServerFixtures,
    ticket_kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos")
    ids = [pool.next_id("photos") for _ in range(4)]
    with_trigger(servers, ticket_kind, ticket_urls[0], "SET NEW.id = 1000")
    ids += [pool.next_id("photos") for _ in range(4)]
    assert_unique(ids)
    assert_quarantined(pool, caplog, "1 modulo 2", "1000")


@MYSQL_LIKE
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("locks", [True, False], ids=["locked", "one by one"])
def test_a_trigger_that_repeats_one_number(
    ticket_urls: list[URL],
    open_pool: OpenPool,
    servers: ServerFixtures,
    ticket_kind: str,
    caplog: pytest.LogCaptureFixture,
    n: int,
    locks: bool,
) -> None:
    open_pool(ticket_urls).create_table("photos")
    with_trigger(servers, ticket_kind, ticket_urls[0], "SET NEW.id = 1001")
    if not locks:
        server = mysql_like(servers, ticket_kind)
        grant_only(server, ticket_urls[0], "SELECT", "INSERT", "DELETE", "UPDATE", "TRIGGER")
    pool, ids = open_pool(ticket_urls), []
    for _ in range(6):
        ids += pool.next_ids("photos", n)
    assert_unique(ids)
    assert_quarantined(pool, caplog, "expected a ticket above")


def with_trigger(servers: ServerFixtures, kind: str, url: URL, body: str) -> None:
    with mysql_like(servers, kind).administrator() as cursor:
        cursor.execute(
            f"CREATE TRIGGER `{url.database}`.renumber BEFORE INSERT ON `{url.database}`.photos"
            f" FOR EACH ROW {body}"
        )


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_foreign_client_that_numbers_otherwise(
    servers: ServerFixtures, open_pool: OpenPool, kind: str
) -> None:
    """A client with stock settings draws even ids from the odd server: only ours stay ours."""
    _, _, urls = fresh_pair(servers, kind)
    pool = open_pool(urls)
    pool.create_table("photos")
    ids: list[int] = []
    for _ in range(10):
        run(urls[0], "REPLACE INTO photos (stub) VALUES ('a')")
        ids += draw_from(pool, 1)
    assert_unique(ids)


@pytest.mark.parametrize("empty", ["DELETE FROM photos"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_table_that_lost_its_row(
    ticket_urls: list[URL], open_pool: OpenPool, empty: str, n: int
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    ids = [pool.next_id("photos") for _ in range(4)]
    run(ticket_urls[0], empty)
    for _ in range(4):
        ids += pool.next_ids("photos", n)
    assert_unique(ids)
    run(ticket_urls[1], empty)
    with pytest.raises(TicketTableError, match=r"'photos'.*is empty.*start=N"):
        pool.next_ids("photos", n)
    pool.create_table("photos", layout="counter", start=max(ids) + 1)
    ids += pool.next_ids("photos", n)
    assert_unique(ids)


@MYSQL_LIKE
def test_a_table_converted_to_the_other_layout_while_it_is_drawn_from(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos")
    ids = pool.next_ids("photos", 10) + pool.next_ids("photos", 10)
    for url in ticket_urls:
        ((last,),) = run(url, "SELECT MAX(id) FROM photos")
        run(url, "RENAME TABLE photos TO photos_old")
        assert isinstance(last, int)
    pool_of_migration = open_pool(ticket_urls)
    pool_of_migration.create_table("photos", layout="counter", start=max(ids) + 1)
    for _ in range(4):
        ids += pool.next_ids("photos", 3)
        ids.append(pool.next_id("photos"))
    assert_unique(ids)
    assert {record.layout for record in pool.status()} == {"counter"}


def test_errors_are_of_one_root(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(ticket_urls)
    attempts: list[Callable[[], object]] = [
        lambda: pool.next_id("photos"),
        lambda: pool.next_ids("photos", 0),
        lambda: pool.next_ids("photos", 10**25),
        lambda: pool.create_table("photos", start=0),
    ]
    for attempt in attempts:
        with pytest.raises(TicketError):
            attempt()
    assert issubclass(NoTicketServer, TicketError)
    assert not issubclass(TicketError, TimeoutError)
