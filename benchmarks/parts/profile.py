"""Where the time of one draw, and of one row, goes: the same thing, wrapped in one layer more at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from sqlalchemy import create_engine

from benchmarks.harness import Comparison, Side, compare
from benchmarks.parts.inserting import flushing, tables
from benchmarks.peers.flickr import bare_cursor
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed
from sqla_tickets import TicketPool
from sqla_tickets.dialects import LayoutName

__all__ = ["profile"]

CLOCKS = ((time.perf_counter, "clock"), (time.thread_time, "processor"))
#: Keys of single rows, and what each does more than the one below it.
_KEYS = {
    "TicketSequence, block=1, replace": "a draw from Flickr's table instead of a counter",
    "TicketSequence, block=1, counter": "a draw",
    "TicketSequence, block=100": "the listener, a buffered ticket",
    "ids from a range": "the session, the INSERT, the commit",
    "AUTO_INCREMENT": "the same, and the id that the server gave",
}


def profile(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """By the clock, and by the processor time of this thread, which other programs disturb less."""
    with TicketPool(list(testbed.tickets)) as pool:
        for layout in testbed.layouts:
            name = f"profile_{layout}"
            pool.create_table(name, layout=layout)
            for clock, what in CLOCKS:
                yield _layers(testbed, scale, pool, name, layout, clock, what)
    yield from _single_rows(testbed, scale)


def _single_rows(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    with tables(testbed, *_KEYS) as (engine, keys):
        works = {
            f"{name}: {_KEYS[name]}": flushing(engine, partial(made.photos, 1))
            for name, made in keys.items()
        }
        for clock, what in CLOCKS:
            yield compare(
                f"profile, single row, {what}",
                testbed.kind,
                f"One object, one commit, by the {what} (less is better)",
                "us",
                [Side(title, _micros(work, clock, scale)) for title, work in works.items()],
                rounds=scale.rounds,
            )


def _layers(
    testbed: Testbed,
    scale: Scale,
    pool: TicketPool,
    name: str,
    layout: LayoutName,
    clock: Callable[[], float],
    what: str,
) -> Comparison:
    server = pool.servers[0]
    server.draw(name, 1)  # it has found its layout
    found = server.table(name).layout
    assert found is not None
    statement = {
        "counter": f"UPDATE {name} SET id = LAST_INSERT_ID(id + 2) WHERE stub = 'c'",
        "replace": f"REPLACE INTO {name} (stub) VALUES ('a')",
    }[layout]
    with ExitStack() as stack:
        cursor = stack.enter_context(bare_cursor(testbed))
        connection = server.connect(afresh=True)
        stack.callback(server.connections.discard, connection)
        own = connection.cursor
        engine = create_engine(testbed.tickets[0], isolation_level="AUTOCOMMIT")
        stack.callback(engine.dispose)

        def through_engine() -> None:
            connection = engine.raw_connection()
            checked_out = connection.cursor()
            checked_out.execute(statement)
            checked_out.close()
            connection.close()

        def bare() -> int | None:
            cursor.execute(statement)
            return cursor.lastrowid

        layers: dict[str, Callable[[], object]] = {
            "pool.next_id: + the buffer, fail-over, the monitor": lambda: pool.next_id(name),
            "server.draw: + a connection, the request in flight, the checks": lambda: server.draw(
                name, 1
            ),
            "layout.draw: + the statement, the block": lambda: found.draw(own, 1),
            "the statement on a bare cursor": bare,
            "the statement through engine.raw_connection()": through_engine,
        }
        sides = [Side(title, _micros(draw, clock, scale)) for title, draw in layers.items()]
        return compare(
            f"profile, {layout}, {what}",
            testbed.kind,
            f"One draw, {layout} layout, by the {what} (less is better)",
            "us",
            sides,
            rounds=scale.rounds,
        )


def _micros(
    draw: Callable[[], object], clock: Callable[[], float], scale: Scale
) -> Callable[[], float]:
    n = max(1, int(400 * scale.slice))

    def measure() -> float:
        start = clock()
        for _ in range(n):
            draw()
        return 1e6 * (clock() - start) / n

    return measure
