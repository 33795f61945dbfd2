"""The answer to the write of a mark shows whether it is stored; then it is not read again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from sqla_tickets.high_water import service
from sqla_tickets.high_water import store as store_module
from sqla_tickets.high_water.peer import Peer
from sqla_tickets.high_water.statements import MARKS, Mark
from sqla_tickets.high_water.timing import TIMING
from tests.support.draws import PATIENCE, run
from tests.support.high_water_marks import marks_on
from tests.support.timing import set_timing

ABOUT = 2
UNREAD = 100


def stored(url: URL) -> Mark:
    [(name, stride, offset, token, number)] = run(url, f"SELECT * FROM {MARKS}")
    return Mark(str(name), *(int(str(n)) for n in (stride, offset, token, number)))


def first_peer(pool: TicketPool) -> Peer:
    return pool._marks._peers[0]


def draw_and_write(pool: TicketPool, *names: str) -> None:
    """Draw from each table of some sequences, and wait until the marks are written."""
    for server in pool.servers:
        for name in names:
            server.draw(name, 50)
    pool._marks.flush()


def changed(mark: Mark) -> dict[str, Mark]:
    return {
        "higher": mark._replace(number=mark.number + 100),
        "the same": mark,
        "lower": mark._replace(number=mark.number - 1),
        "of another generation": mark._replace(number=mark.number + 100, token=mark.token + 1),
    }


#: Their answers show a mark that is there. Other servers count the rows that a write has changed.
SHOW_MARKS = ("mysql", "mariadb")


@pytest.mark.parametrize("which", ["higher", "the same", "lower", "of another generation"])
def test_only_a_mark_that_is_stored_is_shown(
    ticket_urls: list[URL], pool: TicketPool, which: str
) -> None:
    draw_and_write(pool, "photos")
    before = stored(ticket_urls[0])
    mark = changed(before)[which]
    [written] = first_peer(pool).store.write([mark])
    after = mark if which == "higher" else before
    is_shown = which == "higher" or (mark.token == before.token and shows_marks(ticket_urls[0]))
    assert written.mark == mark
    assert written.stored == (after.number if is_shown else None)
    assert stored(ticket_urls[0]) == after


def shows_marks(url: URL) -> bool:
    return url.get_backend_name() in SHOW_MARKS


@pytest.mark.parametrize("singly", [0, 2])
def test_marks_written_together_are_each_shown_as_stored(
    ticket_urls: list[URL], pool: TicketPool, monkeypatch: pytest.MonkeyPatch, singly: int
) -> None:
    set_timing(monkeypatch, store_module, marks_singly=singly)
    pool.create_table("it's 100 %")
    draw_and_write(pool, "photos", "it's 100 %")
    rows = run(ticket_urls[0], f"SELECT * FROM {MARKS} ORDER BY 1")
    marks = [Mark(str(row[0]), *(int(str(n)) for n in row[1:])) for row in rows]
    higher = [mark._replace(number=mark.number + 100) for mark in marks]
    mixed = [higher[0]._replace(number=marks[0].number - 1), higher[1]._replace(number=10**6)]
    store = first_peer(pool).store
    assert [written.stored for written in store.write(higher)] == [m.number for m in higher]
    are_shown = singly and shows_marks(ticket_urls[0])
    found = {written.mark: written.stored for written in store.write(mixed)}
    after = [higher[0].number, 10**6] if are_shown else [None, None]
    assert found == dict(zip(mixed, after, strict=True))
    [(number,)] = run(ticket_urls[0], f"SELECT MAX(mark) FROM {MARKS}")
    assert number == 10**6


def test_mark_of_a_row_that_is_gone_is_inserted_again(
    ticket_urls: list[URL], pool: TicketPool
) -> None:
    draw_and_write(pool, "photos")
    mark = stored(ticket_urls[0])
    run(ticket_urls[0], f"DELETE FROM {MARKS}")
    first_peer(pool).store.write([mark])
    assert stored(ticket_urls[0]) == mark


def test_a_forged_mark_in_the_answer_is_not_believed(
    ticket_urls: list[URL], pool: TicketPool
) -> None:
    """It is read, and judged as any other one."""
    draw_and_write(pool, "photos")
    run(ticket_urls[0], f"UPDATE {MARKS} SET mark = {2**62}")
    table = pool.servers[ABOUT - 1].table("photos")
    before = table.high_water
    pool.servers[ABOUT - 1].draw("photos", 50)
    pool._marks.flush()
    assert table.largest_shown < 2**62
    assert first_peer(pool).stored(table) < 2**62
    assert table.high_water > before
    pool.servers[ABOUT - 1].draw("photos", 50)


def write_until(pool: TicketPool, url: URL, number: int, draw: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while marks_on(url).get(("photos", ABOUT), 0) < number:
        assert time.monotonic() < deadline, marks_on(url)
        draw()


def test_mark_is_read_again_only_when_far_behind(
    ticket_urls: list[URL], pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What servers with a larger stride show is read then, too."""
    set_timing(monkeypatch, service, interval_seconds=0.0)
    server, peer = pool.servers[ABOUT - 1], first_peer(pool)
    write_until(pool, ticket_urls[0], 10, lambda: server.draw("photos", 1))
    pool._marks.flush()
    reads: list[object] = []
    original = peer.store.read

    def read(names: Collection[str], *, patient: bool = False) -> object:
        reads.append(names)
        return original(names, patient=patient)

    monkeypatch.setattr(peer.store, "read", read)
    table = server.table("photos")
    near = table.high_water + 2 * UNREAD
    write_until(pool, ticket_urls[0], near, lambda: server.draw("photos", 1))
    pool._marks.flush()
    assert not reads, "each write was answered"
    assert peer.stored(table) < near, "the lead is counted from what was read"
    server.draw("photos", TIMING.unread_tickets + 1)
    write_until(pool, ticket_urls[0], table.high_water, lambda: server.draw("photos", 1))
    pool._marks.flush()
    assert reads
    assert peer.stored(table) > 2 * TIMING.unread_tickets
