"""What many clients, many sequences and many servers cost, against bare cursors that send the same statement."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import NamedTuple

from benchmarks.crew import crew
from benchmarks.crowds import Crowd, tasks, threads
from benchmarks.harness import Comparison, Row, Side, compare, in_threads, shuffled_rounds
from benchmarks.peers import PEERS
from benchmarks.peers.flickr import bare_cursor
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed
from sqla_tickets import TicketPool
from sqla_tickets.dialects import LayoutName

__all__ = ["SIDES", "crowds", "sequences", "servers"]

#: The bare cursor on both servers in turn, and this project's draw, by layout.
SIDES: dict[LayoutName, tuple[str, str]] = {
    "counter": ("UPDATE, bare cursors in turn", "next_id, counter layout"),
    "replace": ("REPLACE, bare cursors in turn", "next_id, replace layout"),
}


class _Kind(NamedTuple):
    """A kind of crowd, and how it is measured.

    Attributes:
        name: in the tables.
        open: opens the largest crowd.
        sizes: how many draw at once.
        seconds: how long a round takes.
        seconds_before: how long they draw before it.
    """

    name: str
    open: Callable[[Testbed, int], AbstractContextManager[Crowd]]
    sizes: tuple[int, ...]
    seconds: float
    seconds_before: float = 0.0


def _kinds(scale: Scale) -> list[_Kind]:
    # as long as from one write of a process's marks to the next; all processes write when they begin, so they have
    # drawn for as long before
    between_marks = 10 * scale.slice
    return [
        _Kind("processes", crew, scale.crowds, between_marks, between_marks),
        _Kind("threads", threads, scale.threads_at_once, 2 * scale.slice),
        _Kind("tasks", tasks, scale.tasks_at_once, 2 * scale.slice),
    ]


def crowds(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """1 to 64 processes, 1 to 256 threads and 1 to 256 tasks, which draw as fast as they can from one table."""
    for layout in testbed.layouts:
        with ExitStack() as stack:
            for name in SIDES[layout]:  # their tables are made by one process alone
                stack.enter_context(PEERS[name].open(testbed))
            for kind in _kinds(scale):
                with kind.open(testbed, max(kind.sizes)) as crowd:
                    for name in SIDES[layout]:
                        crowd.open(name)
                        # a pool opens more connections now
                        crowd.waits(name, max(kind.sizes), scale.slice)
                    for n in kind.sizes:
                        yield from _together(testbed, scale, layout, kind, crowd, n)


def _together(
    testbed: Testbed, scale: Scale, layout: LayoutName, kind: _Kind, crowd: Crowd, n: int
) -> Iterator[Comparison]:
    sides = SIDES[layout]
    title, key = f"{n} {kind.name} together, {layout} layout", f"scale {layout} {kind.name} {n}"
    rates = Comparison(key, testbed.kind, f"Draws, {title}", "draws/s", [])
    tails = Comparison(f"{key} p99", testbed.kind, f"p99, {title}", "ms", [])
    rows = {name: (Row(name), Row(name)) for name in sides}
    for name in shuffled_rounds(sides, max(1, scale.rounds // 2)):
        if kind.seconds_before:
            crowd.waits(name, n, kind.seconds_before)
        waits = crowd.waits(name, n, kind.seconds)
        if not waits:  # in no time, on a machine that starves
            continue
        rates_row, tails_row = rows[name]
        rates_row.values.append(len(waits) / kind.seconds)
        tails_row.values.append(1000 * waits[len(waits) * 99 // 100])
    measured = [pair for pair in rows.values() if pair[0].values]
    if len(measured) < len(sides):
        return
    rates.rows, tails.rows = (list(part) for part in zip(*measured, strict=True))
    rates.remarks = [
        f"{name}: {crowd.memory(name):,} bytes of memory for each of the {kind.name}"
        for name in sides
    ]
    yield rates
    yield tails


def sequences(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """One thread that draws from 1 to 10,000 sequences at random, and the memory that each takes."""
    created, end = 0, time.monotonic() + scale.index_seconds
    with TicketPool(list(testbed.tickets)) as maker:
        try:
            for n in scale.sequences:
                while created < n and time.monotonic() < end:
                    maker.create_table(f"many_{created}", layout="counter")
                    created += 1
                if created < n:
                    return
                yield _among(testbed, scale, n)
        finally:
            for number in range(created):
                maker.drop_table(f"many_{number}")


def _among(testbed: Testbed, scale: Scale, n: int) -> Comparison:
    names = [f"many_{number}" for number in range(n)]
    statements = [
        f"UPDATE {name} SET id = LAST_INSERT_ID(id + 2) WHERE stub = 'c'" for name in names
    ]
    with ExitStack() as stack:
        pool = stack.enter_context(TicketPool(list(testbed.tickets)))
        tracemalloc.start()
        for name in names:  # from both servers, which inspect their tables
            pool.next_id(name)
            pool.next_id(name)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        cursors = cycle([stack.enter_context(bare_cursor(testbed, number)) for number in (0, 1)])
        sides = [
            Side(name, in_threads(draw, 1, scale.slice))
            for name, draw in (
                (
                    "UPDATE, bare cursors in turn",
                    lambda: next(cursors).execute(random.choice(statements)),
                ),
                ("next_id, counter layout", lambda: pool.next_id(random.choice(names))),
            )
        ]
        done = compare(
            f"sequences {n}",
            testbed.kind,
            f"One thread, {n:,} sequences at random",
            "draws/s",
            sides,
            rounds=max(1, scale.rounds // 2),
        )
    done.remarks = [f"A sequence takes {taken // n:,} bytes of the process."]
    return done


def servers(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """One thread that draws from 1 to 8 ticket servers in turn: databases of the two that there are."""
    for n in scale.servers:
        yield _spread(replace(testbed, tickets=testbed.more[:n]), scale, n)


def _spread(testbed: Testbed, scale: Scale, n: int) -> Comparison:
    with ExitStack() as stack:
        tracemalloc.start()
        pool = stack.enter_context(TicketPool(list(testbed.tickets)))
        pool.create_table("spread", layout="counter")
        stack.callback(pool.drop_table, "spread")
        for _ in range(n):
            pool.next_id("spread")
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        statement = f"UPDATE spread SET id = LAST_INSERT_ID(id + {n}) WHERE stub = 'c'"
        cursors = cycle([stack.enter_context(bare_cursor(testbed, number)) for number in range(n)])
        sides = [
            Side(
                "UPDATE, bare cursors in turn",
                in_threads(lambda: next(cursors).execute(statement), 1, scale.slice),
            ),
            Side(
                "next_id, counter layout",
                in_threads(partial(pool.next_id, "spread"), 1, scale.slice),
            ),
        ]
        done = compare(
            f"servers {n}",
            testbed.kind,
            f"One thread, {n} ticket servers in turn",
            "draws/s",
            sides,
            rounds=max(1, scale.rounds // 2),
        )
    done.remarks = [f"A server takes {taken // n:,} bytes of the process."]
    return done
