"""A server whose disk is full is alive: its errors have a kind of their own, and end by themselves."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, event
from sqlalchemy.pool import NullPool

from sqla_tickets import NoTicketServer
from tests.support.draws import OpenPool, assert_unique, draw_from, residues, run

TOLD = r"(?s)'photos'.*offset 1.*no space is left.*(full|53100).*free some.*draws then resume"
FULL = (
    (
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'could not extend file (53100)' USING ERRCODE = 'disk_full'; END $$"
    ),
    "CREATE TRIGGER fill BEFORE UPDATE ON photos FOR EACH ROW EXECUTE FUNCTION fill()",
)


@pytest.mark.ticket_servers("postgresql")
def test_draw_on_a_full_disk_of_postgresql_goes_elsewhere(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos")
    ids = [pool.next_id("photos") for _ in range(4)]
    run(ticket_urls[0], *FULL)
    ids += [pool.next_id("photos") for _ in range(4)]
    assert residues(ids[4:]) == {0}
    table = pool.servers[0].table("photos")
    assert re.search(TOLD, str(table.breaker.reason))
    assert pool.servers[0].breaker.is_closed
    run(ticket_urls[0], "DROP TRIGGER fill ON photos")
    assert_unique(ids + draw_from(pool, 1))


@pytest.mark.ticket_servers("sqlite")
def test_draw_on_a_full_disk_of_sqlite_goes_elsewhere(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """A draw writes a page more each time, and the file may not grow."""
    full = create_engine(ticket_urls[0], poolclass=NullPool)

    @event.listens_for(full, "connect")
    def keep_it_small(connection: Any, record: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # as many as there are

    plain = open_pool(ticket_urls)
    plain.create_table("photos")
    ids = plain.next_ids("photos", 2)
    run(
        ticket_urls[0],
        "CREATE TABLE filler (waste BLOB)",
        "CREATE TRIGGER fill AFTER UPDATE ON photos BEGIN"
        " INSERT INTO filler VALUES (zeroblob(100000)); END",
    )
    pool = open_pool([full, ticket_urls[1]])
    ids += [pool.next_id("photos") for _ in range(4)]
    assert residues(ids[2:]) == {0}
    table = pool.servers[0].table("photos")
    assert re.search(TOLD, str(table.breaker.reason))
    assert pool.servers[0].breaker.is_closed
    with pytest.raises(NoTicketServer, match=TOLD):
        open_pool([full], stride=2).next_id("photos")
    run(ticket_urls[0], "DROP TRIGGER fill")
    assert_unique(ids + draw_from(pool, 1))
    full.dispose()
