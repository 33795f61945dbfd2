"""Ids that sort by time: how fast they are made, and what a flush with them costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks.harness import Comparison, Side, compare, in_threads
from benchmarks.parts.inserting import flush_sides, tables
from benchmarks.peers import peers_of
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed
from sqla_tickets import SNOWFLAKE, NodeLeases, SnowflakeGenerator, TicketPool

__all__ = ["snowflakes"]

#: A second: no generator that keeps to the layout can make more.
_LIMIT = 1000 / SNOWFLAKE.unit * (1 << SNOWFLAKE.sequence)
#: What a table of ways to choose from tells of each, in the order of `report.keys_table`.
_KINDS = ("TicketSequence", "SnowflakeSequence", "UUIDv4", "UUIDSequence", "AUTO_INCREMENT")
_PACKAGES = ("Snowflake", "snowflake-id-toolkit", "Sonyflake", "uuid7", "uuid4")


def _making(testbed: Testbed, scale: Scale) -> Comparison:
    """Single ids and many at once, in one thread, next to the packages of PyPI."""
    with ExitStack() as stack:
        pool = stack.enter_context(TicketPool(list(testbed.tickets)))
        NodeLeases(pool).create_table()
        sides = [Side("the layout's own limit", lambda: _LIMIT)]
        for name, peer in peers_of(testbed, "snowflakes, next_id", *_PACKAGES).items():
            draw = stack.enter_context(peer.open(testbed))
            sides.append(Side(name, in_threads(draw, 1, scale.slice, peer.batch)))
        sides += [_many(pool, scale, n) for n in (100, 10_000)]
        title = "Ids that sort by time, one thread"
        return compare("snowflakes", testbed.kind, title, "ids/s", sides, rounds=scale.rounds)


def _many(pool: TicketPool, scale: Scale, n: int) -> Side:
    made = SnowflakeGenerator(pool, "many")

    def measure() -> float:
        return n * in_threads(lambda: made.next_ids(n), 1, scale.slice)()

    return Side(f"snowflakes, next_ids({n:,})", measure)


def _flushes(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """A flush whose ids are there, and one that makes them."""
    pairs = (
        ("Snowflakes", "Snowflakes made before", "SnowflakeSequence"),
        ("UUIDs of version 7", "UUIDs made before", "uuid7() by hand", "UUIDSequence", "UUIDv7"),
    )
    for what, *names in pairs:
        yield _flush(testbed, scale, f"flush of {what}", f" with {what}", names, scale.rounds)
    few = max(1, scale.rounds // 4)  # some need a round trip for each row
    yield _flush(testbed, scale, "flush by keys", " by their keys", _KINDS, few)


def _flush(
    testbed: Testbed, scale: Scale, key: str, what: str, names: Sequence[str], rounds: int
) -> Comparison:
    with tables(testbed, *names) as (engine, keys):
        title = f"ORM: add_all() of {scale.rows:,} objects{what} and commit()"
        sides = flush_sides(engine, keys, scale.rows)
        return compare(key, testbed.kind, title, "rows/s", sides, rounds=rounds)


def snowflakes(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """The ids alone, then in flushes."""
    yield _making(testbed, scale)
    yield from _flushes(testbed, scale)
