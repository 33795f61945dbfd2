"""What a key does to a large table: how large its indexes become, and how fast rows still go in.

A secondary index of InnoDB's holds the primary key of each row once more. Each table grows alone, one after the
other, as together they would share the buffer pool.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

from sqlalchemy import BigInteger, Column, Engine, Index, Table, create_engine, insert, text

from benchmarks.harness import Comparison, Row
from benchmarks.keys import Models, keys_of
from benchmarks.place import Place
from benchmarks.scale import Scale

__all__ = ["index"]

#: Rows of one INSERT and its transaction.
AT_ONCE = 10_000
_KEYS = ("TicketSequence", "AUTO_INCREMENT", "UUIDv7", "UUIDv4", "Snowflake")


def index(place: Place, scale: Scale) -> Iterator[Comparison]:
    """One table for each kind of key."""
    engine = create_engine(place.app)
    rate = Comparison("index rate", place.kind, "Insert rate of a growing table", "rows/s", [])
    size = Comparison(
        "index size", place.kind, "Size of the table (less is better)", "bytes/row", []
    )
    with keys_of(place, *_KEYS) as keys:
        for name, made in keys.items():
            table = _with_owner(made)
            table.create(engine)
            rows, last = _grow(engine, table, scale)
            rate.rows.append(Row(name, [last]))
            size.rows.append(Row(name, [_bytes(engine, table) / rows]))
            rate.notes.append(f"{name}: {rows:,} rows; the rate is that of the last tenth")
            table.drop(engine)
    engine.dispose()
    yield rate
    yield size


def _with_owner(made: Models) -> Table:
    table: Table = made.photo.__table__
    owner = Column("owner", BigInteger)
    table.append_column(owner)
    Index(f"{table.name}_owner", owner)
    return table


def _grow(engine: Engine, table: Table, scale: Scale) -> tuple[int, float]:
    """Rows in the table, and how many a second the last tenth of them were."""
    owners = Random(1)
    end = time.monotonic() + scale.index_seconds
    at_once = min(AT_ONCE, scale.index_rows)
    times: list[float] = []
    while len(times) * at_once < scale.index_rows and time.monotonic() < end:
        rows = [{"title": "t", "owner": owners.randrange(1_000_000)} for _ in range(at_once)]
        start = time.perf_counter()
        with engine.begin() as connection:
            connection.execute(insert(table), rows)
        times.append(time.perf_counter() - start)
    last = times[-max(1, len(times) // 10) :]
    return len(times) * at_once, len(last) * at_once / sum(last)


def _bytes(engine: Engine, table: Table) -> int:
    with engine.connect() as connection:
        connection.execute(text(f"ANALYZE TABLE {table.name}")).all()
        found = connection.execute(
            text(
                "SELECT data_length + index_length FROM information_schema.tables"
                " WHERE table_schema = DATABASE() AND table_name = :name"
            ),
            {"name": table.name},
        ).scalar_one()
    return int(found)
