"""What a key does to a large table: how large its indexes become, and how fast rows still go in.

A secondary index of InnoDB's holds the primary key of each row once more. The rows are sent by the driver alone, so
that the server is what is measured; each table grows by itself, as together they would share the buffer pool.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random

from pymysql.cursors import Cursor

from benchmarks.harness import Comparison, Row
from benchmarks.peers import is_installed
from benchmarks.peers.flickr import bare_cursor
from benchmarks.peers.in_process import UUID7, new_uuid7
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed
from sqla_tickets import NodeLeases, SnowflakeGenerator, TicketPool

__all__ = ["index"]

#: Rows of one INSERT and its transaction.
AT_ONCE = 10_000
_TABLE = """
CREATE TABLE {name} (id {type} NOT NULL {counts} PRIMARY KEY, title varchar(50), owner bigint, KEY (owner))
ENGINE=InnoDB
"""
NewIds = Callable[[int], "list[object]"]


def index(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """One table for each kind of key."""
    title = "A growing table: the last tenth of its rows"
    rate = Comparison("index rate", testbed.kind, title, "rows/s", [])
    title = "The same table with its indexes (less is better)"
    size = Comparison("index size", testbed.kind, title, "bytes/row", [])
    with ExitStack() as stack:
        pool = stack.enter_context(TicketPool(list(testbed.tickets)))
        pool.create_table("large")
        cursor = stack.enter_context(bare_cursor(testbed))
        for number, (name, type_, new_ids) in enumerate(_keys(testbed, pool)):
            table = f"large_{number}"
            counts = "" if new_ids else "AUTO_INCREMENT"
            cursor.execute(_TABLE.format(name=table, type=type_, counts=counts))
            rows, last = _grow(cursor, table, new_ids, scale)
            rate.rows.append(Row(name, [last]))
            size.rows.append(Row(name, [_bytes(cursor, table) / rows]))
            rate.remarks.append(f"{name}: {rows:,} rows")
            cursor.execute(f"DROP TABLE {table}")
    yield rate
    yield size


def _keys(testbed: Testbed, pool: TicketPool) -> Iterator[tuple[str, str, NewIds | None]]:
    """Names, column types and generators; None for the server's own."""
    of_uuids = "uuid" if testbed.kind == "mariadb" else "char(32)"

    def tickets(n: int) -> list[object]:
        return list(itertools.chain.from_iterable(pool.reserve("large", n)))

    yield "TicketSequence", "bigint", tickets
    yield "SnowflakeSequence", "bigint", _snowflakes(pool)
    yield "AUTO_INCREMENT", "bigint", None
    if is_installed(UUID7):
        yield f"UUIDv7, {of_uuids}", of_uuids, _hexes(new_uuid7())
        yield "UUIDv7, binary(16)", "binary(16)", _bytes_of(new_uuid7())
    yield f"UUIDv4, {of_uuids}", of_uuids, _hexes(uuid.uuid4)
    yield "UUIDv4, binary(16)", "binary(16)", _bytes_of(uuid.uuid4)


def _snowflakes(pool: TicketPool) -> NewIds:
    NodeLeases(pool).create_table()
    made = SnowflakeGenerator(pool, "large")
    return lambda n: [*made.next_ids(n)]


def _hexes(new: Callable[[], uuid.UUID]) -> NewIds:
    return lambda n: [new().hex for _ in range(n)]


def _bytes_of(new: Callable[[], uuid.UUID]) -> NewIds:
    return lambda n: [new().bytes for _ in range(n)]


def _grow(cursor: Cursor, table: str, new_ids: NewIds | None, scale: Scale) -> tuple[int, float]:
    """Rows in the table, and how many a second the last tenth of them were."""
    owners = Random(1)
    end = time.monotonic() + scale.index_seconds
    at_once = min(AT_ONCE, scale.index_rows)
    times: list[float] = []
    # the form that the driver makes one INSERT of
    columns = (
        "(id, title, owner) VALUES (%s, %s, %s)" if new_ids else "(title, owner) VALUES (%s, %s)"
    )
    while len(times) * at_once < scale.index_rows and time.monotonic() < end:
        some = [owners.randrange(1_000_000) for _ in range(at_once)]
        values = [("t", owner) for owner in some]
        rows: list[tuple[object, ...]] = [*values]
        if new_ids:
            rows = [(new, *value) for new, value in zip(new_ids(at_once), values, strict=True)]
        start = time.perf_counter()
        cursor.executemany(f"INSERT INTO {table} {columns}", rows)
        times.append(time.perf_counter() - start)
    last = times[-max(1, len(times) // 10) :]
    return len(times) * at_once, len(last) * at_once / sum(last)


def _bytes(cursor: Cursor, table: str) -> int:
    cursor.execute(f"ANALYZE TABLE {table}")
    cursor.fetchall()
    cursor.execute(
        "SELECT data_length + index_length FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name = %s",
        [table],
    )
    ((found,),) = cursor.fetchall()
    return int(found)
