"""Servers that issue a sequence's tickets, and that an operator's configuration does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import (
    TicketArgumentError,
    TicketIntegrityError,
    TicketPool,
    TicketServer,
    TicketServerError,
    TicketTableError,
)
from sqla_tickets.cli.doctor import examine
from sqla_tickets.maintenance import operations, resize
from sqla_tickets.maintenance.handle import TableHandle
from sqla_tickets.tables.metadata import Tombstone
from tests.support.command_line import options, run_cli
from tests.support.draws import OpenPool, assert_unique, run
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
    with pytest.raises(TicketTableError, match=r"pool 'default' lacks servers .*\(offset 3: up to"):
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
    assert again.code == 0
    assert "record it where it is missing" in again.text
    unknown = run_cli("retire", "photos", "--gone", 4, "--yes", *on)
    assert unknown.code == 3
    assert "Offsets that are missing: none" in unknown.text


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
    down = urls[1].set(port=1) if urls[1].port else urls[1].set(database="/nowhere/tickets.db")
    for second in (urls[1], down):
        on = [*options([urls[0], second]), "--stride", str(STRIDE)]
        refused = run_cli("retire", "photos", "--gone", 2, "--yes", *on)
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


def set_back(server: TicketServer, number: int) -> None:
    """Give a server the table of an earlier time."""
    server.drop("photos")
    handle = TableHandle(server, "default", "photos")
    server.create(handle.element(number + 1))


def test_retirement_of_a_server_that_was_set_back_goes_by_its_marks(
    known: TicketPool, grown: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    """Its table shows less than it has issued, and a rename leaves its marks behind."""
    number = grown.servers[2].last_ticket("photos") or 0
    drawn = [ticket for n in range(3) for ticket in grown.servers[n].draw("photos", 200_000)[-1]]
    grown.dispose()  # which writes the marks
    after = open_pool(urls[:3], stride=STRIDE)
    set_back(after.servers[2], number)
    resize.retire(after, "photos", 1)
    operations.rename(known, "photos", "pictures")
    later = [known.servers[n].draw("pictures", 1)[0][0] for n in range(2)]
    with TicketPool([*urls[:2], urls[4]], stride=STRIDE) as other:
        resize.begin(known, other, "pictures")
        later += other.servers[2].draw("pictures", 200_000)[-1]
    assert_unique([*drawn, *later])
    assert min(later) > max(drawn)


def test_retiring_server_tells_how_far_the_others_had_come(
    known: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    """It alone keeps the mark of the server that was set back."""
    known.create_table("photos")
    drawn = [
        *known.servers[0].draw("photos", 200_000)[-1],
        *known.servers[1].draw("photos", 1)[-1],
    ]
    known.dispose()  # which writes the marks
    after = open_pool(urls[:2], stride=STRIDE)
    set_back(after.servers[0], 1)
    resize.retire(after, "photos", 1)
    with TicketPool(urls[:1], stride=STRIDE) as one:
        assert min(one.next_ids("photos", 100)) > max(drawn)


def test_retirement_again_raises_nobody(known: TicketPool, grown: TicketPool) -> None:
    grown.next_ids("photos", 100)
    above = resize.retire(grown, "photos", 1)
    numbers = [server.last_ticket("photos") for server in known.servers]
    assert resize.retire(grown, "photos", 1) == above
    assert resize.retire_absent(known, "photos", 3) == above
    assert [server.last_ticket("photos") for server in known.servers] == numbers


def test_fence_of_a_server_that_was_set_back_is_no_retirement(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """With a stride of 2, there is no third residue class."""
    both = open_pool(urls[:2])
    both.create_table("photos")
    for server in both.servers:
        server.draw("photos", 1000)
    both.dispose()  # which writes the marks
    after = open_pool(urls[:2])
    set_back(after.servers[1], 2)
    with pytest.raises(TicketIntegrityError):
        after.servers[1].draw("photos", 1)
    after.dispose()
    with TicketPool(urls[:1], stride=2) as one:
        assert list(operations.absent_servers(one, "photos")) == [2]
        with pytest.raises(TicketTableError, match="offset 2"):
            operations.rename(one, "photos", "pictures")
        above = resize.retire_absent(one, "photos", 2)
        assert operations.absent_servers(one, "photos") == {}
        assert one.next_id("photos") > above


def test_server_that_nobody_has_drawn_from_is_missed(
    known: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    full = open_pool(urls[:3], stride=STRIDE)
    full.create_table("photos")
    assert operations.absent_servers(known, "photos") == {3: 0}
    with pytest.raises(TicketTableError, match="offset 3: up to 0"):
        operations.rename(known, "photos", "pictures")
    resize.retire_absent(known, "photos", 3)
    operations.rename(known, "photos", "pictures")


def test_creation_above_a_column_needs_all_servers(known: TicketPool, grown: TicketPool) -> None:
    assert grown.next_ids("photos", 3)
    with pytest.raises(TicketTableError, match="offset 3"):
        operations.create(known, "photos", above=10**9)
    assert operations.create(grown, "photos", above=10**9)
    assert min(server.draw("photos", 1)[0][0] for server in grown.servers) > 10**9


def test_server_that_has_retired_does_not_join_instead_of_another(
    known: TicketPool, grown: TicketPool, urls: list[URL]
) -> None:
    """The other one has its offset, and issues tickets still."""
    resize.retire(grown, "photos", 1)
    with TicketPool([*urls[:2], urls[4]], stride=STRIDE) as other:
        resize.begin(known, other, "photos")
        drawn = other.next_ids("photos", 100)
        with pytest.raises(TicketTableError, match="offset 3"):
            resize.begin(known, grown, "photos")
        assert_unique([*drawn, *other.next_ids("photos", 100)])


def test_server_that_was_gone_does_not_join_with_an_open_table(
    known: TicketPool, grown: TicketPool, urls: list[URL]
) -> None:
    """It was away when the sequence was renamed."""
    grown.next_ids("photos", 9)
    resize.retire_absent(known, "photos", 3)
    operations.rename(known, "photos", "pictures")
    on = [*options(urls[:2]), "--stride", str(STRIDE)]
    done = run_cli("grow", "--add", urls[2].render_as_string(hide_password=False), "--yes", *on)
    assert done.code == 3
    assert "still issues tickets, although the sequence has moved to 'pictures'" in done.text
    assert TableHandle(grown.servers[2], "default", "pictures").inspect() is None


def test_server_that_joins_again_leads_to_the_new_name(
    known: TicketPool, grown: TicketPool, urls: list[URL]
) -> None:
    resize.retire(grown, "photos", 1)
    operations.rename(known, "photos", "pictures")
    on = [*options(urls[:2]), "--stride", str(STRIDE)]
    done = run_cli("grow", "--add", urls[2].render_as_string(hide_password=False), "--yes", *on)
    assert done.code == 0, done.text
    for server in known.servers:
        server.drop("photos")
    state = TableHandle(grown.servers[2], "default", "photos").inspect()
    assert isinstance(state, Tombstone)
    assert (state.kind, state.sequence) == ("moved", "pictures")


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, *, after: bool) -> None:
    """Kill the next call of a method, before or after its work."""
    real = getattr(owner, method)

    def killed(*args: object, **kw: object) -> None:
        if after:
            real(*args, **kw)
        raise _Killed

    monkeypatch.setattr(owner, method, killed)


@pytest.mark.parametrize("after", [False, True])
def test_return_that_was_killed_is_finished_by_the_same_server_only(
    known: TicketPool, grown: TicketPool, urls: list[URL], open_pool: OpenPool, after: bool
) -> None:
    """Its table may be open, and clients of before may draw from it."""
    drawn = grown.next_ids("photos", 100)
    resize.retire(grown, "photos", 1)
    with pytest.MonkeyPatch.context() as killed:
        kill_at(killed, TableHandle, "open", after=after)
        with pytest.raises(_Killed):
            resize.begin(known, grown, "photos")
    other = open_pool([*urls[:2], urls[4]], stride=STRIDE)
    for refused in (
        lambda: resize.begin(known, other, "photos"),
        lambda: operations.rename(known, "photos", "pictures"),
    ):
        with pytest.raises(TicketTableError, match="offset 3"):
            refused()
    resize.begin(known, grown, "photos")
    assert_unique([*drawn, *grown.next_ids("photos", 100)])


def test_growth_that_was_killed_goes_on_with_the_same_empty_server(
    known: TicketPool, grown: TicketPool, urls: list[URL]
) -> None:
    resize.retire_absent(known, "photos", 3)
    with TicketPool([*urls[:2], urls[4]], stride=STRIDE) as other:
        with pytest.MonkeyPatch.context() as killed:
            kill_at(killed, TableHandle, "open", after=False)
            with pytest.raises(_Killed):
                resize.begin(known, other, "photos")
        with pytest.raises(TicketTableError, match="offset 3"):
            operations.rename(known, "photos", "pictures")
        above = resize.begin(known, other, "photos")
        assert other.servers[2].draw("photos", 1)[0][0] > above


def test_retired_table_that_is_created_again_is_missed_at_once(
    known: TicketPool, grown: TicketPool
) -> None:
    resize.retire(grown, "photos", 1)
    with pytest.MonkeyPatch.context() as killed:
        kill_at(killed, TableHandle, "open", after=True)
        with pytest.raises(_Killed):
            operations.create(grown, "photos")
    for _ in range(2):
        assert list(operations.absent_servers(known, "photos")) == [3]
        operations.create(grown, "photos")


def test_forged_rows_hide_no_server_and_raise_nobody(
    known: TicketPool, grown: TicketPool, urls: list[URL]
) -> None:
    grown.next_ids("photos", 100)
    grown.dispose()  # which writes the marks
    forged = 2**62 + 3
    run(urls[0], f"INSERT INTO sqla_tickets_marks VALUES ('photos', {STRIDE}, -3, 1, {forged})")
    assert list(operations.absent_servers(known, "photos")) == [3]
    run(urls[0], f"UPDATE sqla_tickets_marks SET mark = {forged}")
    assert list(operations.absent_servers(known, "photos")) == [3]
    with pytest.raises(TicketTableError, match="cannot be true"):
        resize.retire(grown, "photos", 1)
    assert max(server.last_ticket("photos") or 0 for server in grown.servers) < 10**9


@pytest.mark.ticket_servers("sqlite")
def test_growth_ends_only_when_the_mark_of_the_new_server_is_stored(
    known: TicketPool, grown: TicketPool, urls: list[URL]
) -> None:
    resize.retire(grown, "photos", 1)
    for event in ("INSERT", "UPDATE", "DELETE"):
        run(
            urls[0],
            f"CREATE TRIGGER no_{event} BEFORE {event} ON sqla_tickets_marks BEGIN"
            " SELECT RAISE(ABORT, 'no'); END",
        )
    with pytest.raises(TicketServerError, match="did not record which servers"):
        resize.begin(known, grown, "photos")
    for event in ("INSERT", "UPDATE", "DELETE"):
        run(urls[0], f"DROP TRIGGER no_{event}")
    resize.begin(known, grown, "photos")
    assert list(operations.absent_servers(known, "photos")) == [3]


def test_growth_that_was_given_up_leaves_no_server_to_wait_for(
    urls: list[URL], open_pool: OpenPool
) -> None:
    old, more = open_pool(urls[:2]), open_pool(urls[:4], stride=4)
    old.create_table("photos")
    drawn = old.next_ids("photos", 100)
    resize.begin(old, more, "photos")
    with TicketPool([*urls[:2], urls[4]], stride=4) as three:
        above = resize.begin(old, three, "photos")
        resize.finish(three, "photos")
        assert operations.absent_servers(three, "photos") == {}
        drawn += [three.servers[n].draw("photos", 1)[0][0] for n in range(3)]
        assert drawn[-1] > above
    assert_unique(drawn)
