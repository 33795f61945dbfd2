"""One id at a time, in many threads and in many processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from benchmarks.crew import crew
from benchmarks.harness import Comparison, Side, compare, in_threads
from benchmarks.peers import peers_of
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed

__all__ = ["processes", "threads"]

_PEERS = (
    "next_id, block=1000",
    "Leaf-like, step 1000",
    "next_id, counter layout",
    "next_id, replace layout",
    "Flickr's statements, Engine",
    "SQLAlchemy's sharding example",
    "SEQUENCE CACHE 1000",
    "SEQUENCE",
    "Redis INCR",
    "uuid4",
)


def threads(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """All threads draw through the same object."""
    with ExitStack() as stack:
        draws = [
            (name, stack.enter_context(peer.open(testbed)), peer.batch)
            for name, peer in peers_of(testbed, *_PEERS).items()
        ]
        for n in scale.threads:
            yield compare(
                f"threads {n}",
                testbed.kind,
                f"One id at a time, {n} threads together",
                "ids/s",
                [
                    Side(name, in_threads(draw, n, scale.slice, batch))
                    for name, draw, batch in draws
                ],
                rounds=max(1, scale.rounds // 3),
            )


def processes(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """Each process has its own connections, and one table for all."""
    peers = peers_of(testbed, *_PEERS)
    with ExitStack() as stack:
        for peer in peers.values():  # their tables are made by one process alone
            stack.enter_context(peer.open(testbed))
    with crew(testbed, max(scale.processes)) as workers:
        for n in scale.processes:
            yield compare(
                f"processes {n}",
                testbed.kind,
                f"One id at a time, {n} processes together",
                "ids/s",
                [Side(name, partial(workers.rate, name, n, scale.slice)) for name in peers],
                rounds=max(1, scale.rounds // 3),
            )
