"""Interleaved rounds, medians and ratios."""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

ROUNDS = 7


@dataclass
class Side:
    """One way to do the work.

    Attributes:
        name: what it is called in the table.
        work: does the work once and returns how many units (rows, draws) it did.
        rates: units per second of each round.
    """

    name: str
    work: Callable[[], int]
    rates: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    def run(self) -> None:
        start = time.perf_counter()
        units = self.work()
        self.rates.append(units / (time.perf_counter() - start))


@dataclass(frozen=True)
class Figure:
    """A ratio that is to be reached: of the first side's rate to the second's."""

    first: str
    second: str
    at_least: float


def compare(
    title: str, unit: str, sides: Sequence[Side], figures: Sequence[Figure], rounds: int = ROUNDS
) -> None:
    """Run all sides in turn, after a round that does not count, and print a Markdown table."""
    for side in sides:
        side.work()
    order = list(sides)
    for _ in range(rounds):
        random.shuffle(order)
        for side in order:
            side.run()
    print(f"\n### {title}\n")
    print(f"| side | {unit}/s, median | lowest | highest |\n|---|---:|---:|---:|")
    for side in sides:
        cells = (side.median, min(side.rates), max(side.rates))
        print(f"| {side.name} | " + " | ".join(f"{rate:,.0f}" for rate in cells) + " |")
    by_name = {side.name: side for side in sides}
    for figure in figures:
        ratio = by_name[figure.first].median / by_name[figure.second].median
        reached = "reached" if ratio >= figure.at_least else "NOT REACHED"
        print(
            f"\n{figure.first} against {figure.second}: **{ratio:.2f}**"
            f" (wanted {figure.at_least}: {reached})"
        )


def machine() -> str:
    """What the figures were measured on."""
    packages = ("SQLAlchemy", "PyMySQL", "greenlet")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{_cpu()}, {os.cpu_count()} cores; {platform.python_version()}, {versions}"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
    return models[0].split(":")[1].strip() if models else platform.machine()
