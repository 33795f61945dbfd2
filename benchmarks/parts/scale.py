"""Many clients at once, each drawing as fast as it can: what they get together, and what the slowest draws wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.crew import crew
from benchmarks.harness import Comparison, Row, shuffled_rounds
from benchmarks.peers import PEERS
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed

__all__ = ["processes"]

#: The bare cursor on both servers in turn, and this project's draw, by layout.
_SIDES = {
    "counter": ("UPDATE, bare cursors in turn", "next_id, counter layout"),
    "replace": ("REPLACE, bare cursors in turn", "next_id, replace layout"),
}


def processes(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """1 to 64 processes; each has its own connections, and one table for all."""
    most = max(scale.crowds)
    for layout in testbed.layouts:
        sides = _SIDES[layout]
        with ExitStack() as stack:
            for name in sides:  # their tables are made by one process alone
                stack.enter_context(PEERS[name].open(testbed))
            workers = stack.enter_context(crew(testbed, most))
            for name in sides:
                workers.waits(name, most, scale.slice)  # which opens their connections
            for n in scale.crowds:
                what = f"{n} processes together, {layout} layout"
                rates = Comparison(
                    f"scale {layout} {n}", testbed.kind, f"Draws, {what}", "draws/s", []
                )
                tails = Comparison(
                    f"scale {layout} {n} p99", testbed.kind, f"p99, {what}", "ms", []
                )
                rows = {name: (Row(name), Row(name)) for name in sides}
                for name in shuffled_rounds(sides, max(1, scale.rounds // 2)):
                    waits = workers.waits(name, n, 4 * scale.slice)
                    if not waits:  # in no time, on a machine that starves
                        continue
                    rates_row, tails_row = rows[name]
                    rates_row.values.append(len(waits) / (4 * scale.slice))
                    tails_row.values.append(1000 * waits[len(waits) * 99 // 100])
                rates.rows, tails.rows = (list(part) for part in zip(*rows.values(), strict=True))
                yield rates
                yield tails
