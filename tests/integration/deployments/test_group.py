"""A group of MySQL servers of which every member takes writes."""

from __future__ import annotations

import pytest
from sqlalchemy import URL

from sqla_tickets import ServerSpec, TicketPool, TicketServerError
from sqla_tickets.cli.doctor import examine
from tests.support.draws import OpenPool, assert_unique, in_processes, residues
from tests.support.servers import ServerFixtures

pytestmark = [pytest.mark.ticket_servers("mysql"), pytest.mark.timeout(600)]

DRAWS = 300


def draw_at(text: str) -> list[int]:
    """Draw from one member alone, so that no other server can step in."""
    with TicketPool([ServerSpec(text, offset=1)], stride=2) as pool:
        return [ticket for _ in range(DRAWS) for ticket in pool.next_ids("photos", 3)]


def of_member(url: URL, port: int) -> str:
    return url.set(port=port).render_as_string(hide_password=False)


def test_draws_on_two_members_that_meet_are_sent_again(servers: ServerFixtures) -> None:
    """The group lets one of two commits win, and tells the other one to draw again."""
    group = servers.group()
    url = servers.fresh_database(group.members[0])
    texts = [of_member(url, member.port) for member in group.members]
    with TicketPool([ServerSpec(texts[0], offset=1)], stride=2) as pool:
        pool.create_table("photos", layout="counter")
    drawn = in_processes(draw_at, *[(text,) for text in texts])
    assert [len(ids) for ids in drawn] == [3 * DRAWS] * 2
    assert_unique([ticket for ids in drawn for ticket in ids])


def test_two_members_as_two_servers_are_refused(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """By whatever database: both would be set back together."""
    group = servers.group()
    urls = [servers.fresh_database(member) for member in group.members]
    for offset, url in enumerate(urls, 1):
        with TicketPool([ServerSpec(url, offset=offset)], stride=2) as alone:
            alone.create_table("photos", layout="counter")
    with pytest.raises(TicketServerError, match="members of one cluster"):
        open_pool(urls).create_table("albums", layout="counter")
    pool = open_pool(urls)
    assert residues(pool.next_id("photos") for _ in range(6)) == {1}
    assert "same-cluster" in {finding.code for finding in examine(pool)}
    assert "group-replication" not in {finding.code for finding in examine(pool)}
