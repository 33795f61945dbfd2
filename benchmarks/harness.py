"""Interleaved rounds, and what is kept of them.

Neither pyperf nor pytest-benchmark times the rounds: both run one benchmark to its end before the next, so that a
drift of the machine would be taken for a difference between two sides.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TypeVar

__all__ = [
    "Comparison",
    "Row",
    "Side",
    "compare",
    "draws_of",
    "in_threads",
    "rate_of",
    "shuffled_rounds",
    "timed",
]

S = TypeVar("S")
#: Seconds after which no further round of a comparison begins.
LONGEST = 120.0


@dataclass(frozen=True)
class Side:
    """One way to do the work.

    Attributes:
        name: what the table calls it.
        measure: does the work once and returns how much it did, in the comparison's unit per second.
    """

    name: str
    measure: Callable[[], float]


@dataclass
class Row:
    """What was measured of one side, round by round."""

    side: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass
class Comparison:
    """The outcome of one part on one server.

    Attributes:
        key: what the figures and the plots find it by, the same in quick and in full runs.
        server: its kind; empty where there is none.
        title: what its table is called.
        unit: of the values.
        rows: one for each side, the one that the others are compared with first.
        remarks: what else was seen.
    """

    key: str
    server: str
    title: str
    unit: str
    rows: list[Row]
    remarks: list[str] = field(default_factory=list)

    def row(self, side: str) -> Row | None:
        """What was measured of a side; None where it was left out."""
        return next((row for row in self.rows if row.side == side), None)

    def ratio(self, first: str, second: str) -> float | None:
        """How many times the second side's value the first one's is: the median over the rounds."""
        above, below = self.row(first), self.row(second)
        if above is None or below is None:
            return None
        pairs = zip(above.values, below.values, strict=False)
        return statistics.median(a / b for a, b in pairs)


def compare(
    key: str, server: str, title: str, unit: str, sides: Sequence[Side], *, rounds: int
) -> Comparison:
    """Measure all sides in turn, after a round that does not count."""
    for side in sides:
        side.measure()
    comparison = Comparison(key, server, title, unit, [Row(side.name) for side in sides])
    for side, row in shuffled_rounds(list(zip(sides, comparison.rows, strict=True)), rounds):
        row.values.append(side.measure())
    return comparison


def shuffled_rounds(sides: Sequence[S], rounds: int) -> Iterator[S]:
    """Each side once in each round, in an order that chance sets; no round begins when it is late."""
    order, end = list(sides), time.monotonic() + LONGEST
    for _ in range(rounds):
        random.shuffle(order)
        yield from order
        if time.monotonic() > end:
            return


def timed(work: Callable[[], int]) -> Callable[[], float]:
    """Measure ``work``, which returns how many units it did, by the clock."""

    def measure() -> float:
        start = time.perf_counter()
        units = work()
        return units / (time.perf_counter() - start)

    return measure


def rate_of(draw: Callable[[], object], seconds: float, batch: int = 1) -> float:
    """Call ``draw`` for some seconds; how often it succeeded, per second.

    Args:
        draw: gets one id. What it raises is an id that was not had.
        seconds: how long.
        batch: how many calls there are from one look at the clock to the next.
    """
    done, start = 0, time.perf_counter()
    while True:
        try:
            for _ in repeat(None, batch):
                draw()
            done += batch
        except Exception:  # noqa: BLE001  # a deadlock of two clients, say: their user would ask again
            pass
        now = time.perf_counter()
        if now - start >= seconds:
            return done / (now - start)


def draws_of(
    draw: Callable[[], object], seconds: float, clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Call ``draw`` for some seconds; when each draw began, and what it took, in seconds.

    A call that fails is repeated, as its user would do, so its time is part of the draw's.
    """
    draws: list[tuple[float, float]] = []
    began = now = clock()
    end = now + seconds
    while now < end:
        try:
            draw()
        except Exception:  # noqa: BLE001  # as in `rate_of`
            now = clock()
        else:
            now = clock()
            draws.append((began, now - began))
            began = now
    return draws


def in_threads(
    draw: Callable[[], object], threads: int, seconds: float, batch: int = 1
) -> Callable[[], float]:
    """Measure ``draw`` in some threads at once: the sum of their rates."""

    def measure() -> float:
        rates: list[float] = []
        ready = threading.Barrier(threads)

        def work() -> None:
            ready.wait()
            rates.append(rate_of(draw, seconds, batch))

        working = [threading.Thread(target=work) for _ in range(threads)]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()
        return sum(rates)

    return measure
