"""Ids that sort by time: how fast they are made, and what a flush with them costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks.harness import Comparison, Side, compare, in_threads
from benchmarks.parts.inserting import flush_sides, tables
from benchmarks.peers import peers_of
from benchmarks.place import Place
from benchmarks.scale import Scale
from sqla_tickets import SNOWFLAKE, TicketPool

__all__ = ["snowflakes"]

#: A second: no generator that keeps to the layout can make more.
_LIMIT = 1000 / SNOWFLAKE.unit * (1 << SNOWFLAKE.sequence)
#: What a table of ways to choose from tells of each, in the order of `report.keys_table`.
_KINDS = ("TicketSequence", "SnowflakeSequence", "UUIDv4", "UUIDSequence", "AUTO_INCREMENT")
_PACKAGES = ("Snowflake", "snowflake-id-toolkit", "Sonyflake", "uuid7", "uuid4")


def _making(place: Place, scale: Scale) -> Comparison:
    """Single ids and many at once, in one thread, beside the packages of PyPI."""
    with ExitStack() as stack:
        pool = stack.enter_context(TicketPool(list(place.tickets)))
        pool.create_node_table()
        sides = [Side("the layout's own limit", lambda: _LIMIT)]
        for name, peer in peers_of(place, "snowflakes, next_id", *_PACKAGES).items():
            draw = stack.enter_context(peer.open(place))
            sides.append(Side(name, in_threads(draw, 1, scale.slice, peer.batch)))
        sides += [_many(pool, scale, n) for n in (100, 10_000)]
        title = "Ids that sort by time, one thread"
        return compare("snowflakes", place.kind, title, "ids/s", sides, rounds=scale.rounds)


def _many(pool: TicketPool, scale: Scale, n: int) -> Side:
    made = pool.snowflakes("many")

    def measure() -> float:
        return n * in_threads(lambda: made.next_ids(n), 1, scale.slice)()

    return Side(f"snowflakes, next_ids({n:,})", measure)


def _flushes(place: Place, scale: Scale) -> Iterator[Comparison]:
    """A flush whose ids are there, and one that makes them."""
    pairs = (
        ("Snowflakes", "Snowflakes made before", "SnowflakeSequence"),
        ("UUIDs of version 7", "UUIDs made before", "uuid7() by hand", "UUIDSequence", "UUIDv7"),
    )
    for what, *names in pairs:
        yield _flush(place, scale, f"flush of {what}", f" with {what}", names, scale.rounds)
    few = max(1, scale.rounds // 4)  # some need a round trip for each row
    yield _flush(place, scale, "flush by keys", " by their keys", _KINDS, few)


def _flush(
    place: Place, scale: Scale, key: str, what: str, names: Sequence[str], rounds: int
) -> Comparison:
    with tables(place, *names) as (engine, keys):
        title = f"ORM: add_all() of {scale.rows:,} objects{what} and commit()"
        sides = flush_sides(engine, keys, scale.rows)
        return compare(key, place.kind, title, "rows/s", sides, rounds=rounds)


def snowflakes(place: Place, scale: Scale) -> Iterator[Comparison]:
    """The ids alone, then in flushes."""
    yield _making(place, scale)
    yield from _flushes(place, scale)
