"""The answer to the write of a mark shows whether it is stored; then it is not read again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from sqla_tickets.high_water import service
from sqla_tickets.high_water.peer import Peer
from sqla_tickets.high_water.statements import MARKS, Mark
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


def changed(mark: Mark) -> dict[str, Mark]:
    return {
        "higher": mark._replace(number=mark.number + 100),
        "the same": mark,
        "lower": mark._replace(number=mark.number - 1),
        "of another generation": mark._replace(number=mark.number + 100, token=mark.token + 1),
    }


@pytest.mark.parametrize(
    ("which", "is_shown"),
    [("higher", True), ("the same", False), ("lower", False), ("of another generation", False)],
)
def test_only_a_mark_that_is_stored_is_shown(
    ticket_urls: list[URL], pool: TicketPool, which: str, is_shown: bool
) -> None:
    for server in pool.servers:
        server.draw("photos", 50)
    pool._marks.flush()
    before = stored(ticket_urls[0])
    mark = changed(before)[which]
    [written] = first_peer(pool).store.write([mark])
    assert (written.mark, written.is_shown) == (mark, is_shown)
    assert stored(ticket_urls[0]) == (mark if is_shown else before)


def test_two_marks_are_shown_only_if_both_are_stored(
    ticket_urls: list[URL], pool: TicketPool
) -> None:
    pool.create_table("users")
    for server in pool.servers:
        server.draw("photos", 50)
        server.draw("users", 50)
    pool._marks.flush()
    rows = run(ticket_urls[0], f"SELECT * FROM {MARKS} ORDER BY 1")
    marks = [Mark(str(row[0]), *(int(str(n)) for n in row[1:])) for row in rows]
    higher = [mark._replace(number=mark.number + 100) for mark in marks]
    lower = [higher[0]._replace(number=marks[0].number - 1), higher[1]._replace(number=10**6)]
    store = first_peer(pool).store
    assert [written.is_shown for written in store.write(higher)] == [True, True]
    assert [written.is_shown for written in store.write(lower)] == [False, False]


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
    server.draw("photos", 20_000)
    write_until(pool, ticket_urls[0], table.high_water, lambda: server.draw("photos", 1))
    pool._marks.flush()
    assert reads
    assert peer.stored(table) > 40_000
