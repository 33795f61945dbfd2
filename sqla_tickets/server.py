"""One ticket server: one engine, its residue class, its health.

It knows nothing of sessions and nothing of the other servers. It turns "n tickets of photos" into
checked blocks, or into one `TicketError` that says why not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import ref

from sqlalchemy import URL, Engine
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.util import greenlet_spawn

from . import looking, tables
from .aio import current_loop, in_event_loop, off_the_loop, pause, within
from .connections import Connection, Connections
from .drawing import ATTEMPTS, draw
from .engines import LOCK_WAIT, engine_for, place_of
from .errors import GivenUp, TicketArgumentError, TicketError, TicketServerError
from .failures import concerns_table, failure_of
from .faults import Fault, fault_of
from .flight import Flight
from .hand import drop_everything
from .health import Breaker
from .identity import Identity
from .place import Place
from .probes import Probes
from .statements import CreateTicketTable, largest_ticket
from .ticket_table import TicketTable

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from .events import Moments
    from .marks import Marks

__all__ = ["TicketServer"]

log = logging.getLogger(__name__)
T = TypeVar("T")

#: How many tickets of one server its peers may not know of yet, in all processes together.
UNTOLD: Final = 100_000

#: Seconds for a probe's ping, before it opens a connection: a firewall cuts off all that is idle.
PING: Final = 0.1

#: Async drivers without a read time-out.
NEVER_TIMES_OUT: Final = ("aiomysql",)


class TicketServer:
    """A database server that issues the tickets of one residue class.

    Args:
        bind: a URL, an ``Engine`` or an ``AsyncEngine``.
        offset: which residue class it owns, 1 to the pool's stride; by default its place, counted
            from 1, in the pool's list.

    Attributes:
        flights: the draws that are under way on it now, in this process.
        silent: those of them that have waited for too long, while nobody got an answer.
        lagging: whether one of them takes longer than is usual, so that others are better off elsewhere.
        alive_at: when it last gave a sign of life, by ``time.monotonic()``.
        probes: by which it is asked for a sign of life, beside the traffic.
        identity: which database server the last new connection has led to; None before the first,
            and where it does not tell.
        epoch: how often that has changed, its starts included.
    """

    def __init__(
        self, bind: str | URL | Engine | AsyncEngine, *, offset: int | None = None
    ) -> None:
        self._bind = bind
        self.offset = offset
        self.breaker = Breaker()
        self.probes = Probes()
        self.flights: set[Flight] = set()
        self.silent: set[Flight] = set()
        self.lagging, self.alive_at = False, 0.0
        self._apart: Connections | None = None
        self._joined = False
        self._asked_for_durability = False
        self.identity: Identity | None = None
        self.epoch = 1
        self._marks: Callable[[], Marks | None] = lambda: None
        self._moments: Moments | None = None
        self._tables: dict[str, TicketTable] = {}

    def join(self, place: int, stride: int, timeout: float) -> None:
        """Become the ``place``-th server of a pool. Connects to nothing.

        Raises:
            TicketArgumentError: it is in a pool already, or ``bind`` is no server.
        """
        if self._joined:
            raise TicketArgumentError(
                f"{self} is in a pool already: give each pool its own servers"
            )
        self.engine, self.timeout = engine_for(self._bind, timeout), timeout
        self.offset = place if self.offset is None else self.offset
        self.connections = Connections(self.engine)
        self.place = Place(str(self), self.engine.dialect, stride, self.offset)
        self._joined = True

    def listen_to(self, marks: Marks, moments: Moments) -> None:
        """Have the tables that are met compared with what the peers know of them.

        Args:
            marks: what they know.
            moments: who is told of a broken promise.
        """
        self._marks, self._moments = ref(marks), moments

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

    def is_idle(self, name: str) -> bool:
        """Whether it is well and has nothing to do, so that no other server can be better."""
        if self.flights or self.breaker.reason is not None or self.probes.are_under_way:
            return False
        return self.table(name).breaker.reason is None

    def is_suspect(self, name: str) -> bool:
        """Whether somebody waits for a sign of life from the server or from the sequence's table."""
        if self.probes.are_under_way and self.probes.are_awaited(self.alive_at):
            return True
        # one that waits although others were answered since has lost its connection
        answered = self.table(name).answered if self.silent else 0.0
        return any(f.table.name == name and f.since > answered for f in list(self.silent))

    @property
    def is_alive(self) -> bool:
        """Whether it has given a sign of life since it was doubted last, be it to a probe."""
        doubted = [flight.since for flight in list(self.silent)]
        return not self.probes.are_awaited(self.alive_at) and self.alive_at > max(
            doubted, default=0.0
        )

    def forget(self, flight: Flight) -> None:
        """A draw is not under way any more."""
        self.flights.discard(flight)
        self.silent.discard(flight)

    def load(self, name: str) -> tuple[bool, bool, int]:
        """How little there is to be said for asking this server, and not another one that is well."""
        return self.is_suspect(name), self.lagging, len(self.flights)

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
        return self.answer(Flight(self, self.table(name), n, current_loop()))

    def answer(self, flight: Flight) -> list[range]:
        """The same for a draw that somebody watches.

        Raises:
            TicketError: as `draw`.
        """
        if flight.loop is None and not self.engine.dialect.is_async:
            return draw(flight)
        if self.engine.dialect.driver not in NEVER_TIMES_OUT or not in_event_loop():
            return self._off_the_loop(lambda: draw(flight))
        try:
            return within(self.timeout + 2 * LOCK_WAIT, lambda: draw(flight))
        except TimeoutError as error:
            self.connections.close_idle()
            flight.table.errors += 1
            # others were answered meanwhile: then somebody holds the table
            fault = Fault.BUSY if self.alive_at > flight.since else Fault.TIMEOUT
            raise self.failed(flight.table.name, fault, error) from error

    def quarantine(self, table: TicketTable, error: TicketError) -> None:
        """Draw no more from a table before somebody has looked at it; trust no ticket in hand."""
        table.breaker.quarantine(error)
        drop_everything()
        log.critical("%s", error)
        if self._moments is not None:
            self._moments.tell("violated", table.name, self, error)
        marks = self._marks()
        if marks is not None:  # others are to know how far it had come
            marks.begin_to_write(self)

    def _recognise(self, connection: Connection, identity: Identity) -> None:
        """Begin a new epoch when a connection leads to another server, or it was started again."""
        known = self.identity
        if identity.is_same_run(known):
            connection.identity = known  # which tells it at a glance from now on
        else:
            self.epoch += known is not None
            self.identity = identity
            marks = self._marks()
            if marks is not None:
                marks.warn_of_twins(self)

    def meet(self, table: TicketTable) -> None:
        """Learn what the server's peers know of a table: in each epoch, before it is drawn from."""
        epoch, marks = self.epoch, self._marks()
        if marks is not None:
            marks.meet(self, table)
        if table.epoch != epoch:
            table.seen = 0
        table.look = None
        table.epoch, table.met = epoch, time.monotonic()

    def distrust(self, table: TicketTable, last: int) -> int:
        """Have every process refuse a table that was set back; returns above what it is to be raised.

        Others may have drawn more than its peers were told of, and were killed. What is left to draw
        is not to reach up to the marks, and then to those.
        """
        above = last + UNTOLD * self.place.stride + 1
        bits = table.note.bits if table.note else 64
        marks = self._marks()
        is_of_now = marks is None or not marks.is_of_former_life(self, table)
        if is_of_now and not self.is_alarm(last) and above < largest_ticket(bits):
            table.learn(above)
        return table.high_water

    def is_alarm(self, mark: int) -> bool:
        """Whether a mark is no ticket of this server, but what `distrust` made of one."""
        return (mark - self.place.offset) % self.place.stride != 0

    def warn_if_forgetful(self, connection: Connection) -> None:
        """Say once that a crash of this server can bring tickets back that it has issued."""
        if self.place.dialect.name not in ("mysql", "mariadb") or self._asked_for_durability:
            return
        self._asked_for_durability = True
        with contextlib.suppress(Exception):  # what stands in for MySQL need not have the variable
            connection.cursor.execute("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit", ())
            ((found,),) = connection.cursor.fetchall()
            if int(found) not in (1, 3):  # MariaDB's 3 flushes more often than 1
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

        def work(connection: Connection, place: Place) -> None:
            tables.create(connection.cursor, place, element)
            self.table(element.name).breaker.reset()

        self._off_the_loop(lambda: self._do(element.name, work))

    def unquarantine(self, name: str) -> None:
        """Ask a quarantined table again: it is compared anew, with one ticket that nobody gets.

        Raises:
            TicketViolation: it is no better; it stays quarantined.
            TicketError: the server failed; the table stays quarantined.
        """
        table = self.table(name)
        if table.breaker.state == "quarantined":
            table.layout, table.epoch = None, 0
            self.draw(name, 1)
            table.breaker.release()

    def drop(self, name: str) -> None:
        """Drop the table, if it is there, and forget what was known of it.

        Raises:
            TicketError: the server failed.
        """

        def work(connection: Connection, place: Place) -> None:
            tables.drop(connection.cursor, place, name)
            self._tables.pop(name, None)

        self._off_the_loop(lambda: self._do(name, work))

    def last_ticket(self, name: str) -> int:
        """The largest ticket that the server shows now, whoever drew it.

        Raises:
            TicketError: the server failed, or has no such table.
        """

        def work(connection: Connection, place: Place) -> int:
            table = self.table(name)
            layout = table.layout or looking.find(self, connection, table)
            return tables.last_ticket(connection.cursor, place, name, layout.name)

        return self._off_the_loop(lambda: self._do(name, work))

    def do(self, name: str, work: Callable[[DBAPICursor, Place], T]) -> T:
        """Look at the table, or alter it, and forget what was known of it.

        Args:
            name: of the sequence.
            work: gets a cursor in autocommit. It may be sent again after a deadlock or a lock wait.

        Raises:
            TicketError: the server failed, or ``work`` did.
        """

        def on(connection: Connection, place: Place) -> T:
            self.table(name).layout = None
            return work(connection.cursor, place)

        return self._off_the_loop(lambda: self._do(name, on))

    def _do(self, name: str, work: Callable[[Connection, Place], T]) -> T:
        """Do something about a table with a connection of its own, driver's errors translated."""
        for attempt in range(1, ATTEMPTS + 1):
            connection = self.connect()
            try:
                result = work(connection, self.place)
            except TicketError:
                self.connections.give(connection)
                raise
            except Exception as error:
                self.connections.discard(connection)
                fault = fault_of(error)
                if fault in (Fault.AGAIN, Fault.BUSY) and attempt < ATTEMPTS:
                    pause(random.uniform(0, 0.05))  # noqa: S311  # spreads retries, guards no secret
                    continue
                if fault is Fault.LOST and connection.reused:  # it may have been idle for hours
                    self.connections.close_idle()
                    continue
                raise self.failed(name, fault, error) from error
            except BaseException:
                self.connections.discard(connection)
                raise
            self.connections.give(connection)
            return result
        raise AssertionError("the last attempt returns or raises")

    def use(self, work: Callable[[DBAPICursor, Place], None]) -> None:
        """Send statements that draw nothing, and of whose failure no breaker is told.

        Args:
            work: gets a cursor in autocommit. It may be sent again after a lost connection.

        Raises:
            TicketError: there is no connection; that, the breaker is told.
            Exception: the driver's.
        """
        if self.engine.dialect.driver in NEVER_TIMES_OUT and in_event_loop():
            within(self.timeout + LOCK_WAIT, lambda: self._use(work))
        else:
            self._off_the_loop(lambda: self._use(work))

    def _use(self, work: Callable[[DBAPICursor, Place], None]) -> None:
        connection = self.connect()
        try:
            work(connection.cursor, self.place)
        except Exception as error:
            self.connections.discard(connection)
            if not connection.reused or fault_of(error) is not Fault.LOST:
                raise
        except BaseException:
            self.connections.discard(connection)
            raise
        else:
            self.connections.give(connection)
            return
        self.connections.close_idle()  # it may have been idle for hours, and so may the others
        self._use(work)

    def say_hello(self, counts: Callable[[], bool], *, afresh: bool) -> None:
        """See that the server answers; closes its breaker.

        Called in a thread that has no event loop.

        Args:
            counts: whether a failure tells anything, as no later question may be answered.
            afresh: whether to open a connection for it, even where one is idle.

        Raises:
            TicketError: it does not.
        """
        try:
            if self.engine.dialect.is_async:
                asyncio.run(greenlet_spawn(self._hello_in_a_loop))
            elif afresh or not self.connections.idle_one_answers(PING):
                self.connections.keep_spare(self.connections.open())
        except Exception as error:
            if not counts():
                raise TicketServerError(f"{self} is being asked again") from error
            raise self.failed(None, fault_of(error), error) from error
        self.alive_at = time.monotonic()
        self.breaker.admit()

    def _hello_in_a_loop(self) -> None:
        """Open a connection that no other event loop can use, and close it."""
        # loops cannot share what SQLAlchemy does once for each engine
        apart, self._apart = self._apart, None
        if apart is None:
            own = isinstance(self._bind, (str, URL))
            apart = Connections(engine_for(self._bind, self.timeout) if own else self.engine)
        try:
            apart.discard(within(self.timeout + 2 * LOCK_WAIT, apart.open))
        finally:
            self._apart = apart

    def known_sequences(self) -> list[str]:
        """The sequences that this process has asked this server about."""
        return list(self._tables)

    def known_tables(self) -> list[TicketTable]:
        """What is known of the tables that this process has asked this server about."""
        return list(self._tables.values())

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

    def connect(self, flight: Flight | None = None) -> Connection:
        """A connection of its own.

        Args:
            flight: of the draw that it is for; None for what is not watched.

        Raises:
            TicketError: there is none, and the breaker has been told; or the flight was cut.
        """
        try:
            connection = self.connections.take(flight)
        except Exception as error:
            if flight is not None and flight.was_cut is not None:
                raise
            raise self.failed(None, fault_of(error), error) from error
        if connection.identity is not self.identity and connection.identity is not None:
            self._recognise(connection, connection.identity)
        return connection

    def failed(self, name: str | None, fault: Fault, error: Exception | None) -> TicketError:
        """What a driver's error says in this package's words; the right breaker is told."""
        failure = failure_of(fault, error, str(self), self.engine.url, name)
        failure.kind = fault.name.lower()
        if fault is Fault.NAME:
            return failure
        if name is None or not concerns_table(fault):
            self.breaker.trip(failure, slow=fault is Fault.TIMEOUT, shut=name is None)
        elif fault is Fault.CONFLICT:
            self.quarantine(self.table(name), failure)
        else:
            self.table(name).breaker.trip(failure)
        return failure

    def given_up(self, name: str, seconds: float) -> GivenUp:
        """The error of a draw that was not waited for any longer."""
        return GivenUp(
            f"{self}: no answer to a draw of {name!r} for {seconds:.3f} s: is it overloaded or frozen,"
            " or does somebody hold the ticket table?"
        )

    def has_answered(self, table: TicketTable, blocks: list[range]) -> bool:
        """Remember its newest tickets, which every later one has to be above, and that all is well.

        Returns:
            False, and nothing is remembered, when another draw was given one of them at the same time.
        """
        if not table.receive(blocks):
            return False
        table.answered = self.alive_at = now = time.monotonic()
        self.breaker.reset()
        table.breaker.reset()
        marks = self._marks()
        if marks is not None:
            marks.drawn(self, table, now)
        return True

    def close(self) -> None:
        """Close every idle connection."""
        self.connections.close_all()

    def forget_parent(self) -> None:
        """In a fork: leave the parent's connections and locks alone."""
        self.connections.abandon()
        unfinished = getattr(self.engine.dialect, "server_version_info", None) is None
        if unfinished and isinstance(self._bind, (str, URL)):
            # another thread may have been about to learn the server's version; it is not here
            self.engine = engine_for(self._bind, self.timeout)
            self.connections = Connections(self.engine)
            self.place = self.place._replace(dialect=self.engine.dialect)
        self.flights, self.silent, self.lagging = set(), set(), False
        for table in self.known_tables():
            table.forget_parent()
        self._apart, self.probes = None, Probes()
