"""Servers that issue a sequence's tickets, and that an operator's configuration does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool, TicketTableError
from sqla_tickets.cli.doctor import examine
from sqla_tickets.maintenance import operations, resize
from tests.support.command_line import options, run_cli
from tests.support.draws import OpenPool, assert_unique
from tests.support.servers import ServerFixtures

STRIDE = 8


@pytest.fixture
def urls(ticket_kind: str, servers: ServerFixtures, tmp_path: Path) -> list[URL]:
    if ticket_kind == "sqlite":
        return [URL.create("sqlite", database=f"{tmp_path}/{n}.db") for n in range(5)]
    return [servers.fresh_database(servers.shared(ticket_kind, n % 2)) for n in range(5)]


@pytest.fixture
def known(urls: list[URL], open_pool: OpenPool) -> TicketPool:
    """The two servers that the operator's configuration has."""
    return open_pool(urls[:2], stride=STRIDE)


@pytest.fixture
def grown(known: TicketPool, urls: list[URL], open_pool: OpenPool) -> TicketPool:
    """All three servers."""
    known.create_table("photos")
    known.next_ids("photos", 100)
    pool = open_pool(urls[:3], stride=STRIDE)
    resize.begin(known, pool, "photos")
    return pool


@pytest.fixture
def media(urls: list[URL]) -> Iterator[TicketPool]:
    with TicketPool(urls[3:], name="media", stride=STRIDE) as pool:
        yield pool


@pytest.mark.parametrize("is_drawn_from", [False, True])
def test_move_without_a_server_that_joined_is_refused(
    known: TicketPool, grown: TicketPool, media: TicketPool, is_drawn_from: bool
) -> None:
    drawn = grown.next_ids("photos", 300) if is_drawn_from else []
    with pytest.raises(TicketTableError, match=r"offset 3, which the pool 'default' does not have"):
        operations.move(known, "photos", media)
    with pytest.raises(TicketTableError, match="offset 3"):
        operations.rename(known, "photos", "pictures")
    with pytest.raises(TicketTableError, match="offset 3"):
        resize.retire(known, "photos", 1)
    drawn += [grown.servers[n].draw("photos", 1)[0][0] for n in range(3)]
    operations.move(grown, "photos", media)
    drawn += media.next_ids("photos", 300)
    assert_unique(drawn)
    assert min(drawn[-300:]) > max(drawn[:-300])


def test_move_after_a_server_has_retired_is_done(
    known: TicketPool, grown: TicketPool, media: TicketPool
) -> None:
    drawn = [ticket for n in range(3) for ticket in grown.servers[n].draw("photos", 200)[0]]
    resize.retire(grown, "photos", 1)
    assert operations.absent_servers(known, "photos") == {}
    operations.move(known, "photos", media)
    assert min(media.next_ids("photos", 9)) > max(drawn)


def test_doctor_and_raise_show_a_server_that_is_not_configured(
    known: TicketPool, grown: TicketPool, urls: list[URL]
) -> None:
    assert not [f for f in examine(grown) if f.code == "server-not-configured"]
    (finding,) = [f for f in examine(known) if f.code == "server-not-configured"]
    assert finding.sequence == "photos"
    assert "offset 3" in finding.value
    on = [*options(urls[:2]), "--stride", str(STRIDE)]
    planned = run_cli("raise", "photos", "--above", 5, "--dry-run", *on)
    assert "NOT KNOWN: a server with the offset 3 has issued" in planned.text
    _, _, above = finding.fix.rpartition(" ")
    known.raise_above("photos", int(above.rstrip(".")))
    assert not [f for f in examine(known) if f.code == "server-not-configured"]


@pytest.mark.parametrize("is_drawn_from", [False, True])
def test_growth_without_a_server_that_joined_is_refused(
    known: TicketPool, grown: TicketPool, urls: list[URL], is_drawn_from: bool
) -> None:
    """The new server would issue the numbers of the one that was forgotten."""
    if is_drawn_from:
        grown.next_ids("photos", 300)
    with TicketPool([*urls[:2], urls[4]], stride=STRIDE) as other:
        for again in (resize.begin, resize.begins_above):
            with pytest.raises(TicketTableError, match="offset 3"):
                again(known, other, "photos", gap=resize.GAP_NUMBERS)
        assert list(operations.table_states(other, "photos").values())[2] is None
        resize.begin(known, grown, "photos")  # again, as if it had been interrupted
        resize.retire(grown, "photos", 1)
        drawn = known.next_ids("photos", 9)
        above = resize.begin(known, other, "photos")
        assert above > max(drawn)
        assert other.servers[2].draw("photos", 1)[0][0] > above
