"""How much of the work is done: all of it, what fits into five minutes, or just enough to see it run."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "SMOKE", "Scale"]


@dataclass(frozen=True)
class Scale:
    """The sizes of one run.

    Attributes:
        rounds: of each comparison.
        slice: seconds for which ids are drawn in one round.
        threads: how many threads draw, in turn.
        processes: how many processes draw, in turn.
        crowds: how many processes draw in turn, where the slowest draws are looked at, too.
        threads_at_once: the same for threads.
        tasks_at_once: the same for the tasks of an event loop.
        sequences: how many sequences one thread draws from, in turn.
        servers: how many ticket servers it draws from, in turn.
        flushes: how many rows are flushed, in turn.
        rows: of the flush that is looked at more closely, with delays and with children.
        parents: of the flush with ten children each.
        copied: rows of an INSERT ... SELECT.
        transactions: with a single row, in one round.
        tasks: how many tasks insert, in turn.
        delays: of a reply, in ms.
        index_rows: of the tables whose size and insert rate is compared.
        index_seconds: after which such a table grows no further, and no further sequences are created.
        seconds: after which no further part is begun.
    """

    rounds: int
    slice: float
    threads: tuple[int, ...]
    processes: tuple[int, ...]
    crowds: tuple[int, ...]
    threads_at_once: tuple[int, ...]
    tasks_at_once: tuple[int, ...]
    sequences: tuple[int, ...]
    servers: tuple[int, ...]
    flushes: tuple[int, ...]
    rows: int
    parents: int
    copied: int
    transactions: int
    tasks: tuple[int, ...]
    delays: tuple[float, ...]
    index_rows: int
    index_seconds: float
    seconds: float = math.inf


FULL = Scale(
    rounds=11,
    slice=0.25,
    threads=(1, 2, 4, 8, 16, 32, 64),
    processes=(1, 2, 4, 8),
    crowds=(1, 2, 4, 8, 16, 32, 64),
    threads_at_once=(1, 2, 4, 8, 16, 32, 64, 256),
    tasks_at_once=(1, 2, 4, 8, 16, 32, 64, 256),
    sequences=(1, 10, 100, 1_000, 10_000),
    servers=(1, 2, 4, 8),
    flushes=(1, 10, 100, 1_000, 10_000, 100_000),
    rows=10_000,
    parents=1_000,
    copied=1_000_000,
    transactions=300,
    tasks=(1, 10, 100, 500),
    delays=(0.5, 5.0),
    index_rows=5_000_000,
    index_seconds=600.0,
)
QUICK = Scale(
    rounds=3,
    slice=0.1,
    threads=(1, 8),
    processes=(1, 2),
    crowds=(1, 8),
    threads_at_once=(1, 8),
    tasks_at_once=(1, 8),
    sequences=(1, 20),
    servers=(1, 2, 4),
    flushes=(1, 100),
    rows=200,
    parents=20,
    copied=20_000,
    transactions=20,
    tasks=(1, 50),
    delays=(0.5, 5.0),
    index_rows=20_000,
    index_seconds=10.0,
    seconds=230.0,
)
SMOKE = Scale(
    rounds=1,
    slice=0.01,
    threads=(1, 2),
    processes=(1,),
    crowds=(1, 2),
    threads_at_once=(1, 2),
    tasks_at_once=(1, 2),
    sequences=(1, 2),
    servers=(1, 2),
    flushes=(1, 5),
    rows=5,
    parents=2,
    copied=50,
    transactions=2,
    tasks=(1, 2),
    delays=(0.5,),
    index_rows=200,
    index_seconds=1.0,
)
