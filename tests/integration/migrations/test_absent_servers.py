"""Servers that issue a sequence's tickets, and that an operator's configuration does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketArgumentError, TicketPool, TicketTableError
from sqla_tickets.cli.doctor import examine
from sqla_tickets.maintenance import operations, resize
from sqla_tickets.maintenance.handle import TableHandle
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
    with pytest.raises(TicketTableError, match=r"pool 'default' does not have .*\(offset 3: up to"):
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
    assert "offset 3: up to" in finding.value
    on = [*options(urls[:2]), "--stride", str(STRIDE)]
    for command in (["raise", "photos", "--above", 5], ["restore", "photos"]):
        refused = run_cli(*command, *on)
        assert refused.code == 3
        assert "(offset 3: up to" in refused.text
    with pytest.raises(TicketTableError, match="offset 3"):
        known.raise_above("photos", 10**7)
    command = finding.fix.rpartition("sqla-tickets ")[2].rstrip(".").split()
    assert "must never run again" in run_cli(*command, "--dry-run", *on).text
    assert [f for f in examine(known) if f.code == "server-not-configured"]
    known.create_table("albums")  # which that server never had
    done = run_cli("retire", "--gone", 3, "--yes", *on)
    assert done.code == 0, done.text
    assert "albums" not in done.text
    assert not [f for f in examine(known) if f.code == "server-not-configured"]
    again = run_cli(*command, "--yes", *on)
    assert again.code == 3
    assert "it has retired already" in again.text


def test_move_without_a_server_that_others_have_overtaken_is_refused(
    known: TicketPool, grown: TicketPool, media: TicketPool
) -> None:
    """Each server has a rate of its own, so a number says nothing about who else issues tickets."""
    drawn = [ticket for n in range(3) for ticket in grown.servers[n].draw("photos", 200)[0]]
    grown.dispose()  # which writes the marks
    for server in known.servers:
        drawn += server.draw("photos", 10**6)[-1]
    with pytest.raises(TicketTableError, match="offset 3"):
        operations.move(known, "photos", media)
    with pytest.raises(TicketTableError, match="offset 3"):
        known.raise_above("photos", 10**9)
    drawn += [grown.servers[n].draw("photos", 1)[0][0] for n in range(3)]
    assert_unique(drawn)


class _Killed(Exception):
    """Ends an operation, as SIGKILL would."""


def _kill(*_: object) -> None:
    raise _Killed


def test_move_that_was_killed_is_not_finished_without_a_server(
    known: TicketPool, grown: TicketPool, media: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables are closed, so none shows a number."""
    drawn = [ticket for n in range(3) for ticket in grown.servers[n].draw("photos", 200)[0]]
    drawn += grown.servers[2].draw("photos", 10**6)[-1]
    grown.dispose()  # which writes the marks
    with monkeypatch.context() as killed:
        killed.setattr(TableHandle, "open", _kill)
        with pytest.raises(_Killed):
            operations.move(grown, "photos", media)
    with pytest.raises(TicketTableError, match="offset 3"):
        operations.move(known, "photos", media)
    operations.move(grown, "photos", media)
    assert min(media.next_ids("photos", 9)) > max(drawn)


def test_server_that_is_gone_for_good_retires(
    known: TicketPool, grown: TicketPool, media: TicketPool, urls: list[URL]
) -> None:
    drawn = [ticket for n in range(3) for ticket in grown.servers[n].draw("photos", 200)[0]]
    grown.dispose()
    with pytest.raises(TicketArgumentError, match="Offsets that are missing: 3"):
        resize.retire_absent(known, "photos", 4)
    above = resize.retire_absent(known, "photos", 3)
    assert above > max(drawn)
    later = [known.servers[n].draw("photos", 1)[0][0] for n in range(2)]
    assert min(later) > above
    with TicketPool([*urls[:2], urls[4]], stride=STRIDE) as other:
        resize.begin(known, other, "photos")
        later += [other.servers[2].draw("photos", 1)[0][0]]
        with pytest.raises(TicketTableError, match="offset 3"):  # it is there again
            operations.rename(known, "photos", "pictures")
    assert_unique([*drawn, *later])


def test_retired_server_that_joins_again_is_missed_at_once(
    known: TicketPool, grown: TicketPool, media: TicketPool
) -> None:
    """Before it has issued any ticket."""
    resize.retire(grown, "photos", 1)
    assert operations.absent_servers(known, "photos") == {}
    resize.begin(known, grown, "photos")
    with pytest.raises(TicketTableError, match="offset 3"):
        operations.move(known, "photos", media)


def test_late_mark_of_a_retired_server_does_not_bring_it_back(
    known: TicketPool, grown: TicketPool, urls: list[URL]
) -> None:
    """A client of before writes what it has drawn after the server has retired."""
    with TicketPool(urls[:3], stride=STRIDE) as client:
        client._marks.__dict__["on_accepted"] = lambda *_: None
        for server in client.servers:
            server.draw("photos", 200)
        resize.retire(grown, "photos", 1)
        client._marks.begin_to_write(client.servers[0])
        client.dispose()
    assert operations.absent_servers(known, "photos") == {}


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


def test_server_in_the_configuration_is_not_gone(grown: TicketPool, urls: list[URL]) -> None:
    on = [*options(urls[:2]), "--stride", str(STRIDE)]
    refused = run_cli("retire", "--gone", 2, "--yes", *on)
    assert refused.code == 3
    assert "still has a server with the offset 2" in refused.text


def test_list_without_a_server_in_the_middle_retires_nobody(
    grown: TicketPool, urls: list[URL]
) -> None:
    """It gives the third server the offset of the second, so the third seems to be missing."""
    grown.next_ids("photos", 3)
    grown.dispose()  # which writes the marks
    on = [*options([urls[0], urls[2]]), "--stride", str(STRIDE)]
    for offset in (2, 3):
        refused = run_cli("retire", "--gone", offset, "--dry-run", *on)
        assert refused.code == 3
        assert "Are the pool's servers in a different order?" in refused.text
