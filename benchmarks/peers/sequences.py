"""A SEQUENCE of the database's, executed as SQLAlchemy's "Defining Sequences" says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Sequence, create_engine

from benchmarks.place import Place

__all__ = ["cached", "plain"]


@contextmanager
def cached(place: Place) -> Iterator[Callable[[], object]]:
    """MariaDB's, of which the server keeps 1000 numbers in memory."""
    with _drawn_from(place, Sequence("bench_seq", cache=1000)) as draw:
        yield draw


@contextmanager
def plain(place: Place) -> Iterator[Callable[[], object]]:
    """PostgreSQL's."""
    with _drawn_from(place, Sequence("bench_seq")) as draw:
        yield draw


@contextmanager
def _drawn_from(place: Place, sequence: Sequence) -> Iterator[Callable[[], object]]:
    engine = create_engine(place.tickets[0], pool_size=64)
    sequence.create(engine, checkfirst=True)

    def draw() -> object:
        with engine.connect() as connection:
            return connection.scalar(sequence)

    yield draw
    engine.dispose()
