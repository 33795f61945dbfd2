"""Rows with keys: through the ORM, through Core, many at once and one by one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import Session

from benchmarks.harness import Comparison, Side, compare, in_threads, timed
from benchmarks.keys import Models, keys_of
from benchmarks.peers import peers_of
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed, delayed

__all__ = [
    "children",
    "core",
    "flush_sides",
    "flushes",
    "flushing",
    "over_network",
    "tables",
    "transactions",
]

#: One INSERT, or more, for each row: looked at with fewer of them.
_SLOW = ("SQLAlchemy's sharding example", "Redis INCR")
#: What is looked at where a round takes long.
_FEW = ("TicketSequence", "ids from a range", "AUTO_INCREMENT")
_KEYS = (
    *_FEW,
    "AUTO_INCREMENT, no RETURNING",
    "Sequence",
    "UUIDv4",
    "UUIDv7",
    "Snowflake",
    "Leaf-like, step 1000",
)


@contextmanager
def tables(testbed: Testbed, *names: str) -> Iterator[tuple[Engine, dict[str, Models]]]:
    """Empty tables in the application's database for a while."""
    engine = create_engine(testbed.app)
    with keys_of(testbed, *names) as keys:
        for models in keys.values():
            models.base.metadata.create_all(engine)
        try:
            yield engine, keys
        finally:
            for models in keys.values():
                models.base.metadata.drop_all(engine)
            engine.dispose()


def flushing(engine: Engine, new_objects: Callable[[], list[object]]) -> Callable[[], int]:
    """What adds new objects to a session and commits."""

    def work() -> int:
        objects = new_objects()
        with Session(engine) as session:
            session.add_all(objects)
            session.commit()
        return len(objects)

    return work


def flush_sides(engine: Engine, keys: dict[str, Models], n: int) -> list[Side]:
    """Flushes of so many objects, one for each kind of key."""
    return [Side(name, _timed_flush(engine, made, _rows(name, n))) for name, made in keys.items()]


def _timed_flush(engine: Engine, made: Models, n: int) -> Callable[[], float]:
    flush = timed(flushing(engine, partial(made.photos, n)))

    def measure() -> float:
        made.make_ready(n)
        return flush()

    return measure


def _rows(name: str, n: int) -> int:
    return max(1, n // 10) if name in _SLOW else n


def flushes(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """Objects of one class, added and committed."""
    with tables(testbed, *_KEYS, *_SLOW) as (engine, all_keys):
        for n in sorted({*scale.flushes, scale.rows}):
            key = "flush" if n == scale.rows else f"flush {n}"
            keys = all_keys
            if n >= scale.rows:
                keys = {name: made for name, made in all_keys.items() if name in _FEW}
            done = compare(
                key,
                testbed.kind,
                f"ORM: add_all() of {n:,} objects and commit()",
                "rows/s",
                flush_sides(engine, keys, n),
                rounds=scale.rounds,
            )
            done.remarks = [
                f"{name}: {_memory(flushing(engine, partial(keys[name].photos, n))):,} bytes of memory at most"
                for name in _FEW[:2]
            ]
            yield done


def _memory(work: Callable[[], int]) -> int:
    """The peak of what Python allocates."""
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def children(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """Parents, each with ten children."""
    n = scale.parents
    with tables(testbed, *_FEW, "UUIDv7") as (engine, keys):
        sides = [
            Side(name, timed(_rows_of(flushing(engine, partial(made.albums, n, 10)), 11)))
            for name, made in keys.items()
        ]
        title = f"ORM: {n:,} parents with 10 children each and commit()"
        yield compare("children", testbed.kind, title, "rows/s", sides, rounds=scale.rounds)


def _rows_of(work: Callable[[], int], rows: int) -> Callable[[], int]:
    return lambda: rows * work()


def core(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """``connection.execute(insert(table), rows)``."""
    n = scale.rows
    names = [name for name in _KEYS if name != "ids from a range"]
    with tables(testbed, *names) as (engine, keys):

        def executemany(models: Models) -> Callable[[], int]:
            def work() -> int:
                with engine.begin() as connection:
                    rows = [{"title": "t"} for _ in range(n)]
                    connection.execute(insert(models.photo.__table__), rows)
                return n

            return work

        sides = [Side(name, timed(executemany(made))) for name, made in keys.items()]
        title = f"Core: insert() of {n:,} rows"
        yield compare("core", testbed.kind, title, "rows/s", sides, rounds=scale.rounds)


#: How many rounds of single rows there are for each of the others'.
_SHORTER = 3
_SINGLE_ROWS = (
    "TicketSequence, block=100",
    "TicketSequence, block=1, counter",
    "TicketSequence, block=1, replace",
    "AUTO_INCREMENT",
    "AUTO_INCREMENT, no RETURNING",
    "Sequence",
    "UUIDv4",
    "UUIDv7",
    "Snowflake",
    "SQLAlchemy's sharding example",
    "Redis INCR",
    "ids from a range",
    "counter, drawn by hand",
    "replace, drawn by hand",
)


def transactions(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """One object, one commit; in short rounds, as a disk that is slow for a second would hit one side alone."""
    short = replace(scale, rounds=_SHORTER * scale.rounds)
    n = max(1, scale.transactions // _SHORTER)
    yield _single_rows(testbed, short, "transactions", "", _SINGLE_ROWS, n)


def _single_rows(
    testbed: Testbed, scale: Scale, key: str, where: str, names: Sequence[str], n: int
) -> Comparison:
    with tables(testbed, *names) as (engine, keys):

        def one_by_one(models: Models) -> Callable[[], int]:
            work = flushing(engine, lambda: models.photos(1))
            return lambda: sum(work() for _ in range(n))

        sides = [Side(name, timed(one_by_one(made))) for name, made in keys.items()]
        title = f"ORM: transactions of a single row{where}"
        return compare(key, testbed.kind, title, "rows/s", sides, rounds=scale.rounds)


def over_network(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """Draws, a flush and single rows where each reply takes a while."""
    rounds = max(1, scale.rounds // 5)
    for milliseconds in scale.delays:
        where = f", {milliseconds:g} ms away"
        with delayed(testbed, milliseconds) as far, ExitStack() as stack:
            names = ("next_id, counter layout", "UPDATE, bare cursor", "next_id, block=1000")
            draws = {
                name: (stack.enter_context(peer.open(far)), peer.batch)
                for name, peer in peers_of(far, *names, "Flickr's statements, Engine").items()
            }
            yield compare(
                f"draw{where}",
                testbed.kind,
                f"One id at a time, one thread{where}",
                "ids/s",
                [
                    Side(name, in_threads(draw, 1, scale.slice, batch))
                    for name, (draw, batch) in draws.items()
                ],
                rounds=rounds,
            )
            with tables(far, *_FEW) as (engine, keys):
                yield compare(
                    f"flush{where}",
                    testbed.kind,
                    f"ORM: add_all() of {scale.rows:,} objects and commit(){where}",
                    "rows/s",
                    flush_sides(engine, keys, scale.rows),
                    rounds=rounds,
                )
            key, n = f"transactions{where}", max(1, scale.transactions // 10)
            yield _single_rows(far, scale, key, where, _SINGLE_ROWS[:5], n)
