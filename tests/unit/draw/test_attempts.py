"""How often a server is asked again, and for how long, when what it failed with says nothing against it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine.interfaces import DBAPICursor

from sqla_tickets import TicketPool
from sqla_tickets.connect.connection import Connection
from sqla_tickets.connect.cursor import DrawCursor
from sqla_tickets.dialects import ErrorKind
from sqla_tickets.dialects.sqlite import SQLite
from sqla_tickets.draw.table_state import TicketTable, ToldMark
from sqla_tickets.errors import Crowded
from sqla_tickets.tables.context import StatementContext
from sqla_tickets.tables.layouts import Layout


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[TicketPool]:
    """One file, whose draws end after a fifth of a second."""
    with TicketPool([f"sqlite:///{tmp_path}/one.db"], timeout=0.1, lock_wait=0.1) as tickets:
        tickets.create_table("photos")
        tickets.next_id("photos")
        yield tickets


@pytest.fixture
def doubting_pool(tmp_path: Path) -> Iterator[TicketPool]:
    """Two files, of which the second keeps a doubtful mark of the first one's table."""
    with TicketPool([f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]) as tickets:
        tickets.create_table("photos")
        server, peer = tickets.servers
        server.draw("photos", 1)
        server.table("photos").doubtful_marks[peer] = ToldMark(10**17 + 1, 1, None)
        yield tickets


def test_work_goes_to_one_new_connection_after_a_lost_one(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads give connections back that are as dead, for as long as they have some."""
    server, sent = pool.servers[0], 0
    connections = server.connections
    close_idle = connections.close_idle

    def close_idle_and_be_given_another() -> None:
        close_idle()
        connections.release(connections.open())

    def lose(context: StatementContext) -> None:
        nonlocal sent
        sent += 1
        if sent < 10:
            raise ConnectionError("server closed the connection")

    monkeypatch.setattr(connections, "close_idle", close_idle_and_be_given_another)
    with pytest.raises(ConnectionError):
        server.use(lose)
    assert sent == 2


class Deadlocks:
    """A layout whose draws take a twentieth of a second, and end in a deadlock.

    Attributes:
        draws: how many there were.
        are_slow: whether each takes as long as where many clients draw.
    """

    name, stub = "counter", "stub"

    def __init__(self) -> None:
        self.draws, self.are_slow = 0, False

    def draw(self, cursor: DBAPICursor, n: int, *, has_waited: bool = False) -> list[range]:
        self.draws += 1
        time.sleep(0.05)
        raise OSError("deadlock detected")

    def lock_timed_out(self, n: int) -> None:
        raise AssertionError(n)

    def took_long(self, n: int, seconds: float) -> None:
        self.are_slow = True

    def adapts(self, kind: ErrorKind, n: int) -> bool:
        return False


def test_deadlocks_do_not_outlast_the_time_of_a_draw(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SQLite, "error_texts", {"deadlock": ErrorKind.DEADLOCK})
    deadlocks: Any = Deadlocks()
    pool.servers[0].table("photos").layout = deadlocks
    with pytest.raises(Crowded):  # as others are served: where no server is left, it queues again
        pool.servers[0].draw("photos", 1, stays=True)
    assert 1 < deadlocks.draws <= 4
    assert deadlocks.are_slow


def test_table_is_inspected_within_the_time_of_a_draw_where_a_mark_is_doubtful(
    doubting_pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor polls a request only while it waits on its connection."""
    server = doubting_pool.servers[0]
    find, waited_on = server.find, list[object]()

    def find_and_record(connection: Connection, table: TicketTable) -> Layout:
        waited_on.extend(request.connection for request in server.in_flight)
        return find(connection, table)

    monkeypatch.setattr(server, "find", find_and_record)
    server.draw("photos", 1)
    assert waited_on
    assert None not in waited_on


def test_wait_for_peers_leaves_the_inspection_its_time(
    doubting_pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor ends a wait at the draw's deadline, which what peers have taken moves on."""
    server, marks = doubting_pool.servers[0], doubting_pool._marks
    find, read, began, seconds = server.find, marks.read_marks, list[float](), 0.1

    def find_and_record(connection: Connection, table: TicketTable) -> Layout:
        began.extend(request.began for request in server.in_flight)
        return find(connection, table)

    def read_slowly(*arguments: Any) -> None:
        time.sleep(seconds)
        read(*arguments)

    monkeypatch.setattr(server, "find", find_and_record)
    monkeypatch.setattr(marks, "read_marks", read_slowly)
    since = time.monotonic()
    server.draw("photos", 1)
    assert min(began) >= since + seconds


def test_answer_that_comes_after_a_fork_raises_no_high_water(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler forks while a draw waits: the child may read what the parent has asked for next."""
    server, table = pool.servers[0], pool.servers[0].table("photos")
    connection = server.connections.of_threads[-1]  # the next one that is taken
    layout, before = table.layout, table.high_water
    assert layout is not None
    draw = layout.draw

    def draw_and_fork(cursor: DrawCursor, n: int, *, has_waited: bool = False) -> list[range]:
        drawn = draw(cursor, n, has_waited=has_waited)
        if cursor is not connection.cursor:
            return drawn
        connection.is_owner_process = b"\0"
        return [range(10**6, 10**6 + 1)]

    monkeypatch.setattr(layout, "draw", draw_and_fork)
    assert pool.next_id("photos") == table.high_water == before + 2
