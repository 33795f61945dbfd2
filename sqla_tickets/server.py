"""One ticket server: one engine, its residue class, its health.

It knows nothing of sessions and nothing of the other servers. It turns "n tickets of photos" into
checked blocks, or into one `TicketError` that says why not.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy import URL, Engine
from sqlalchemy.engine.interfaces import DBAPICursor

from . import tables
from .aio import in_event_loop, off_the_loop, pause, within
from .connections import Connection, Connections
from .engines import LOCK_WAIT, engine_for, place_of
from .errors import (
    StaleConnection,
    TicketArgumentError,
    TicketError,
    TicketServerError,
    TicketsExhausted,
    TicketTableError,
    TicketTableMissing,
    TicketTableMoved,
    TicketViolation,
)
from .faults import Fault, fault_of, missing_grant
from .health import Breaker
from .layouts import Layout, layout_of
from .note import Note
from .statements import CreateTicketTable, largest_ticket

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["TicketServer", "TicketTable"]

log = logging.getLogger(__name__)
T = TypeVar("T")

#: How often one draw is sent to one server while deadlocks and lock waits are all that happens.
ATTEMPTS: Final = 10
#: Async drivers without a read time-out.
NEVER_TIMES_OUT: Final = ("aiomysql",)
#: How often one draw looks again at a table whose columns are not what they were a moment ago.
LOOKS: Final = 5


@dataclass
class TicketTable:
    """What this process knows of one sequence's table on one server.

    Attributes:
        name: of the sequence.
        layout: how it is drawn from; None until it was found, and after it changed.
        note: what stands beside the number; None for a foreign table.
        high_water: the largest ticket that this process has received or seen; 0 before the first.
        draws: how many draws were answered.
        errors: how many failed.
        breaker: for what is wrong with this table alone.
    """

    name: str
    layout: Layout | None = None
    note: Note | None = None
    high_water: int = 0
    draws: int = 0
    errors: int = 0
    breaker: Breaker = field(default_factory=Breaker)


class TicketServer:
    """A database server that issues the tickets of one residue class.

    Args:
        bind: a URL, an ``Engine`` or an ``AsyncEngine``.
        offset: which residue class it owns, 1 to the pool's stride; by default its place, counted
            from 1, in the pool's list.
    """

    def __init__(
        self, bind: str | URL | Engine | AsyncEngine, *, offset: int | None = None
    ) -> None:
        self._bind = bind
        self.offset = offset
        self.breaker = Breaker()
        self.probing = threading.Lock()
        self._joined = False
        self._asked_for_durability = False
        self._tables: dict[str, TicketTable] = {}
        self._lock = threading.Lock()

    def join(self, place: int, stride: int, timeout: float) -> None:
        """Become the ``place``-th server of a pool. Connects to nothing.

        Raises:
            TicketArgumentError: it is in a pool already, or ``bind`` is no server.
        """
        if self._joined:
            raise TicketArgumentError(
                f"{self} is in a pool already: give each pool its own servers"
            )
        self.engine, self._timeout = engine_for(self._bind, timeout), timeout
        self.offset = place if self.offset is None else self.offset
        self._connections = Connections(self.engine)
        self._place = tables.Place(str(self), self.engine.dialect, stride, self.offset)
        self._joined = True

    def __str__(self) -> str:
        """What messages, logs and metrics call it: no user, no password, no options."""
        url = self.engine.url
        host = (url.host or "") + (f":{url.port}" if url.port else "")
        return f"{url.get_backend_name()}://{host}/{url.database or ''} (offset {self.offset})"

    def table(self, name: str) -> TicketTable:
        """What is known here of the sequence's table."""
        return self._tables.get(name) or self._tables.setdefault(name, TicketTable(name))

    def is_well(self, name: str) -> bool:
        """Whether neither the server nor the sequence's table has failed lately."""
        table = self.table(name).breaker  # what is wrong with a table is told at once: just try
        return self.breaker.is_closed and (table.is_closed or table.is_due)

    def not_to_be_asked(self, name: str) -> TicketError | None:
        """Why not even the last hope is set on this server: a quarantined table, or its silence."""
        breaker = self.table(name).breaker
        if breaker.state == "quarantined":
            return breaker.reason
        return self.breaker.reason if self.breaker.slow else None

    # -- drawing

    def draw(self, name: str, n: int) -> list[range]:
        """Up to ``n`` new tickets of the sequence ``name``, at least one, as ascending blocks.

        Raises:
            TicketError: why this server gave none. Its breaker, or the table's, has been told.
        """
        table = self.table(name)
        if self.engine.dialect.driver not in NEVER_TIMES_OUT or not in_event_loop():
            return self._off_the_loop(lambda: self._draw(table, n))
        try:
            return within(self._timeout + 2 * LOCK_WAIT, lambda: self._draw(table, n))
        except TimeoutError as error:
            self._connections.close_idle()
            table.errors += 1
            raise self._failed(name, Fault.TIMEOUT, error) from error

    def _draw(self, table: TicketTable, n: int) -> list[range]:
        try:
            met: list[Fault] = []
            while len(met) < ATTEMPTS:
                blocks = self._try_to_draw(table, n, met)
                if blocks is not None:
                    return blocks
            raise self._failed(table.name, Fault.BUSY, None)
        except TicketError:
            table.errors += 1
            raise

    def _try_to_draw(self, table: TicketTable, n: int, met: list[Fault]) -> list[range] | None:
        """One attempt: blocks, or None when another one may do better after what was met so far."""
        connection = self._connect()
        layout = table.layout if table.name in connection.known_tables else None
        try:
            layout = layout or self._find(connection, table)
            before = table.high_water
            self._see_that_they_fit(table, n)
            blocks = layout.draw(connection.cursor, n, lock=Fault.BUSY not in met)
        except TicketError as error:
            self._connections.give(connection)
            if isinstance(error, TicketTableError) and not isinstance(error, TicketTableMoved):
                table.breaker.trip(error)
            raise
        except Exception as error:
            fault = fault_of(error)
            self._end_after(connection, fault, n)
            if not self._may_try_again(table, fault, met, connection.reused):
                failure = self._failed(table.name, fault, error)
                if fault is Fault.TIMEOUT and connection.reused:
                    self._connections.close_idle()
                    failure = StaleConnection(str(failure))
                raise failure from error
            met.append(fault)
            return None
        except BaseException:  # a cancelled task, an interrupt: an answer may still be on its way
            self._connections.discard(connection)
            raise
        self._connections.give(connection)
        if not blocks:  # the row that this layout draws from is gone: find out what happened
            table.layout = None
            met.append(Fault.MISSING)
            return None
        return self._accept(table, blocks, before)

    def _see_that_they_fit(self, table: TicketTable, n: int) -> None:
        """Refuse a block that would end the sequence for everybody."""
        if table.high_water + n * self._place.stride > largest_ticket(64):
            raise TicketsExhausted(
                f"the sequence {table.name!r} on {self} stands at {table.high_water}: {n} more tickets"
                f" would pass {largest_ticket(64)}, the largest that there is"
            )

    def _end_after(self, connection: Connection, fault: Fault, n: int) -> None:
        """Keep a connection only after an error that can have left no lock and no answer behind."""
        if fault is Fault.AGAIN and n == 1:
            self._connections.give(connection)
        else:
            self._connections.discard(connection)

    def _may_try_again(
        self, table: TicketTable, fault: Fault, met: list[Fault], reused: bool
    ) -> bool:
        """Whether the error says nothing against the server, and another attempt may do better."""
        if fault is Fault.AGAIN:
            pause(random.uniform(0, 0.005))  # noqa: S311  # spreads retries, guards no secret
            return True
        if fault is Fault.LOST and reused:  # the connection may have been idle for hours
            self._connections.close_idle()
            return True
        layout = table.layout
        if layout is not None and layout.adapts(fault):
            log.warning(
                "%s: blocks of %r are drawn a slower way: %s", self, table.name, fault.value
            )
            return True
        if fault in (Fault.MISSING, Fault.SHAPE, Fault.EXHAUSTED):
            table.layout = None  # the table may have been converted since it was found
            # while it is altered again and again, each look at it may come between two alterations
            return met.count(fault) < (LOOKS if fault is Fault.SHAPE else 1)
        return fault is Fault.BUSY and fault not in met

    def _accept(self, table: TicketTable, blocks: list[range], before: int) -> list[range]:
        """The two checks on each ticket, and what the next draws are compared with."""
        offset, stride = self._place.offset, self._place.stride
        last = before
        for block in blocks:
            if (block[0] - offset) % stride:
                expected = f"a ticket that is {offset % stride} modulo {stride}"
                taken_over = "did a cluster take over its auto_increment_increment and offset?"
                raise self._violated(table, expected, f"{block[0]}: {taken_over}")
            if block[0] <= last:
                set_back = "was it restored from a backup, promoted, truncated or altered?"
                expected = f"a ticket above {last}, which it had issued before"
                raise self._violated(table, expected, f"{block[0]}: {set_back}")
            last = block[-1]
        if last > largest_ticket(64):
            raise self._failed(table.name, Fault.EXHAUSTED, None)
        with self._lock:
            table.high_water = max(table.high_water, last)
            table.draws += 1
        self.breaker.reset()
        table.breaker.reset()
        return blocks

    def _violated(self, table: TicketTable, expected: str, found: str) -> TicketViolation:
        error = TicketViolation(
            f"{self} has broken its promise for the sequence {table.name!r}: expected {expected}; found"
            f" {found} None of this draw is used, and the table is not drawn from again by this"
            " process. Raise it above every id ever issued before clients may use it."
        )
        table.breaker.quarantine(error)
        log.critical("%s", error)
        return error

    def _find(self, connection: Connection, table: TicketTable) -> Layout:
        place, cursor = self._place, connection.cursor
        self._warn_if_forgetful(connection)
        layout, table.note = tables.find(cursor, place, table.name)
        last = tables.last_ticket(cursor, place, table.name, layout)
        if table.note is None:
            tables.check_residue(place, table.name, last)
        with self._lock:
            table.high_water = max(table.high_water, last)
        found = table.layout
        if found is None or found.name != layout:
            found = layout_of(layout, table.name, place.dialect, place.stride, place.offset)
            table.layout = found
        connection.known_tables.add(table.name)
        return found

    def _warn_if_forgetful(self, connection: Connection) -> None:
        """Say once that a crash of this server can bring tickets back that it has issued."""
        if self._place.dialect.name not in ("mysql", "mariadb") or self._asked_for_durability:
            return
        self._asked_for_durability = True
        with contextlib.suppress(Exception):  # what stands in for MySQL need not have the variable
            connection.cursor.execute("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit", ())
            ((found,),) = connection.cursor.fetchall()
            if int(found) != 1:
                log.warning(
                    "%s has innodb_flush_log_at_trx_commit = %s: after a crash it issues tickets of the"
                    " last second again. Set it to 1 on ticket servers.",
                    self,
                    found,
                )

    # -- tables

    def create(self, element: CreateTicketTable) -> None:
        """Create the table with its row, or see that it is there and this pool's.

        Raises:
            TicketError: the server failed, or has another table of that name, or an empty one.
        """

        def work(connection: Connection, place: tables.Place) -> None:
            tables.create(connection.cursor, place, element)
            self.table(element.name).breaker.reset()

        self._off_the_loop(lambda: self._do(element.name, work))

    def drop(self, name: str) -> None:
        """Drop the table, if it is there, and forget what was known of it.

        Raises:
            TicketError: the server failed.
        """

        def work(connection: Connection, place: tables.Place) -> None:
            tables.drop(connection.cursor, place, name)
            self._tables.pop(name, None)

        self._off_the_loop(lambda: self._do(name, work))

    def last_ticket(self, name: str) -> int:
        """The largest ticket that the server shows now, whoever drew it.

        Raises:
            TicketError: the server failed, or has no such table.
        """

        def work(connection: Connection, place: tables.Place) -> int:
            table = self.table(name)
            layout = table.layout or self._find(connection, table)
            return tables.last_ticket(connection.cursor, place, name, layout.name)

        return self._off_the_loop(lambda: self._do(name, work))

    def do(self, name: str, work: Callable[[DBAPICursor, tables.Place], T]) -> T:
        """Look at the table, or alter it, and forget what was known of it.

        Args:
            name: of the sequence.
            work: gets a cursor in autocommit. It may be sent again after a deadlock or a lock wait.

        Raises:
            TicketError: the server failed, or ``work`` did.
        """

        def on(connection: Connection, place: tables.Place) -> T:
            self.table(name).layout = None
            return work(connection.cursor, place)

        return self._off_the_loop(lambda: self._do(name, on))

    def _do(self, name: str, work: Callable[[Connection, tables.Place], T]) -> T:
        """Do something about a table with a connection of its own, driver's errors translated."""
        for attempt in range(1, ATTEMPTS + 1):
            connection = self._connect()
            try:
                result = work(connection, self._place)
            except TicketError:
                self._connections.give(connection)
                raise
            except Exception as error:
                self._connections.discard(connection)
                fault = fault_of(error)
                if fault in (Fault.AGAIN, Fault.BUSY) and attempt < ATTEMPTS:
                    pause(random.uniform(0, 0.05))  # noqa: S311  # spreads retries, guards no secret
                    continue
                if fault is Fault.LOST and connection.reused:  # it may have been idle for hours
                    self._connections.close_idle()
                    continue
                raise self._failed(name, fault, error) from error
            except BaseException:
                self._connections.discard(connection)
                raise
            self._connections.give(connection)
            return result
        raise AssertionError("the last attempt returns or raises")

    def say_hello(self) -> None:
        """Open a connection and keep it, to see that the server answers; closes its breaker.

        Raises:
            TicketError: it does not.
        """
        try:
            connection = self._connections.open()
        except Exception as error:
            raise self._failed(None, fault_of(error), error) from error
        self._connections.keep(connection)
        self.breaker.admit()

    def known_sequences(self) -> list[str]:
        """The sequences that this process has asked this server about."""
        return list(self._tables)

    def is_database_of(self, engine: Engine) -> bool:
        """Whether this SQLite server is the very database that ``engine`` works on."""
        return place_of(self.engine) == place_of(engine)

    # -- connections and errors

    def _off_the_loop(self, work: Callable[[], T]) -> T:
        if in_event_loop():
            return work() if self.engine.dialect.is_async else off_the_loop(work)
        if self.engine.dialect.is_async:
            raise TicketArgumentError(
                f"{self} has an async driver, which only an AsyncSession or an AsyncConnection can wait"
                " for: from synchronous code use a pool with a synchronous driver"
            )
        return work()

    def _connect(self) -> Connection:
        try:
            return self._connections.take()
        except Exception as error:
            raise self._failed(None, fault_of(error), error) from error

    def _failed(self, name: str | None, fault: Fault, error: Exception | None) -> TicketError:
        """What a driver's error says in this package's words; the right breaker is told."""
        said = f" ({self._without_password(error)})" if error else ""
        if fault is Fault.NAME:
            return TicketArgumentError(f"{self} cannot have a ticket table {name!r}{said}")
        if name is None or fault not in _TABLE_FAULTS:
            advice = _ADVICE.get(fault, "is it running, and reachable from here?")
            failure: TicketError = TicketServerError(f"{self}: {fault.value}{said}: {advice}")
            self.breaker.trip(failure, slow=fault is Fault.TIMEOUT)
            return failure
        kind, advice = _TABLE_FAULTS[fault]
        if fault is Fault.DENIED and error is not None:
            url = self.engine.url
            advice = missing_grant(error, url.database, url.username) or advice
        failure = kind(f"the ticket table {name!r} on {self}: {fault.value}{said}: {advice}")
        if fault is Fault.CONFLICT:
            self.table(name).breaker.quarantine(failure)
            log.critical("%s", failure)
        else:
            self.table(name).breaker.trip(failure)
        return failure

    def _without_password(self, error: Exception) -> str:
        password = self.engine.url.password
        return str(error).replace(str(password), "***") if password else str(error)

    def close(self) -> None:
        """Close every idle connection."""
        self._connections.close_all()

    def forget_parent(self) -> None:
        """In a fork: leave the parent's connections and locks alone."""
        self._connections.abandon()
        unfinished = getattr(self.engine.dialect, "server_version_info", None) is None
        if unfinished and isinstance(self._bind, (str, URL)):
            # another thread may have been about to learn the server's version; it is not here
            self.engine = engine_for(self._bind, self._timeout)
            self._connections = Connections(self.engine)
            self._place = replace(self._place, dialect=self.engine.dialect)
        self._lock, self.probing = threading.Lock(), threading.Lock()


_ADVICE = {
    Fault.READ_ONLY: "was it demoted? Tickets need a server that takes writes.",
    Fault.DENIED: "are the user and the password of its URL right?",
}
_TABLE_FAULTS: dict[Fault, tuple[type[TicketError], str]] = {
    Fault.BUSY: (TicketServerError, "does a backup, or an open transaction, hold it?"),
    Fault.MISSING: (
        TicketTableMissing,
        "run the migration that creates it, or pool.create_table().",
    ),
    Fault.EXHAUSTED: (TicketsExhausted, "move the sequence to a table of 64 bits."),
    Fault.CONFLICT: (TicketViolation, "it is exhausted, or its counter was set back."),
    Fault.SHAPE: (TicketTableError, "it is no ticket table."),
    Fault.DENIED: (
        TicketTableError,
        "grant the ticket user SELECT, INSERT, DELETE, UPDATE and LOCK TABLES on it.",
    ),
}
