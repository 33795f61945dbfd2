"""The figures that the project has set itself, as ratios within one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.parts.scale import SIDES
from benchmarks.results import Results
from benchmarks.scale import FULL

__all__ = ["FIGURES", "Figure"]


@dataclass(frozen=True)
class Figure:
    """A ratio that is to be reached.

    Attributes:
        what: in words.
        bound: at least, or at most; None for a floor, which tells what no library could beat.
        key: of the comparison.
        first: the side whose value is looked at.
        second: the side that it is divided by; empty for the value itself.
        at_most: whether the bound is an upper one.
        servers: on which it counts.
    """

    what: str
    bound: float | None
    key: str
    first: str
    second: str = ""
    at_most: bool = False
    servers: tuple[str, ...] = ("mariadb", "mysql")

    def seen(self, results: Results, server: str) -> float | None:
        """What was found; None where it was not measured."""
        comparison = results.find(self.key, server)
        if comparison is None:
            return None
        if self.second:
            return comparison.ratio(self.first, self.second)
        row = comparison.row(self.first)
        return None if row is None else row.median

    def is_reached(self, seen: float) -> bool:
        """Whether what was found is enough."""
        if self.bound is None:
            return True
        return seen <= self.bound if self.at_most else seen >= self.bound


_BLOCK, _AUTO = "TicketSequence, block=100", "AUTO_INCREMENT"
_RANGE = "ids from a range"
_UUIDS = "UUIDs made before"
_BUFFERED = "next_id, block=1000"


def _crowds() -> Iterator[Figure]:
    """What processes draw together, and what the slowest draws take, against bare cursors in turn."""
    for layout, (bare, ours) in SIDES.items():
        for n in FULL.crowds:
            key, what = f"scale {layout} processes {n}", f"{n} processes together, {layout} layout"
            yield Figure(f"{what}: draws", 0.92 if n == 1 else 0.9, key, ours, bare)
            yield Figure(f"{what}: p99", 1.3, f"{key} p99", ours, bare, at_most=True)


FIGURES = (
    Figure("`next_id`, `block=1000`, against `uuid.uuid4()`", 4, "buffered", _BUFFERED, "uuid4"),
    Figure("the same, 8 threads against 1", 1, "buffered in threads", "8 threads", "1 threads"),
    Figure(
        "the same, 8 processes against 1",
        1.3,
        "buffered in processes",
        "8 processes",
        "1 processes",
    ),
    Figure(
        "8 processes with `block=1000` against the Leaf-like allocator",
        2,
        "processes 8",
        _BUFFERED,
        "Leaf-like, step 1000",
    ),
    Figure(
        "one draw, counter layout, against the bare statement on both servers in turn",
        0.92,
        "draw",
        "next_id, counter layout",
        "UPDATE, bare cursors in turn",
    ),
    Figure(
        "one draw, replace layout, against the bare `REPLACE` on both servers in turn",
        0.92,
        "draw",
        "next_id, replace layout",
        "REPLACE, bare cursors in turn",
    ),
    Figure(
        "one draw, counter layout, against Redis `INCR`",
        0.5,
        "draw",
        "next_id, counter layout",
        "Redis INCR",
        servers=("mariadb",),
    ),
    Figure("`block=1000` against Redis `INCR`", 50, "draw", _BUFFERED, "Redis INCR"),
    Figure(
        "time of `reserve(10,000,000)` against `reserve(1)`",
        1.2,
        "blocks, counter",
        "reserve(1)",
        "reserve(10,000,000)",
        at_most=True,
    ),
    Figure("ORM flush of 10,000 against ids from a range", 0.99, "flush", "TicketSequence", _RANGE),
    Figure(
        "the same, 0.5 ms away",
        0.97,
        "flush, 0.5 ms away",
        "TicketSequence",
        _RANGE,
        servers=("mysql",),
    ),
    Figure(
        "the same, 5 ms away",
        0.97,
        "flush, 5 ms away",
        "TicketSequence",
        _RANGE,
        servers=("mysql",),
    ),
    Figure(
        "floor: ORM flush of 10,000 with ids from a range against AUTO_INCREMENT",
        None,
        "flush",
        _RANGE,
        _AUTO,
        servers=("mysql",),
    ),
    Figure(
        "Snowflakes one at a time against the layout's own limit, 4,096,000/s",
        0.97,
        "snowflakes",
        "snowflakes, next_id",
        "the layout's own limit",
    ),
    Figure(
        "ORM flush with Snowflakes against Snowflakes made before",
        0.97,
        "flush of Snowflakes",
        "SnowflakeSequence",
        "Snowflakes made before",
    ),
    Figure(
        "ORM flush with UUIDs of version 7 against UUIDs made before",
        0.97,
        "flush of UUIDs of version 7",
        "UUIDSequence",
        _UUIDS,
    ),
    Figure(
        "floor: ORM flush with `uuid7()` by hand against UUIDs made before",
        None,
        "flush of UUIDs of version 7",
        "uuid7() by hand",
        _UUIDS,
    ),
    Figure(
        "parents with children against ids from a range",
        0.97,
        "children",
        "TicketSequence",
        _RANGE,
        servers=("mysql",),
    ),
    Figure(
        "floor: parents with children, ids from a range, against AUTO_INCREMENT",
        None,
        "children",
        _RANGE,
        _AUTO,
        servers=("mysql",),
    ),
    Figure(
        "single rows, `block=100`, against ids from a range", 0.98, "transactions", _BLOCK, _RANGE
    ),
    Figure(
        "floor: single rows, ids from a range, against AUTO_INCREMENT",
        None,
        "transactions",
        _RANGE,
        _AUTO,
    ),
    Figure(
        "single rows, `block=1`, counter layout, against one `UPDATE` by hand each",
        0.92,
        "transactions",
        "TicketSequence, block=1, counter",
        "counter, drawn by hand",
    ),
    Figure(
        "floor: single rows, one `UPDATE` by hand each, against AUTO_INCREMENT",
        None,
        "transactions",
        "counter, drawn by hand",
        _AUTO,
    ),
    Figure(
        "single rows, `block=1`, replace layout, against one `REPLACE` by hand each",
        0.92,
        "transactions",
        "TicketSequence, block=1, replace",
        "replace, drawn by hand",
    ),
    Figure(
        "floor: single rows, one `REPLACE` by hand each, against AUTO_INCREMENT",
        None,
        "transactions",
        "replace, drawn by hand",
        _AUTO,
    ),
    Figure(
        "500 tasks, single rows, `block=100`, against ids from a range",
        0.97,
        "tasks",
        _BLOCK,
        _RANGE,
    ),
    Figure(
        "floor: 500 tasks, single rows, ids from a range, against AUTO_INCREMENT",
        None,
        "tasks",
        _RANGE,
        _AUTO,
    ),
    Figure(
        "import of `sqla_tickets` after `sqlalchemy.orm`, ms",
        5,
        "import",
        "sqla_tickets",
        at_most=True,
        servers=("",),
    ),
    Figure(
        "flush without tickets, listener installed against none",
        0.99,
        "listener",
        "listener installed",
        "no listener",
        servers=("",),
    ),
    *_crowds(),
)
