"""A SEQUENCE of the database's, executed as SQLAlchemy's "Defining Sequences" says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Sequence, create_engine

from benchmarks.testbed import Testbed

__all__ = ["cached", "plain"]


@contextmanager
def cached(testbed: Testbed) -> Iterator[Callable[[], object]]:
    """MariaDB's, of which the server keeps 1000 numbers in memory."""
    with _drawn_from(testbed, Sequence("bench_seq", cache=1000)) as draw:
        yield draw


@contextmanager
def plain(testbed: Testbed) -> Iterator[Callable[[], object]]:
    """PostgreSQL's."""
    with _drawn_from(testbed, Sequence("bench_seq")) as draw:
        yield draw


@contextmanager
def _drawn_from(testbed: Testbed, sequence: Sequence) -> Iterator[Callable[[], object]]:
    engine = create_engine(testbed.tickets[0], pool_size=64)
    sequence.create(engine, checkfirst=True)

    def draw() -> object:
        with engine.connect() as connection:
            return connection.scalar(sequence)

    yield draw
    engine.dispose()
