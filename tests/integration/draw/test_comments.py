"""Comments that are no metadata of ours: somebody has edited one, or a later release has written it."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool, TicketTableError
from sqla_tickets.maintenance import operations
from sqla_tickets.tables.metadata import TableMetadata
from tests.support.draws import OpenPool, assert_unique, draw_from, residues, run
from tests.support.table_comments import (
    UNREADABLE_METADATA,
    UNREADABLE_TOMBSTONES,
    tombstone_comment,
)

#: Some of each kind; tests/unit/tables/test_metadata.py has them all.
SOME = [*UNREADABLE_METADATA[:1], *UNREADABLE_METADATA[-5:], *UNREADABLE_TOMBSTONES[-4:]]


class Edited:
    """A pair of PostgreSQL's, on the first of which somebody edits the comment of ``photos``."""

    def __init__(self, pool: TicketPool, url: URL) -> None:
        self.pool, self._url = pool, url
        pool.create_table("users")

    def write(self, comment: str) -> None:
        run(self._url, f"COMMENT ON TABLE photos IS $comment${comment}$comment$".replace("%", "%%"))

    def mend(self) -> None:
        self.write(str(TableMetadata("counter", 2, 1)))


@pytest.fixture
def edited(pool: TicketPool, ticket_urls: list[URL]) -> Edited:
    return Edited(pool, ticket_urls[0])


@pytest.mark.ticket_servers("postgresql")
def test_comment_that_is_none_is_the_table_s_fault(edited: Edited, ticket_urls: list[URL]) -> None:
    """Draws go to the other server, those of other sequences to both, and nothing raw is raised."""
    ids: list[int] = []
    for comment in SOME:
        print(f"the comment is {comment[:60]}")
        edited.write(comment)
        with TicketPool(ticket_urls, hedge=False) as pool:
            ids += draw_past_the_table(pool)
            edited.mend()
            ids += draw_from(pool, 1)
    assert_unique(ids)


def draw_past_the_table(pool: TicketPool) -> list[int]:
    """What a new pool draws while nobody can read the comment of the first server's table."""
    ids = [pool.next_id("photos") for _ in range(4)]
    assert residues(ids) == {0}
    assert residues(pool.next_id("users") for _ in range(4)) == {0, 1}
    server = pool.servers[0]
    assert server.breaker.is_closed
    told = str(server.table("photos").reason)
    assert re.search(r"'photos' on postgresql.*offset 1.*cannot be read.*compare", told)
    assert len(told) < 1000
    assert {r.up for r in pool.status() if r.server == str(server)} == {True, False}
    assert operations.names(pool) == {"photos", "users"}
    with pytest.raises(TicketTableError, match="cannot be read"):
        pool.create_table("photos")
    assert server.breaker.is_closed
    return ids


@pytest.mark.ticket_servers("postgresql")
def test_comment_of_100_mb_is_not_waited_for(
    edited: Edited, ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    run(
        ticket_urls[0],
        "DO $$ BEGIN EXECUTE format('COMMENT ON TABLE photos IS %%L', repeat('x', 100000000)); END $$",
    )
    pool = open_pool(ticket_urls)
    assert residues(pool.next_id("photos") for _ in range(4)) == {0}
    assert pool.servers[0].breaker.is_closed
    assert "too long" in str(pool.servers[0].table("photos").reason)


@pytest.mark.ticket_servers("sqlite", "mariadb", "mysql")
def test_comment_of_another_kind_of_server_is_read_alike(
    pool: TicketPool, ticket_urls: list[URL], open_pool: OpenPool, ticket_kind: str
) -> None:
    pool.create_table("users")
    if ticket_kind == "sqlite":
        made = "stub CHAR(1) NOT NULL PRIMARY KEY, id BIGINT NOT NULL"
        row = "INSERT INTO photos VALUES ('c', 1)"
        run(
            ticket_urls[0],
            "DROP TABLE photos",
            f"CREATE TABLE photos ({made} /* {tombstone_comment(kind='x')} */)",
            row,
        )
    else:
        run(ticket_urls[0], f"ALTER TABLE photos COMMENT = '{tombstone_comment(kind='archived')}'")
    fresh = open_pool(ticket_urls)
    assert residues(fresh.next_id("photos") for _ in range(4)) == {0}
    assert residues(fresh.next_id("users") for _ in range(4)) == {0, 1}
    assert fresh.servers[0].breaker.is_closed
