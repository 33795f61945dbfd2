"""Rows that the database selects and inserts by itself: with tickets, with bare numbers, with keys of its own."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Insert,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    func,
    insert,
    select,
)

from benchmarks.harness import Comparison, Side, compare
from benchmarks.keys import Big
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed
from sqla_tickets import TicketPool, TicketSequence, insert_from_select

__all__ = ["selecting"]

#: Rows that the client sends, of which the database makes the others.
_SENT = 1_000
metadata = MetaData()


def _table(name: str, key: Column[int]) -> Table:
    return Table(name, metadata, key, Column("title", String(50)))


source = _table("source", Column("id", BigInteger, primary_key=True, autoincrement=False))
ticketed = _table("ticketed", Column("id", BigInteger, TicketSequence(), primary_key=True))
numbered = _table("numbered", Column("id", BigInteger, primary_key=True, autoincrement=False))
counted = _table("counted", Column("id", Big, primary_key=True))


def selecting(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """INSERT ... SELECT of many rows; of the client's memory, what it takes at most."""
    n = scale.copied
    rows = select(source.c.title)
    with ExitStack() as stack:
        pool = stack.enter_context(TicketPool(list(testbed.tickets)))
        stack.enter_context(pool.attached(metadata))
        pool.create_all(metadata)
        engine = create_engine(testbed.app)
        stack.callback(engine.dispose)
        metadata.create_all(engine)
        stack.callback(metadata.drop_all, engine)
        _fill(engine, n)

        def with_tickets() -> int:
            with engine.begin() as connection:
                return insert_from_select(connection, ticketed, ["title"], rows)

        numbers = select(func.row_number().over(), source.c.title)
        sides = [
            _side("insert_from_select", engine, ticketed, with_tickets),
            _of(
                engine, "bare ROW_NUMBER()", insert(numbered).from_select(["id", "title"], numbers)
            ),
            _of(engine, "AUTO_INCREMENT", insert(counted).from_select(["title"], rows)),
        ]
        title = f"INSERT ... SELECT of {n:,} rows"
        found = compare("selecting", testbed.kind, title, "rows/s", sides, rounds=scale.rounds)
        _empty(engine, ticketed)
        found.remarks.append(f"the client's memory: {_peak(with_tickets) // 1024:,} KiB at most")
        yield found


def _fill(engine: Engine, n: int) -> None:
    """Rows to select, of which the client sends the first ones."""
    sent = min(n, _SENT)
    with engine.begin() as connection:
        connection.execute(insert(source), [{"id": i, "title": f"t{i}"} for i in range(sent)])
        while sent < n:
            more = select(source.c.id + sent, source.c.title).where(source.c.id < n - sent)
            connection.execute(insert(source).from_select(["id", "title"], more))
            sent = min(n, 2 * sent)


def _of(engine: Engine, name: str, statement: Insert) -> Side:
    def work() -> None:
        with engine.begin() as connection:
            connection.execute(statement)

    assert isinstance(statement.table, Table)
    return _side(name, engine, statement.table, work)


def _side(name: str, engine: Engine, table: Table, work: Callable[[], object]) -> Side:
    """Fill an empty table; emptying it takes its time, too, and is not measured."""

    def measure() -> float:
        _empty(engine, table)
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        with engine.connect() as connection:
            n = connection.scalar(select(func.count()).select_from(table))
        assert n
        return n / seconds

    return Side(name, measure)


def _empty(engine: Engine, table: Table) -> None:
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.execute(delete(table))
        else:
            connection.exec_driver_sql(f"TRUNCATE TABLE {table.name}")


def _peak(work: Callable[[], object]) -> int:
    """The most bytes that Python holds more while it works."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
