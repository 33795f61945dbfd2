"""The id generator of SQLAlchemy's sharding example: a locked row, read and raised in one transaction.

SQLAlchemy's documentation, "ORM Examples", section "Horizontal Sharding", separate_databases.py. Here, as its comment
advises, the transaction is one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import BigInteger, Column, MetaData, Table, create_engine, insert, select, update

from benchmarks.testbed import Testbed

__all__ = ["locked_row"]

_metadata = MetaData()
_ids = Table("example_ids", _metadata, Column("next_id", BigInteger, nullable=False))


@contextmanager
def locked_row(testbed: Testbed) -> Iterator[Callable[[], object]]:
    engine = create_engine(testbed.tickets[0], pool_size=64)
    _metadata.create_all(engine)
    with engine.begin() as connection:
        if connection.scalar(select(_ids.c.next_id)) is None:
            connection.execute(insert(_ids), {"next_id": 1})

    def draw() -> object:
        with engine.begin() as connection:
            found = connection.scalar(select(_ids.c.next_id).with_for_update())
            connection.execute(update(_ids).values(next_id=_ids.c.next_id + 1))
            return found

    yield draw
    engine.dispose()
