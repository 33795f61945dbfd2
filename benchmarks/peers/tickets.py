"""This project's own: tickets drawn one by one, in both layouts, and from buffered blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import Literal

from pymysql.cursors import Cursor

from benchmarks.peers.flickr import bare_cursor
from benchmarks.testbed import Testbed
from sqla_tickets import TicketPool, TicketSequence

__all__ = ["bare_update", "bare_updates", "block", "counter", "replace"]


@contextmanager
def _opened(
    testbed: Testbed, name: str, layout: Literal["replace", "counter"], block: int = 1
) -> Iterator[Callable[[], int]]:
    with TicketPool(list(testbed.tickets)) as pool:
        pool.create_table(name, layout=layout)
        sequence = TicketSequence(name, block=block)
        yield partial(pool.next_id, sequence)


@contextmanager
def replace(testbed: Testbed) -> Iterator[Callable[[], int]]:
    with _opened(testbed, "replaced", "replace") as draw:
        yield draw


@contextmanager
def counter(testbed: Testbed) -> Iterator[Callable[[], int]]:
    with _opened(testbed, "counted", "counter") as draw:
        yield draw


@contextmanager
def block(testbed: Testbed) -> Iterator[Callable[[], int]]:
    with _opened(testbed, "blocks", "counter", block=1000) as draw:
        yield draw


@contextmanager
def bare_update(testbed: Testbed) -> Iterator[Callable[[], int]]:
    """The counter layout's one statement, with nothing around it, on the first server."""
    _create_counters(testbed)
    with bare_cursor(testbed) as cursor:
        yield partial(_raise_counter, cursor)


@contextmanager
def bare_updates(testbed: Testbed) -> Iterator[Callable[[], int]]:
    """The same on both servers in turn, as the pool asks them: neither is as warm as a single one."""
    _create_counters(testbed)
    with bare_cursor(testbed, 0) as first, bare_cursor(testbed, 1) as second:
        cursors = cycle((first, second))
        yield lambda: _raise_counter(next(cursors))


def _create_counters(testbed: Testbed) -> None:
    with TicketPool(list(testbed.tickets)) as pool:
        pool.create_table("bare_counted", layout="counter")


def _raise_counter(cursor: Cursor) -> int:
    cursor.execute("UPDATE bare_counted SET id = LAST_INSERT_ID(id + 2) WHERE stub = 'c'")
    assert cursor.lastrowid
    return cursor.lastrowid
