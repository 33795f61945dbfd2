"""One id at a time, buffered ids, and blocks, in one thread."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.crew import crew
from benchmarks.harness import Comparison, Side, compare, in_threads, rate_of
from benchmarks.peers import peers_of
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed
from sqla_tickets import TicketPool

__all__ = ["blocks", "buffered", "single"]

#: How many processes use buffered ids at once.
_PROCESSES = 8


def single(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """One id at a time: each costs a round trip."""
    names = (
        "next_id, counter layout",
        "UPDATE, bare cursors in turn",
        "UPDATE, bare cursor",
        "next_id, replace layout",
        "REPLACE, bare cursors in turn",
        "REPLACE, bare cursor",
        "Flickr's statements, Engine",
        "SQLAlchemy's sharding example",
        "SEQUENCE CACHE 1000",
        "SEQUENCE",
        "Redis INCR",
        "next_id, block=1000",
    )
    title = "One id at a time, one thread"
    yield _one_by_one(testbed, scale, "draw", title, names, 1)


def buffered(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """Ids that are there already, or made on the spot."""
    names = (
        "next_id, block=1000",
        "uuid4",
        "uuid7",
        "Snowflake",
        "Sonyflake",
        "Leaf-like, step 1000",
        "Redis INCRBY 1000",
    )
    yield _one_by_one(
        testbed, scale, "buffered", "Ids without a round trip each, one thread", names, 1
    )
    with ExitStack() as stack:
        (peer,) = peers_of(testbed, "next_id, block=1000").values()
        draw = stack.enter_context(peer.open(testbed))
        sides = [
            Side(f"{n} threads", in_threads(draw, n, scale.slice, peer.batch)) for n in (8, 1, 64)
        ]
        yield compare(
            "buffered in threads",
            testbed.kind,
            "next_id with block=1000, threads together",
            "ids/s",
            sides,
            rounds=scale.rounds,
        )
    with crew(testbed, _PROCESSES) as workers:
        sides = [
            Side(f"{n} processes", partial(workers.rate, "next_id, block=1000", n, scale.slice))
            for n in (_PROCESSES, 1)
        ]
        yield compare(
            "buffered in processes",
            testbed.kind,
            "next_id with block=1000, processes together",
            "ids/s",
            sides,
            rounds=scale.rounds,
        )


def _one_by_one(
    testbed: Testbed, scale: Scale, key: str, title: str, names: Sequence[str], threads: int
) -> Comparison:
    with ExitStack() as stack:
        sides: list[Side] = []
        for name, peer in peers_of(testbed, *names).items():
            draw = stack.enter_context(peer.open(testbed))
            sides.append(Side(name, in_threads(draw, threads, scale.slice, peer.batch)))
        return compare(key, testbed.kind, title, "ids/s", sides, rounds=scale.rounds)


def blocks(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """How long a block of any size takes, and how much memory."""
    sizes = (1, 1_000, 1_000_000, 10_000_000)
    for layout in testbed.layouts:
        with TicketPool(list(testbed.tickets)) as pool:
            name = f"blocks_{layout}"
            pool.create_table(name, layout=layout)

            sides = [
                Side(
                    f"reserve({n:,})", partial(rate_of, partial(pool.reserve, name, n), scale.slice)
                )
                for n in sizes
            ]
            title = f"Blocks of any size, {layout} layout"
            done = compare(
                f"blocks, {layout}", testbed.kind, title, "draws/s", sides, rounds=scale.rounds
            )
            done.remarks = [f"reserve({n:,}): {_memory(pool, name, n):,} bytes" for n in sizes]
            yield done


def _memory(pool: TicketPool, name: str, n: int) -> int:
    """The peak of what one reserve takes."""
    tracemalloc.start()
    pool.reserve(name, n)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak
