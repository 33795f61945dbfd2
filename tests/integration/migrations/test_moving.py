"""A sequence moves, is renamed and converted while others draw from it."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import pymysql
import pytest
from sqlalchemy import URL, MetaData

from sqla_tickets import (
    TicketError,
    TicketIntegrityError,
    TicketPool,
    TicketTableError,
    TicketTableMissing,
    TicketTableMoved,
)
from sqla_tickets.dialects import LayoutName
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.maintenance import operations
from sqla_tickets.maintenance.handle import TableHandle
from sqla_tickets.maintenance.tombstones import Destination
from sqla_tickets.maintenance.transfer import Transfer
from sqla_tickets.tables import inspection
from sqla_tickets.tables.context import StatementContext
from sqla_tickets.tables.metadata import Tombstone
from tests.support.command_line import options, run_cli
from tests.support.draws import FLICKRS_TABLE, PATIENCE, assert_unique, from_one_start, run
from tests.support.servers import ServerFixtures, plain_client

#: The tickets of a client, its error if any, and its longest draw in seconds.
Answer = tuple[list[int], str, float]
_context = from_one_start()


def _draw_until(
    urls: list[URL],
    more_urls: list[URL],
    sequence: str,
    n: int,
    begin: Barrier,
    end: Event,
    answers: Queue[Answer],
) -> None:
    """A client with both pools attached."""
    drawn: list[int] = []
    metadata = MetaData()
    error, longest = "", 0.0
    with TicketPool(urls) as default, TicketPool(more_urls, name="media") as media:
        default.attach(metadata)
        media.attach(metadata)
        try:
            drawn += default.next_ids(sequence, n)
            begin.wait(2 * PATIENCE)
            while not end.is_set():
                began = time.perf_counter()
                drawn += default.next_ids(sequence, n)
                longest = max(longest, time.perf_counter() - began)
        except Exception as failure:  # noqa: BLE001  # that there is none is what is tested
            error = repr(failure)
    answers.put((drawn, error, longest))


@contextmanager
def clients(urls: list[URL], more_urls: list[URL]) -> Iterator[list[int]]:
    """Four processes that draw at full speed; at the end, their tickets.

    None may have failed, as one does that has waited for longer than `Timing.move_seconds` for a move to end.
    """
    with TicketPool(urls) as pool:
        pool.create_table("untouched")
    begin, end, answers = _context.Barrier(6), _context.Event(), _context.Queue()
    bystanders: Queue[Answer] = _context.Queue()
    places = [("photos", n, answers) for n in (1, 1, 1, 7)] + [("untouched", 1, bystanders)]
    processes = [
        _context.Process(
            target=_draw_until, args=(urls, more_urls, name, n, begin, end, to), daemon=True
        )
        for name, n, to in places
    ]
    for process in processes:
        process.start()
    drawn: list[int] = []
    try:
        begin.wait(PATIENCE)
        yield drawn
    finally:
        end.set()
        found = [answers.get(timeout=PATIENCE) for _ in range(4)]
        _, error, waited = bystanders.get(timeout=PATIENCE)
        for process in processes:
            process.join(PATIENCE)
    assert [error, *(error for _, error, _ in found)] == [""] * 5
    longest = max(seconds for _, _, seconds in found)
    print(f"the longest draw: {longest:.3f} s; of the untouched sequence: {waited:.3f} s")
    for tickets, _, _ in found:
        drawn += tickets


@pytest.mark.ticket_servers("mariadb", "postgresql")
def test_ten_moves_under_four_processes(
    default: TicketPool,
    ticket_urls: list[URL],
    media_urls: list[URL],
    ticket_kind: str,
    servers: ServerFixtures,
) -> None:
    """On MariaDB each table goes to the other server, elsewhere to another database."""
    if ticket_kind == "mariadb":
        media_urls = [servers.fresh_database(servers.mariadb(1 - n)) for n in range(2)]
    default.create_table("photos")
    mine = []
    with TicketPool(media_urls, name="media") as media, clients(ticket_urls, media_urls) as drawn:
        for _ in range(5):
            mine += default.next_ids("photos", 3)
            operations.move(default, "photos", media)
            mine += media.next_ids("photos", 3)
            operations.move(media, "photos", default)
    drawn += mine
    assert len(set(drawn)) == len(drawn)


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_ten_conversions_under_four_processes(
    default: TicketPool, ticket_urls: list[URL], media_urls: list[URL]
) -> None:
    default.create_table("photos")
    layouts: list[LayoutName] = ["counter", "replace"]
    with clients(ticket_urls, media_urls) as drawn:
        for _ in range(5):
            for layout in layouts:
                operations.convert(default, "photos", layout)
    assert len(set(drawn)) == len(drawn)


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_a_conversion_between_two_statements_of_an_inspection(
    default: TicketPool, ticket_urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    default.create_table("photos", layout="replace")
    drawn, read = default.next_ids("photos", 5), inspection.number

    def converted(
        context: StatementContext, name: str, layout: LayoutName, stub: str
    ) -> int | None:
        monkeypatch.undo()
        operations.convert(default, "photos", "counter")
        return read(context, name, layout, stub)

    with TicketPool(ticket_urls) as pool:
        monkeypatch.setattr(inspection, "number", converted)
        drawn.append(pool.servers[0].draw("photos", 1)[0][0])
        assert inspection.number is read
    assert len(set(drawn)) == len(drawn)


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_a_conversion_since_the_inspection_hides_no_ticket(
    default: TicketPool, ticket_urls: list[URL]
) -> None:
    default.create_table("photos", layout="replace")
    default.next_ids("photos", 5)
    with TicketPool(ticket_urls) as pool:
        shown = [server.last_ticket("photos") for server in default.servers]
        operations.convert(pool, "photos", "counter")
        now = [server.last_ticket("photos") for server in default.servers]
    assert all(last >= before for last, before in zip(now, shown, strict=True))


@pytest.mark.ticket_servers("mariadb", "mysql", "sqlite")
def test_renames_are_followed(default: TicketPool) -> None:
    default.create_table("photos")
    drawn = default.next_ids("photos", 5)
    operations.rename(default, "photos", "pictures")
    drawn += default.next_ids("photos", 5) + default.next_ids("pictures", 5)
    operations.rename(default, "pictures", "photos")
    drawn += default.next_ids("pictures", 5) + default.next_ids("photos", 5)
    assert len(set(drawn)) == len(drawn) == 25


def test_who_has_one_pool_only_is_told_where_it_went(
    default: TicketPool, media: TicketPool
) -> None:
    default.create_table("photos")
    operations.move(default, "photos", media)
    with pytest.raises(TicketTableMoved, match=r"has moved.*'photos' of the pool 'media'"):
        default.next_id("photos")


def test_the_new_pool_serves_before_the_move_has_begun_to_end(
    default: TicketPool, media: TicketPool
) -> None:
    metadata = MetaData()
    default.attach(metadata)
    media.attach(metadata)
    default.create_table("photos")
    drawn = default.next_ids("photos", 5)
    operations.move(default, "photos", media)
    drawn += default.next_ids("photos", 5) + media.next_ids("photos", 5)
    operations.move(media, "photos", default)
    drawn += default.next_ids("photos", 5) + media.next_ids("photos", 5)
    assert len(set(drawn)) == len(drawn) == 25


def test_draw_that_follows_a_move_warns_nobody(
    default: TicketPool, media: TicketPool, caplog: pytest.LogCaptureFixture
) -> None:
    """The move is no failure of the servers that it left, as both pools are attached."""
    metadata = MetaData()
    default.create_table("photos")
    operations.move(default, "photos", media)
    with default.attached(metadata), media.attached(metadata), caplog.at_level(logging.INFO):
        assert default.next_ids("photos", 5)
    assert "following the sequence 'photos'" in caplog.text
    assert "of the pool 'media'" in caplog.text
    assert "has failed" not in caplog.text
    assert "attach" not in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_client_without_the_new_pool_follows_nothing(
    default: TicketPool, media: TicketPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its draws fails; with both pools, a process logs once for each sequence that it follows."""
    default.create_table("photos")
    operations.move(default, "photos", media)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            with pytest.raises(TicketTableMoved):
                default.next_id("photos")
        assert "following" not in caplog.text
        metadata = MetaData()
        with default.attached(metadata), media.attached(metadata):
            assert len({default.next_id("photos") for _ in range(3)}) == 3
    assert caplog.text.count("following the sequence 'photos'") == 1


def test_two_moves_to_two_pools_at_once(
    default: TicketPool, media: TicketPool, servers: ServerFixtures
) -> None:
    """The one that has looked, and comes second, finds the tombstone of the other."""
    urls = [servers.fresh_database(servers.mariadb(n)) for n in range(2)]
    with TicketPool(urls, name="third") as third:
        default.create_table("photos")
        drawn = default.next_ids("photos", 4)
        late = Transfer(
            [TableHandle(s, "default", "photos") for s in default.servers],
            [TableHandle(s, "third", "photos") for s in third.servers],
        )
        assert late.is_to_be_done()
        operations.move(default, "photos", media)
        late.claim_targets()
        with pytest.raises(TicketError, match="changed by another client"):
            late.run(0, 0, default._marks.of("photos"), third._marks.of("photos"))
        drawn += media.next_ids("photos", 8)
        with pytest.raises(TicketTableMoved):
            third.next_id("photos")
    assert len(set(drawn)) == 12


# -- servers that are restored from a backup, or emptied


def set_up_anew(pool: TicketPool, server: int, *, number: int) -> None:
    """Give a server the table of an earlier time."""
    handle = TableHandle(pool.servers[server], pool.name, "photos")
    handle.server.drop("photos")
    handle.server.create(handle.element(number + 1))


def test_source_restored_after_its_move_is_closed_again(
    default: TicketPool, media: TicketPool, ticket_urls: list[URL]
) -> None:
    """It issues none of the numbers that the sequence has issued elsewhere, not even after `restore`."""
    default.create_table("photos")
    drawn = [i for server in default.servers for i in server.draw("photos", 1)[0]]
    number = default.servers[0].last_ticket("photos")
    operations.move(default, "photos", media)
    drawn += media.next_ids("photos", 9)
    set_up_anew(default, 0, number=number)
    with TicketPool(ticket_urls) as later, pytest.raises(TicketIntegrityError):
        later.servers[0].draw("photos", 1)
    refused = run_cli("restore", "--yes", "photos", "--offset", 1, *options(ticket_urls))
    assert refused.code == 3
    assert "has become 'photos' of the pool 'media'" in refused.text
    operations.move(default, "photos", media)
    with pytest.raises(TicketTableMoved):
        default.servers[0].draw("photos", 1)
    drawn += media.next_ids("photos", 9)
    assert_unique(drawn)


def restored_after_rename(default: TicketPool) -> list[int]:
    """Restore the first server from before a rename of photos to pictures; returns the tickets of both."""
    default.create_table("photos")
    drawn = default.next_ids("photos", 5)
    number = default.servers[0].last_ticket("photos")
    operations.rename(default, "photos", "pictures")
    drawn += [i for server in default.servers for i in server.draw("pictures", 5)[0]]
    set_up_anew(default, 0, number=number)
    default.servers[0].drop("pictures")
    return drawn


def assert_repeated_rename_closes(
    default: TicketPool, ticket_urls: list[URL], drawn: list[int]
) -> None:
    """The rename, given again, closes photos on the first server, and pictures repeats no ticket."""
    operations.rename(default, "photos", "pictures")
    with TicketPool(ticket_urls) as later:
        with pytest.raises(TicketTableMoved):
            later.servers[0].draw("photos", 1)
        more = [i for server in later.servers for i in server.draw("pictures", 5)[0]]
    assert_unique(drawn + more)


def test_old_name_restored_after_its_rename_is_refused(
    default: TicketPool, ticket_urls: list[URL]
) -> None:
    drawn = restored_after_rename(default)
    with TicketPool(ticket_urls) as later, pytest.raises(TicketIntegrityError):
        later.servers[0].draw("photos", 1)
    assert_repeated_rename_closes(default, ticket_urls, drawn)


def test_repeated_move_leaves_alone_what_has_moved_on(
    default: TicketPool, media: TicketPool, tmp_path: Path
) -> None:
    """The restored server is closed, and the place that the sequence has left stays closed."""
    urls = [URL.create("sqlite", database=str(tmp_path / f"third{n}.db")) for n in range(2)]
    with TicketPool(urls, name="third") as third:
        default.create_table("photos", layout="counter")
        drawn = default.next_ids("photos", 5)
        number = default.servers[0].last_ticket("photos")
        operations.move(default, "photos", media)
        operations.move(media, "photos", third)
        drawn += third.next_ids("photos", 500_000)
        set_up_anew(default, 0, number=number)
        operations.move(default, "photos", media)
        for pool in (default, media):
            with pytest.raises(TicketTableMoved):
                pool.servers[0].draw("photos", 1)
        assert_unique(drawn + third.next_ids("photos", 9))


def test_repeated_rename_closes_a_name_whose_heir_was_made_again(
    default: TicketPool, ticket_urls: list[URL]
) -> None:
    drawn = restored_after_rename(default)
    default.create_table("pictures")
    assert_repeated_rename_closes(default, ticket_urls, drawn)


def test_earlier_name_is_shown_where_its_tombstone_is_lost(
    default: TicketPool, ticket_urls: list[URL]
) -> None:
    """Else its clients would draw nothing once the other servers are lost, too."""
    default.create_table("photos")
    operations.rename(default, "photos", "pictures")
    assert operations.names(default, with_moved=True) == {"pictures"}
    default.servers[0].drop("photos")
    assert operations.names(default, with_moved=True) == {"photos", "pictures"}
    shown = run_cli("status", *options(ticket_urls))
    assert shown.code == 1
    assert "sqla-tickets create photos" in shown.text
    default.create_table("photos")
    assert operations.names(default, with_moved=True) == {"pictures"}


@pytest.mark.parametrize("claimed", [1, 2])
def test_move_that_closed_no_table_is_taken_back(
    default: TicketPool, media: TicketPool, monkeypatch: pytest.MonkeyPatch, claimed: int
) -> None:
    """Its tombstones would keep the target's servers closed, and everybody from creating a table there."""
    default.create_table("photos")
    drawn = default.next_ids("photos", 9)
    claims, claim = list[TableHandle](), TableHandle.place_tombstone

    def claim_first(handle: TableHandle, *arguments: Any) -> Tombstone:
        if len(claims) == claimed:
            raise KeyboardInterrupt
        claims.append(handle)
        return claim(handle, *arguments)

    def close_none(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TableHandle, "place_tombstone", claim_first)
        patch.setattr(TableHandle, "close", close_none)
        with pytest.raises(KeyboardInterrupt):
            operations.move(default, "photos", media)
    operations.move(media, "photos", default)
    states = [TableHandle(s, "media", "photos").inspect() for s in media.servers]
    assert [state.kind for state in states if isinstance(state, Tombstone)] == ["moved"] * 2
    assert operations.check_move(media, "photos", default) is None
    drawn += default.next_ids("photos", 9)
    operations.move(default, "photos", media)
    drawn += media.next_ids("photos", 9)
    assert_unique(drawn)


def test_of_two_equal_moves_at_once_one_is_run_again(
    default: TicketPool, media: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has just opened the table, so nobody must be told to drop it."""
    default.create_table("photos")
    drawn, claim = default.next_ids("photos", 9), TableHandle.place_tombstone

    def claim_late(handle: TableHandle, *arguments: Any) -> Tombstone:
        monkeypatch.setattr(TableHandle, "place_tombstone", claim)
        operations.move(default, "photos", media)
        return claim(handle, *arguments)

    monkeypatch.setattr(TableHandle, "place_tombstone", claim_late)
    with pytest.raises(TicketTableError, match=r"just created or opened.*: run this again"):
        operations.move(default, "photos", media)
    operations.move(default, "photos", media)
    assert_unique(drawn + media.next_ids("photos", 9))


@pytest.mark.parametrize("then", ["again", "back"])
def test_half_a_rename_lets_nobody_create_the_other_half(
    default: TicketPool, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """A table of the new name would begin below the tickets that the old one has issued."""
    default.create_table("photos")
    drawn = [i for server in default.servers for i in server.draw("photos", 500)[0]]
    open_one, opened = TableHandle.open, list[TableHandle]()

    def open_first(handle: TableHandle, *arguments: Any) -> None:
        opened.append(handle)
        if len(opened) > 1:
            raise KeyboardInterrupt
        open_one(handle, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TableHandle, "open", open_first)
        with pytest.raises(KeyboardInterrupt):
            operations.rename(default, "photos", "pictures")
    with pytest.raises(TicketTableError, match="has not ended: run that migration again"):
        default.create_table("pictures")
    drawn += default.next_ids("photos", 9)
    names = ("photos", "pictures") if then == "again" else ("pictures", "photos")
    operations.rename(default, *names)
    drawn += [i for server in default.servers for i in server.draw(names[1], 9)[0]]
    assert_unique(drawn)


def test_server_lost_after_a_rename_begins_above_what_it_had_issued(
    default: TicketPool, ticket_urls: list[URL]
) -> None:
    """Nobody has drawn from it since, so only the rename can have told its peers."""
    default.create_table("photos")
    TableHandle(default.servers[1], "default", "photos").raise_above(200_000)
    (issued,) = default.servers[1].draw("photos", 1)
    operations.rename(default, "photos", "pictures")
    run(ticket_urls[1], "DROP TABLE pictures")
    with TicketPool(ticket_urls) as later:
        later.create_table("pictures")
        (ids,) = later.servers[1].draw("pictures", 1)
        assert ids[0] > issued[-1]


def test_source_that_was_set_back_moves_with_the_margin_of_its_own_mark(
    default: TicketPool, media: TicketPool
) -> None:
    """Another source is above that mark, but says nothing of what this one has issued since."""
    default.create_table("photos")
    (issued,) = default.servers[0].draw("photos", 5000)
    default.dispose()  # which writes the marks
    set_up_anew(default, 0, number=2000)
    TableHandle(default.servers[1], "default", "photos").raise_above(20_000)
    operations.move(default, "photos", media)
    (ids,) = media.servers[0].draw("photos", 1)
    assert ids[0] > issued[-1] + default._marks.margin


@pytest.mark.parametrize("is_rename", [False, True])
def test_source_lost_in_the_middle_of_its_move_repeats_nothing(
    is_rename: bool, default: TicketPool, media: TicketPool, ticket_urls: list[URL]
) -> None:
    """Only the first source was closed, and the clients of the second died with it."""
    target, new = (default, "pictures") if is_rename else (media, "photos")
    default.create_table("photos")
    first, lost = default.servers
    with TicketPool(ticket_urls) as clients:
        drawn = [
            i
            for n, server in zip((100, 20_000), clients.servers, strict=True)
            for i in server.draw("photos", n)[0]
        ]
    for server in target.servers:
        opening = Destination("opening", "default", "photos")
        TableHandle(server, target.name, new).place_tombstone(opening, None)
    TableHandle(first, "default", "photos").close("moved", target.name, new)
    lost.drop("photos")
    for server in default.servers:
        run(server.engine.url, f"DROP TABLE {MARKS}")
    default.create_table("photos")
    if is_rename:
        operations.rename(default, "photos", "pictures")
    else:
        operations.move(default, "photos", media)
    drawn += [i for server in target.servers for i in server.draw(new, 9)[0]]
    assert_unique(drawn)
    with pytest.raises(TicketTableMoved):
        lost.draw("photos", 1)


def test_interrupted_conversion_is_finished_under_another_name_of_the_pool(
    default: TicketPool, ticket_urls: list[URL]
) -> None:
    """As after a move, when the new servers take the name of the old pool."""
    default.create_table("photos", layout="counter")
    drawn = default.next_ids("photos", 9)
    TableHandle(default.servers[0], "default", "photos").close("converting", "default", "photos")
    with TicketPool(ticket_urls, name="renamed") as renamed:
        operations.convert(renamed, "photos", "counter")
        drawn += [i for server in renamed.servers for i in server.draw("photos", 9)[0]]
    assert_unique(drawn)


def interrupted(default: TicketPool, media: TicketPool) -> int:
    """A move that ended before it opened a table; returns the last ticket."""
    default.create_table("photos")
    last = max(default.next_ids("photos", 9))
    move = Transfer(
        [TableHandle(s, "default", "photos") for s in default.servers],
        [TableHandle(s, "media", "photos") for s in media.servers],
    )
    opening = Destination("opening", "default", "photos")
    for target in move._targets:
        target.place_tombstone(opening, None)
    for source in move._sources:
        source.close("moved", "media", "photos")
    return last


def test_interrupted_move_to_an_emptied_server_is_finished(
    default: TicketPool, media: TicketPool
) -> None:
    last = interrupted(default, media)
    media.servers[0].drop("photos")
    operations.move(default, "photos", media)
    assert min(i for server in media.servers for i in server.draw("photos", 1)[0]) > last


def test_interrupted_move_to_emptied_servers_names_a_start(
    default: TicketPool, media: TicketPool
) -> None:
    """Nothing on the targets shows how far the sequence has come."""
    last = interrupted(default, media)
    for server in media.servers:
        server.drop("photos")
    with pytest.raises(TicketTableMissing, match=r"with a start above (\d+)") as refused:
        operations.move(default, "photos", media)
    named = re.search(r"above (\d+)", str(refused.value))
    assert named
    assert int(named[1]) >= last


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_foreign_table_is_not_extended_to_another_server(
    default: TicketPool, ticket_urls: list[URL]
) -> None:
    """Its clients may count by a smaller stride than the pool's."""
    table = FLICKRS_TABLE.format(name="photos", engine="InnoDB")
    run(ticket_urls[0], table, "INSERT INTO photos VALUES (1001, 'a')")
    with pytest.raises(TicketTableError, match="without metadata") as refused:
        default.create_table("photos")
    command = re.search(r"ALTER TABLE .*?'(?=\.)", str(refused.value))
    assert command
    run(ticket_urls[0], command[0])
    default.create_table("photos")


# -- a client between finding out what the table is, and its statement

STATEMENTS = {
    "replace": "REPLACE INTO photos (stub) VALUES ('a')",
    "counter": "UPDATE photos SET id = LAST_INSERT_ID(id + 2) WHERE stub = 'c'",
}
FENCES: dict[str, Callable[[TicketPool, TicketPool, LayoutName], object]] = {
    "move": lambda default, media, layout: operations.move(default, "photos", media),
    "rename": lambda default, media, layout: operations.rename(default, "photos", "pictures"),
    "drop": lambda default, media, layout: operations.drop(default, "photos"),
    "convert": lambda default, media, layout: operations.convert(
        default, "photos", "counter" if layout == "replace" else "replace"
    ),
}


@pytest.mark.ticket_servers("mariadb", "mysql")
@pytest.mark.parametrize("layout", ["replace", "counter"])
@pytest.mark.parametrize("fence", FENCES)
@pytest.mark.parametrize("mode", ["STRICT_TRANS_TABLES", ""])
def test_a_late_statement_draws_nothing(
    default: TicketPool,
    media: TicketPool,
    ticket_urls: list[URL],
    layout: LayoutName,
    fence: str,
    mode: str,
) -> None:
    default.create_table("photos", layout=layout)
    default.next_ids("photos", 4)
    url = ticket_urls[0]
    late = plain_client(url)
    with late, late.cursor() as cursor:
        cursor.execute(f"SET sql_mode = '{mode}'")
        cursor.execute(STATEMENTS[layout])
        assert cursor.lastrowid > 1
        FENCES[fence](default, media, layout)
        try:
            cursor.execute(STATEMENTS[layout])
        except pymysql.err.MySQLError:
            return
        assert cursor.lastrowid == 0, "a ticket from a table that is closed"
        assert cursor.rowcount == 0


@pytest.mark.ticket_servers("mariadb", "mysql")
@pytest.mark.parametrize("layout", ["replace", "counter"])
def test_the_fence_waits_for_a_statement_in_flight(
    default: TicketPool, media: TicketPool, ticket_urls: list[URL], layout: LayoutName
) -> None:
    """A draw that has its number, and not yet its end, lies below what the target begins with."""
    default.create_table("photos", layout=layout)
    url = ticket_urls[0]
    slow = plain_client(url, autocommit=False)
    with slow, slow.cursor() as cursor:
        for _ in range(50):
            cursor.execute(STATEMENTS[layout])
        moving = threading.Thread(target=operations.move, args=(default, "photos", media))
        moving.start()
        cursor.execute(STATEMENTS[layout])
        in_flight = cursor.lastrowid
        slow.commit()
        moving.join()
    assert min(media.next_ids("photos", 4)) > in_flight
