"""Names of sequences that need quoting, on every kind of server."""

from __future__ import annotations

import pytest
from sqlalchemy import URL, create_engine, inspect

from sqla_tickets import TicketError, TicketPool
from sqla_tickets.dialects import LayoutName
from sqla_tickets.high_water.statements import MARKS
from tests.support.draws import OpenPool, assert_unique, run
from tests.support.servers import ServerFixtures

pytestmark = pytest.mark.every_case

NAMES = [
    "order",
    "my-photos",
    "my photos",
    "a`b",
    'a"b',
    "a'b",
    "100%",
    "%s",
    "%table",
    ":table",
    "a\\b",
    "a;b--c",
    "фотографии",
    "写真",
    "Photos",
    "1",
    "x" * 63,
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_needs_quoting(ticket_urls: list[URL], open_pool: OpenPool, name: str) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table(name)
    pool.create_table(name)
    ids = [pool.next_id(name) for _ in range(4)] + pool.next_ids(name, 5) + pool.next_ids(name, 5)
    assert_unique(ids)
    assert {(record.sequence, record.up) for record in pool.status()} == {(name, True)}
    engine = create_engine(ticket_urls[0])
    assert set(inspect(engine).get_table_names()) == {name, MARKS}
    pool.drop_table(name)
    assert inspect(engine).get_table_names() == [MARKS]
    assert run(ticket_urls[0], f"SELECT * FROM {MARKS}") == []
    engine.dispose()


@pytest.mark.ticket_servers("mariadb", "mysql")
@pytest.mark.parametrize("name", NAMES[:6])
def test_a_name_that_needs_quoting_in_a_counter_table(
    ticket_urls: list[URL], open_pool: OpenPool, name: str
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table(name, layout="counter")
    assert_unique(pool.next_ids(name, 5) + pool.next_ids(name, 5))


@pytest.mark.ticket_servers("mariadb", "mysql", "sqlite")
def test_sixty_four_characters(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("x" * 64)
    assert_unique(pool.next_ids("x" * 64, 5))


@pytest.mark.ticket_servers("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize("name", ["x" * 65, "é" * 65, "photos "])
def test_a_name_that_the_server_cannot_have(pool: TicketPool, ticket_kind: str, name: str) -> None:
    if name == "photos " and ticket_kind == "postgresql":
        pytest.skip("PostgreSQL takes it")
    with pytest.raises(TicketError):
        pool.create_table(name)
    with pytest.raises(TicketError):
        pool.next_id(name)
    assert pool.next_id("photos")
    others = [r for r in pool.status() if r.sequence == "photos"]
    assert {r.breaker for r in others} == {"closed"}, "a bad name is no fault of the servers"


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_names_that_differ_in_little(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(ticket_urls)
    names: dict[str, LayoutName] = {
        "photos": "replace",
        "Photos": "counter",
        "phötos": "counter",
        "photos2": "replace",
    }
    for name, layout in names.items():
        pool.create_table(name, layout=layout)
    for name, layout in names.items():
        assert_unique(pool.next_ids(name, 5) + pool.next_ids(name, 5))
        assert {r.layout for r in pool.status() if r.sequence == name} == {layout}


@pytest.mark.parametrize("sql_mode", ["ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "", "ANSI"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_server_that_quotes_otherwise(
    servers: ServerFixtures, open_pool: OpenPool, kind: str, sql_mode: str
) -> None:
    urls = [
        servers.fresh_database(servers.shared(kind, n)).update_query_dict(
            {"init_command": f"SET SESSION sql_mode='{sql_mode}'"}
        )
        for n in range(2)
    ]
    pool = open_pool(urls)
    for name in ("order", 'a"b', "a`b", "a\\b", "a'b"):
        pool.create_table(name)
        assert_unique(pool.next_ids(name, 5) + pool.next_ids(name, 5))
