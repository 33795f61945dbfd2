"""The end of the numbers: an error that says so, never a repeat, never a number too large."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketArgumentError, TicketError, TicketPool, TicketsExhausted
from sqla_tickets.dialects import LayoutName
from tests.support.draws import OpenPool, assert_unique, run

END_32 = 2**32 - 1
END_63 = 2**63 - 1
MYSQL_LIKE = pytest.mark.ticket_servers("mariadb", "mysql")


def drain(pool: TicketPool, n: int, end: int) -> list[int]:
    """Draw ``n`` at a time, then the rest one by one; see that it is told as exhaustion and stays."""
    ids: list[int] = []

    def go_on(wanted: int) -> None:
        for _ in range(200):
            ids.extend(pool.next_ids("photos", wanted))

    for wanted in (n, 1):
        with pytest.raises(TicketsExhausted, match="'photos'"):
            go_on(wanted)
    for again in (1, n, 1):
        with pytest.raises(TicketsExhausted, match="'photos'"):
            pool.next_ids("photos", again)
    assert_unique(ids)
    assert all(ticket <= end for ticket in ids)
    return ids


@MYSQL_LIKE
@pytest.mark.parametrize("sql_mode", ["STRICT_TRANS_TABLES", ""])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
@pytest.mark.parametrize("layout", ["replace", "counter"])
def test_32_bits(
    ticket_urls: list[URL],
    open_pool: OpenPool,
    layout: LayoutName,
    engine: str,
    n: int,
    sql_mode: str,
) -> None:
    command = {"init_command": f"SET SESSION sql_mode='{sql_mode}'"}
    pool = open_pool([url.update_query_dict(command) for url in ticket_urls])
    pool.create_table("photos", layout=layout, bits=32, engine=engine, start=END_32 - 20)
    ids = drain(pool, n, END_32)
    assert len(ids) >= 12


@MYSQL_LIKE
@pytest.mark.parametrize("layout", ["replace", "counter"])
def test_two_clients_at_the_end_of_32_bits_of_a_lax_server(
    ticket_urls: list[URL], open_pool: OpenPool, layout: LayoutName
) -> None:
    """Without a strict sql_mode a number that is too large is silently cut, and the row stands."""
    lax = [
        url.update_query_dict({"init_command": "SET SESSION sql_mode=''"}) for url in ticket_urls
    ]
    pools = [open_pool(lax), open_pool(lax)]
    pools[0].create_table("photos", layout=layout, bits=32, start=END_32 - 8)
    ids: list[int] = []
    for draw in range(24):
        with suppress(TicketError):
            ids += pools[draw % 2].next_ids("photos", 1 + draw % 3)
    assert_unique(ids)
    assert max(ids) <= END_32


@pytest.mark.parametrize("n", [1, 3])
def test_63_bits(ticket_urls: list[URL], open_pool: OpenPool, n: int) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter", start=END_63 - 20)
    assert len(drain(pool, n, END_63)) >= 12


@MYSQL_LIKE
@pytest.mark.parametrize("n", [1, 3])
def test_63_bits_of_flickrs_table(ticket_urls: list[URL], open_pool: OpenPool, n: int) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", start=END_63 - 20)
    assert len(drain(pool, n, END_63)) >= 12
    for record in pool.status():
        assert record.capacity_left is not None
        assert record.capacity_left >= 0


@MYSQL_LIKE
def test_64_bits_of_flickrs_table(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    """The column holds more than any ticket may be; other clients may have gone there."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos")
    for url in ticket_urls:
        run(url, f"REPLACE INTO photos (id, stub) VALUES ({2**64 - 9}, 'a')")
    assert drain(pool, 1, END_63) == []


def test_capacity_is_told(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", start=END_63 - 20)
    for record in pool.status():
        assert record.capacity_left in {9, 10, 11}


@MYSQL_LIKE
@pytest.mark.parametrize("layout", ["replace", "counter"])
def test_capacity_of_32_bits_is_told(
    ticket_urls: list[URL], open_pool: OpenPool, layout: LayoutName
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout=layout, bits=32, start=END_32 - 20)
    for record in pool.status():
        assert record.capacity_left in {9, 10, 11}


def draw_to_the_end(pool: TicketPool, name: str, ids: list[int]) -> None:
    with pytest.raises(TicketsExhausted, match=name):
        ids.extend(pool.next_id(name) for _ in range(40))


#: The largest ticket of a table that others have created, by the type of its column.
FOREIGN = {
    "int(10) unsigned": END_32,
    "int": 2**31 - 1,
    "mediumint unsigned": 2**24 - 1,
    "bigint(20) unsigned": END_63,
}


def create_tickets32(urls: list[URL], type_: str, end: int) -> None:
    """Flickr's tables, with about ten tickets left on each server."""
    for number, url in enumerate(urls):
        run(
            url,
            f"CREATE TABLE Tickets32 (id {type_} NOT NULL auto_increment, stub char(1) NOT NULL default '',"
            " PRIMARY KEY (id), UNIQUE KEY stub (stub)) ENGINE=InnoDB",
            f"INSERT INTO Tickets32 VALUES ({end - 20 - number}, 'a')",
        )


@MYSQL_LIKE
@pytest.mark.parametrize("type_", FOREIGN)
def test_two_clients_at_the_end_of_a_foreign_table(
    ticket_urls: list[URL], open_pool: OpenPool, type_: str
) -> None:
    """One of them does not know that the other has drawn the last ticket: that looks like a number set back."""
    end = FOREIGN[type_]
    create_tickets32(ticket_urls, type_, end)
    one, other = open_pool(ticket_urls), open_pool(ticket_urls)
    ids = [one.next_id("Tickets32") for _ in range(4)]
    draw_to_the_end(other, "Tickets32", ids)
    draw_to_the_end(one, "Tickets32", ids)
    assert_unique(ids)
    assert max(ids) <= end


@MYSQL_LIKE
@pytest.mark.parametrize("type_", FOREIGN)
def test_column_type_decides_where_tickets_end(
    ticket_urls: list[URL], open_pool: OpenPool, type_: str
) -> None:
    """Flickr's Tickets32, Zotero's tables: nothing beside the number tells how large it can grow."""
    end = FOREIGN[type_]
    create_tickets32(ticket_urls, type_, end)
    pool = open_pool(ticket_urls)
    for record in pool.status(["Tickets32"]):
        assert record.capacity_left in {9, 10, 11}
    with pytest.raises(TicketArgumentError, match=str(end)):
        pool.raise_above("Tickets32", end + 1 if end < END_63 else end)
    ids: list[int] = []
    draw_to_the_end(pool, "Tickets32", ids)
    assert_unique(ids)
    assert max(ids) <= end
    assert len(ids) >= 16


@MYSQL_LIKE
def test_widened_column_is_drawn_from_at_once(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", start=END_32 - 20)
    for url in ticket_urls:
        run(url, "ALTER TABLE photos MODIFY id INT UNSIGNED NOT NULL AUTO_INCREMENT")
    with pytest.raises(TicketsExhausted):
        pool.next_ids("photos", 100)
    for url in ticket_urls:
        run(url, "ALTER TABLE photos MODIFY id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT")
    assert len(pool.next_ids("photos", 100)) == 100


@pytest.mark.ticket_servers("postgresql")
@pytest.mark.parametrize(("type_", "end"), [("integer", 2**31 - 1), ("smallint", 2**15 - 1)])
def test_column_type_of_postgresql_decides(
    ticket_urls: list[URL], open_pool: OpenPool, type_: str, end: int
) -> None:
    for offset, url in enumerate(ticket_urls, 1):
        run(
            url,
            f"CREATE TABLE photos (stub CHAR(1) NOT NULL PRIMARY KEY, id {type_} NOT NULL)",
            f"INSERT INTO photos VALUES ('c', {end - 20 + (offset == 2)})",
        )
    pool = open_pool(ticket_urls)
    assert {record.capacity_left for record in pool.status(["photos"])} == {9, 10}
    ids: list[int] = []
    draw_to_the_end(pool, "photos", ids)
    assert len(ids) >= 16
    assert max(ids) <= end


@pytest.mark.ticket_servers("sqlite")
def test_column_of_sqlite_holds_64_bits(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    for offset, url in enumerate(ticket_urls, 1):
        run(
            url,
            "CREATE TABLE photos (stub CHAR(1) NOT NULL PRIMARY KEY, id INT NOT NULL)",
            f"INSERT INTO photos VALUES ('c', {2**40 + offset})",
        )
    pool = open_pool(ticket_urls)
    assert pool.next_id("photos") > 2**40
    assert all((record.capacity_left or 0) > 2**60 for record in pool.status(["photos"]))


@pytest.mark.parametrize("n", [2**62, 2**63, 10**30])
def test_more_than_there_are(pool: TicketPool, n: int) -> None:
    ids = [pool.next_id("photos") for _ in range(4)]
    with pytest.raises(TicketError, match="'photos'"):
        pool.reserve("photos", n)
    ids += [pool.next_id("photos") for _ in range(4)]
    assert_unique(ids)
    assert {record.breaker for record in pool.status()} == {"closed"}


def test_a_wish_that_one_server_cannot_fill_is_filled_by_the_other(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    ids = pool.next_ids("photos", 2)
    run(ticket_urls[0], f"UPDATE photos SET id = {END_63 - 2 - END_63 % 2 + 1}")
    for _ in range(4):
        ids += pool.next_ids("photos", 5)
    assert_unique(ids)


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize(
    "wrong", [{"start": 0}, {"start": -5}, {"start": 2**63}, {"bits": 16}, {"bits": 63}]
)
def test_a_table_that_cannot_be(pool: TicketPool, wrong: dict[str, int]) -> None:
    with pytest.raises(TicketArgumentError, match=r"whole number|expected 32 or 64"):
        pool.create_table("users", **wrong)  # type: ignore[arg-type]  # each takes an int
