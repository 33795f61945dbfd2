"""An application with its tickets, and what it sends to either side.

Draws are counted twice: by `pool.status()`, and by the ticket drivers' own cursors, on which every
statement is a round trip. The two must agree.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import psycopg
import pymysql
from sqlalchemy import Engine, MetaData, Table, event, select, text
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import Session

from sqla_tickets import TicketPool

__all__ = ["Counted", "Inserted", "RoundTrips", "Site", "count_inserts", "many", "one"]


class Inserted(NamedTuple):
    """One INSERT that was handed to the application's driver.

    Attributes:
        table: its name.
        executemany: whether it went as a list of parameter sets.
        sets: how many.
    """

    table: str
    executemany: bool
    sets: int


def one(table: str) -> Inserted:
    """An INSERT by itself."""
    return Inserted(table, executemany=False, sets=1)


def many(table: str, rows: int) -> Inserted:
    """An INSERT of many rows at once."""
    return Inserted(table, executemany=True, sets=rows)


@dataclass
class Counted:
    """What happened meanwhile; complete when its `with` block has ended.

    Attributes:
        draws: how many the ticket servers have answered, by sequence.
        tickets: how many they have issued, by sequence.
        inserts: what the application's database was sent, in that order.
    """

    draws: Mapping[str, int] = field(default_factory=dict)
    tickets: Mapping[str, int] = field(default_factory=dict)
    inserts: list[Inserted] = field(default_factory=list)


class Site:
    """An application's database, its tables, and the ticket servers that serve them.

    Args:
        engine: of the application.
        pool: its ticket servers, with synchronous drivers.
        metadata: its tables; they are created, and so are their ticket tables.
        layout: of the ticket tables; None for the servers' own.
    """

    def __init__(
        self,
        engine: Engine,
        pool: TicketPool,
        metadata: MetaData,
        layout: Literal["replace", "counter"] | None = None,
    ) -> None:
        self.engine, self.pool = engine, pool
        self._round_trips = RoundTrips(pool)
        # Marks are written in the background, once in a while and before a draw goes far above them: here, never.
        for told in ("on_accepted", "bound_lead"):
            pool._marks.__dict__[told] = lambda *_: None
        metadata.create_all(engine)
        pool.attach(metadata)
        for name in sorted({status.sequence for status in pool.status()}):
            pool.create_table(name, layout=layout)
            # From here on draws are all that the ticket connections are used for.
            for _ in pool.servers:
                pool.next_id(name)

    @property
    def returning(self) -> bool:
        """Whether the application's database has INSERT ... RETURNING: MySQL has not."""
        return self.engine.dialect.insert_returning

    def session(self) -> Session:
        """A session on the application's database."""
        return Session(self.engine)

    @contextmanager
    def count(self) -> Iterator[Counted]:
        """Count what happens in the `with` block."""
        counted = Counted()
        draws, tickets = _so_far(self.pool)
        before = self._round_trips.sent
        with count_inserts(self.engine, counted.inserts):
            yield counted
        sent = self._round_trips.sent - before
        draws_now, tickets_now = _so_far(self.pool)
        counted.draws, counted.tickets = draws_now - draws, tickets_now - tickets
        assert sum(counted.draws.values()) == sent, "a draw is one round trip; nothing else is sent"

    def rows(self, *columns: Any) -> list[tuple[Any, ...]]:
        """What stands in the application's database, by the first column."""
        with self.engine.connect() as connection:
            found = connection.execute(select(*columns).order_by(text("1")))
            return [tuple(row) for row in found]


def _so_far(pool: TicketPool) -> tuple[Counter[str], Counter[str]]:
    draws, tickets = Counter[str](), Counter[str]()
    for status in pool.status():
        assert status.last_ticket is not None, status.error
        draws[status.sequence] += status.draws
        tickets[status.sequence] += status.last_ticket // pool.stride
    return draws, tickets


@contextmanager
def count_inserts(engine: Engine, inserts: list[Inserted]) -> Iterator[None]:
    """Note every INSERT that an engine sends."""

    def count(
        conn: object,
        cursor: object,
        statement: str,
        parameters: object,
        context: DefaultExecutionContext,
        executemany: bool,
    ) -> None:
        if context.isinsert:
            assert context.compiled is not None
            table = context.compiled.compile_state.dml_table  # type: ignore[union-attr]
            assert isinstance(table, Table)
            sets = len(context.compiled_parameters)
            inserts.append(Inserted(table.name, executemany, sets))

    event.listen(engine, "before_cursor_execute", count)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", count)


class RoundTrips:
    """Counts the statements that a pool's connections send.

    Attributes:
        sent: how many.
    """

    def __init__(self, pool: TicketPool) -> None:
        self.sent = 0
        for server in pool.servers:
            event.listen(server.engine, "do_connect", self._connect)

    def _connect(
        self, dialect: Dialect, record: object, args: object, options: dict[str, Any]
    ) -> object:
        match dialect.driver:
            case "pymysql":  # a draw does without the driver's cursor
                connection = pymysql.connect(**options)
                connection.query = self._counted(connection.query)  # type: ignore[method-assign]  # its cursors call it, too
                return connection
            case "psycopg":
                options["cursor_factory"] = self._counting(psycopg.Cursor)
            case "pysqlite":
                options["factory"] = _with_cursors(self._counting(sqlite3.Cursor))
            case driver:
                raise NotImplementedError(driver)
        return None  # so SQLAlchemy connects

    def _counted(self, query: Callable[..., int]) -> Callable[..., int]:
        def send(*args: Any, **options: Any) -> int:
            self.sent += 1
            return query(*args, **options)

        return send

    def _counting(self, base: Any) -> Any:
        counter = self

        class CountingCursor(base):  # type: ignore[misc]  # a base that is known at run time only
            def execute(self, *args: Any) -> Any:
                counter.sent += 1
                return super().execute(*args)

        return CountingCursor


def _with_cursors(kind: Any) -> type[sqlite3.Connection]:
    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = kind) -> Any:
            return super().cursor(factory)

    return Connection
