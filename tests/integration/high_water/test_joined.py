"""Clients with the stride of before a growth stop where the servers with the larger stride begin."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import (
    TicketIntegrityError,
    TicketPool,
    TicketsExhausted,
    TicketTableError,
    TicketTableMoved,
)
from sqla_tickets.high_water import peer, service
from sqla_tickets.high_water.sequence_marks import SequenceMarks
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.maintenance import operations, resize
from sqla_tickets.maintenance.handle import TableHandle
from tests.support.command_line import options, run_cli
from tests.support.draws import OpenPool, assert_unique, run, until
from tests.support.servers import ServerFixtures
from tests.support.timing import set_timing

GAP = 400
#: More than a process draws, one at a time, before it has read its peers' marks.
FAR = 200_000
#: Every class of numbers that two servers had; four have them now.
OLD, NEW = 2, 4


@pytest.fixture
def urls(ticket_kind: str, servers: ServerFixtures, tmp_path: Path) -> list[URL]:
    """Four ticket databases."""
    if ticket_kind == "sqlite":
        return [URL.create("sqlite", database=str(tmp_path / f"{n}.db")) for n in range(4)]
    return [servers.fresh_database(servers.shared(ticket_kind, n % 2)) for n in range(4)]


@pytest.fixture
def old(urls: list[URL], open_pool: OpenPool) -> TicketPool:
    pool: TicketPool = open_pool(urls[:OLD])
    pool.create_table("photos")
    return pool


def grow(urls: list[URL], gap: int = GAP, name: str = "photos") -> int:
    """Open the sequence on the servers that join; returns the number above which they begin."""
    with TicketPool(urls[:OLD]) as before, TicketPool(urls, stride=NEW) as after:
        return resize.begin(before, after, name, gap=gap)


def draw_all(pool: TicketPool, stride: int = NEW, *, n: int = 1) -> list[int]:
    """Draw ``n`` at a time until no server gives any, as servers with a larger stride issue the next ones."""
    ids: list[int] = []

    def draw() -> None:
        while len(ids) < 3 * GAP * n:
            ids.extend(pool.next_ids("photos", n))

    with pytest.raises(TicketsExhausted, match=f"stride={stride}"):
        draw()
    return ids


def draw_until_bounded(pool: TicketPool) -> list[int]:
    """Draw until the process knows where servers joined."""
    ids: list[int] = []

    def is_bounded() -> bool:
        ids.append(pool.next_id("photos"))
        return pool.servers[0].table("photos").joined is not None

    until(is_bounded)
    return ids


def joined_tickets(urls: list[URL], n: int = 2 * GAP) -> list[int]:
    """The first tickets of the servers that joined."""
    with TicketPool(urls, stride=NEW) as pool:
        return [i for server in pool.servers[OLD:] for b in server.draw("photos", n) for i in b]


def test_new_process_with_the_old_stride_stops_at_the_gap(
    old: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    ids = old.next_ids("photos", 9)
    above = grow(urls)
    ids += draw_all(open_pool(urls[:OLD]))
    assert max(ids) > above - 2 * OLD
    assert_unique(ids + joined_tickets(urls))


def test_running_process_with_the_old_stride_stops_at_the_gap(
    old: TicketPool, urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads where they begin when it next writes its marks."""
    set_timing(monkeypatch, service, interval_seconds=0.01)
    ids = [old.next_id("photos") for _ in range(9)]
    above = grow(urls, FAR)
    ids += draw_until_bounded(old)
    ids += draw_all(old, n=GAP)
    assert max(ids) > above - 2 * OLD * GAP
    assert_unique(ids + joined_tickets(urls))


def test_block_beyond_the_gap_of_a_running_process_is_discarded(
    old: TicketPool, urls: list[URL]
) -> None:
    """Far above the peers' marks, it waits for newer ones, and reads where the others begin."""
    ids = [old.next_id("photos") for _ in range(9)]
    grow(urls, gap=old._marks.margin)
    with contextlib.suppress(TicketsExhausted):
        ids += old.next_ids("photos", 150_000)
    assert_unique(ids + joined_tickets(urls, 200_000))


def test_draw_from_one_server_beyond_the_gap_is_discarded(old: TicketPool, urls: list[URL]) -> None:
    for server in old.servers:
        server.draw("photos", 1)
    grow(urls, gap=old._marks.margin)
    with pytest.raises(TicketsExhausted, match="stride=4"):
        old.servers[0].draw("photos", 150_000)


def test_ticket_beyond_the_gap_that_others_used_up_is_discarded(
    old: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    """The process has seen a number far below the end, to which others have drawn since."""
    old.next_ids("photos", 9)
    above = grow(urls)
    late = open_pool(urls[:OLD])
    for server in late.servers:
        server.draw("photos", 1)
    draw_all(open_pool(urls[:OLD]))
    assert max(server.table("photos").fence for server in late.servers) < above - GAP // 2
    for server in late.servers:
        with pytest.raises(TicketsExhausted, match="stride=4"):
            server.draw("photos", 1)


def test_servers_join_above_marks_of_the_old_stride(urls: list[URL]) -> None:
    """Rows that were set back do not show how far the old servers had come."""
    with TicketPool(urls[:OLD]) as pool:
        pool.create_table("albums", layout="counter", start=10**6)
        ids = [pool.next_id("albums") for _ in range(9)]
    for url, number in zip(urls[:OLD], (3, 4), strict=True):
        run(url, f"UPDATE albums SET id = {number}")
    assert grow(urls, name="albums") > max(ids)


def test_growth_does_not_bound_clients_with_the_new_stride(
    old: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    ids = old.next_ids("photos", 9)
    above = grow(urls)
    new = open_pool(urls, NEW)
    ids += new.next_ids("photos", 9)
    with TicketPool(urls, stride=NEW) as finishing:
        resize.finish(finishing, "photos")
    old_servers = open_pool(urls, NEW).servers[:OLD]
    ids += [i for s in old_servers for b in s.draw("photos", GAP) for i in b]
    assert max(ids[-GAP:]) > above
    assert_unique(ids)


def test_sequence_that_was_dropped_since_is_not_bound(
    old: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    old.next_ids("photos", 9)
    grow(urls)
    stopped = open_pool(urls[:OLD])
    draw_all(stopped)
    with TicketPool(urls, stride=NEW) as new:
        for server in new.servers[OLD:]:
            server.drop("photos")
    with TicketPool(urls[:OLD]) as again:
        again.drop_table("photos")
        again.create_table("photos")
    later = open_pool(urls[:OLD])
    assert max(later.next_ids("photos", 2 * GAP)) > 2 * GAP


def test_only_pool_server_stops_at_the_gap(
    urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no peers, and reads its own table of marks."""
    for module in (service, peer):
        set_timing(monkeypatch, module, interval_seconds=0.01)
    running = open_pool(urls[:1])
    running.create_table("photos")
    ids = [running.next_id("photos") for _ in range(9)]
    with TicketPool(urls[:1]) as before, TicketPool(urls[:2]) as after:
        above = resize.begin(before, after, "photos", gap=FAR)
    ids += draw_until_bounded(running)
    ids += draw_all(running, stride=2, n=GAP)
    ids += draw_all(running, stride=2)
    assert draw_all(open_pool(urls[:1]), stride=2) == []
    assert_unique(ids)
    assert max(ids) <= above


# -- a growth that was begun before, or whose servers are restored or cloned


def wipe(pool: TicketPool, *servers: int) -> None:
    for server in servers:
        pool.servers[server].drop("photos")


def test_gap_recorded_by_a_killed_run_is_not_undercut(
    old: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    """The old servers are bounded by the larger number, so the others begin above it."""
    new = open_pool(urls, stride=NEW)
    marks = new._marks.of("photos")
    marks.prepare(opens_above=0)
    marks.write_joined(10**12)
    above = grow(urls)
    assert max(n or 0 for n in old._marks.of("photos").larger_joined().values()) <= above
    assert min(joined_tickets(urls, 1)) > above


def test_joined_server_that_is_missing_begins_above_the_gap(
    old: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    """The run before was killed after it had opened one of them, and had a larger gap."""
    recorded = grow(urls, gap=10**6)
    wipe(open_pool(urls, stride=NEW), 3)
    grow(urls)
    assert min(joined_tickets(urls, 1)) > recorded


def test_growth_after_an_abandoned_one_repeats_no_ticket(
    old: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    """The servers that joined were taken away again, and their tickets are on the shards."""
    grow(urls)
    with TicketPool(urls, stride=NEW) as pool:
        ids = [i for server in pool.servers[OLD:] for i in server.draw("photos", 50)[0]]
        wipe(pool, 2, 3)
    grow(urls, gap=10**6)
    ids += [i for s in open_pool(urls[:OLD]).servers for i in s.draw("photos", 900)[0]]
    assert_unique(ids + joined_tickets(urls))


def test_growth_after_one_to_another_stride_is_refused(old: TicketPool, urls: list[URL]) -> None:
    """What the servers of that growth issued is known by its stride only."""
    grow(urls)
    with TicketPool(urls, stride=NEW) as pool:
        wipe(pool, 2, 3)
    with TicketPool(urls, stride=2 * NEW) as wide:
        for find in (resize.begins_above, resize.begin):
            with pytest.raises(TicketTableError, match=f"to a stride of {NEW} first"):
                find(old, wide, "photos", gap=GAP)


def test_table_of_a_server_that_joins_is_not_taken_for_joined(
    old: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    """It is an old server's copy, whose number is of the class that this one is to have."""
    copy = TableHandle(open_pool(urls, stride=NEW).servers[2], "default", "photos")
    copy.server.create(copy.element(100))
    with pytest.raises(TicketTableError, match="exists already"):
        grow(urls)


def test_restored_server_is_not_raised_above_the_gap(
    old: TicketPool, urls: list[URL], tmp_path: Path
) -> None:
    """The backup is older than the growth, and the largest ids are of the servers that joined."""
    old.next_ids("photos", 9)
    above = grow(urls, gap=10**7)
    run(urls[0], f"DELETE FROM {MARKS} WHERE mark = {above}")
    before = old.servers[0].last_ticket("photos")
    with pytest.raises(TicketTableError, match=f"above {above}"):
        operations.raise_above(old, "photos", above + 100)
    assert old.servers[0].last_ticket("photos") == before
    shard = URL.create("sqlite", database=str(tmp_path / "shard.db"))
    run(
        shard,
        "CREATE TABLE photos (id BIGINT PRIMARY KEY)",
        f"INSERT INTO photos VALUES ({above + 9})",
    )
    found = ("--shard", shard.render_as_string(False))
    done = run_cli("restore", "--yes", "photos", "--offset", 1, *found, *options(urls[:OLD]))
    assert done.code == 0, done.text
    assert before < old.servers[0].last_ticket("photos") < above
    grow(urls)  # which writes it again, as the doctor advises
    assert set(old._marks.of("photos").larger_joined().values()) == {above}


def test_old_server_restored_after_the_growth_issues_nothing(
    old: TicketPool, urls: list[URL], open_pool: OpenPool
) -> None:
    """A client with the old stride knows only the marks of that stride."""
    number = old.servers[0].draw("photos", 9)[0][-1]
    grow(urls)
    new = open_pool(urls, stride=NEW)
    resize.finish(new, "photos")
    handle = TableHandle(old.servers[0], "default", "photos")
    new.servers[0].drop("photos")
    handle.server.create(handle.element(number + 1))
    with pytest.raises((TicketsExhausted, TicketIntegrityError)):
        open_pool(urls[:OLD]).servers[0].draw("photos", 1)


def test_sequence_that_moves_while_a_server_joins_is_reported(
    urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the server that joined would go on with numbers of the sequence that has left."""
    with (
        TicketPool(urls[:1], stride=OLD) as old,
        TicketPool(urls[:2], stride=OLD) as new,
        TicketPool(urls[2:], name="media") as media,
    ):
        old.create_table("albums")
        prepare = SequenceMarks.prepare

        def prepare_late(marks: SequenceMarks, *, opens_above: int | None = None) -> int:
            with monkeypatch.context() as patch:
                patch.setattr(SequenceMarks, "prepare", prepare)
                operations.move(old, "albums", media)
            return prepare(marks, opens_above=opens_above)

        with monkeypatch.context() as patch:
            patch.setattr(SequenceMarks, "prepare", prepare_late)
            with pytest.raises(TicketTableError, match="closed by another command"):
                resize.begin(old, new, "albums")
        operations.move(new, "albums", media)
        with pytest.raises(TicketTableMoved):
            new.servers[1].draw("albums", 1)
