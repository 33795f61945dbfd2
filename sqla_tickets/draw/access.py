"""Access to one ticket server: its connections, its identity and its health.

It knows nothing of draws, and of the other servers only what `Peers` shows.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from sqlalchemy import URL, Engine

from ..arguments import whole_number
from ..concurrency import in_event_loop, off_the_loop, pause, random, threading, time, within
from ..connect.connection import Connection
from ..connect.engines import address_of, engine_for, shown_address
from ..connect.failures import concerns_table, failure_of
from ..connect.identity import Identity, KnownRuns
from ..connect.pool import Connections
from ..connect.timeouts import Timeouts
from ..dialects import ErrorKind
from ..errors import DrawAbandoned, TicketArgumentError, TicketError, TicketServerError
from ..tables.context import ServerContext, StatementContext
from .circuit_breaker import CircuitBreaker
from .probes import Probes
from .table_state import TicketTable
from .timing import TIMING

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

log = logging.getLogger("sqla_tickets.draw.server")
T = TypeVar("T")

#: MySQL manual 19.1.6.2: the largest auto_increment_increment.
LARGEST_STRIDE: Final = 65535

#: Called with the server that broke a promise, the sequence, and the error.
OnQuarantine: TypeAlias = "Callable[[ServerAccess, str, TicketError], None]"


class Peers(Protocol):
    """A server's view of the other servers of its pool: what it asks and tells them."""

    @property
    def margin(self) -> int:
        """How many numbers may have been issued above the last mark of a table."""
        ...

    def bound_lead(self, server: ServerAccess, table: TicketTable, last: int, /) -> None:
        """Wait until the peers that answer know of nearly all tickets up to the one to be returned."""
        ...

    def on_accepted(self, server: ServerAccess, table: TicketTable, now: float, /) -> None:
        """Called when tickets were accepted at or after the table's ``write_due``."""
        ...

    def write_last(self) -> bool:
        """Begin to write the last marks, as draws have paused; returns whether it is to be called again."""
        ...

    def on_new_generation(self, server: ServerAccess, /) -> None:
        """Called when the address leads to another server, or the server was restarted."""
        ...

    def on_return(self, server: ServerAccess, /) -> None:
        """Called when the server answers again after a failure."""
        ...

    def read_marks(
        self, server: ServerAccess, table: TicketTable, over: Connection | ServerAccess, /
    ) -> None:
        """Ask the peers for the marks of a table before a draw ``over`` this connection."""
        ...

    def judge_marks(self, server: ServerAccess, table: TicketTable, /) -> None:
        """Record the doubtful marks that prove credible."""
        ...

    def check_mark(
        self, server: ServerAccess, table: TicketTable, over: Connection | ServerAccess, /
    ) -> None:
        """Check that a peer has reported a mark of a table, or report that no peer could.

        Raises:
            TicketTableError: no peer could, and the pool requires a mark.
        """
        ...

    def first_of_cluster(
        self, server: ServerAccess, identity: Identity | None, /
    ) -> ServerAccess | None:
        """The server of the same cluster that has a smaller offset, if any."""
        ...

    def same_server(
        self, server: ServerAccess, identity: Identity | None, /
    ) -> ServerAccess | None:
        """The other server of the pool that a connection of this one really reaches, if any."""
        ...

    def is_of_earlier_generation(self, server: ServerAccess, table: TicketTable, /) -> bool:
        """Whether the sequence was dropped and created anew since this process has drawn from a table."""
        ...


@dataclass(frozen=True)
class ServerSpec:
    """A ticket server as the user specifies it for a pool.

    Args:
        bind: a URL, an ``Engine`` or an ``AsyncEngine``.
        offset: which residue class it owns, 1 to the pool's stride; by default its position, counted
            from 1, in the pool's list.

    Raises:
        TicketArgumentError: the offset is invalid.
    """

    bind: str | URL | Engine | AsyncEngine = field(repr=False)  # it may hold a password
    offset: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.offset is not None:
            whole_number("ServerSpec: offset", self.offset, 1, LARGEST_STRIDE)


class ServerAccess:
    """Access to one ticket server, and what this process knows of it. The base of `TicketServer`.

    It opens no connection until it is used.

    Attributes:
        offset: which residue class it owns.
        is_async: whether its driver is async.
        alive_at: when it last answered anything, by ``time.monotonic()``.
        probes: the probes that ping it in the background.
        identity: the database server that the last new connection led to; None before the first one, and if the
            server shows none.
        generation: increases when the address leads to another or a restarted server, or everything must be verified
            again. Members of one cluster are one server.
        returns: how often it answered again after a failure, a restart, or a change of address.
        tables: the state of each sequence's table, by the sequence's name.
    """

    def __init__(self, spec: ServerSpec, position: int, stride: int, timeouts: Timeouts) -> None:
        self._bind = spec.bind
        self.offset = position if spec.offset is None else spec.offset
        self.engine, self.timeouts = engine_for(self._bind, timeouts), timeouts
        self.connections = Connections(self.engine, str(self), timeouts)
        self.is_async = self.engine.dialect.is_async
        #: Whether its driver is synchronous, and no two threads share a connection.
        self._is_direct = not self.is_async and self.connections.alone is None
        self.context = ServerContext(str(self), self.engine.dialect, stride, self.offset)
        self.breaker = CircuitBreaker()
        self.probes = Probes()
        self.alive_at = 0.0
        self.identity: Identity | None = None
        self._known_runs: KnownRuns | None = None
        self.generation, self.returns = 1, 0
        self._asked = 0
        self._recognition = threading.Lock()
        self._peers: Callable[[], Peers | None] = lambda: None
        self._on_quarantine: OnQuarantine | None = None
        self.tables: dict[str, TicketTable] = {}

    def __str__(self) -> str:
        """The name in messages, logs and metrics: no user, no password, and no options but hosts and sockets."""
        return f"{shown_address(self.engine.url)} (offset {self.offset})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def table(self, name: str) -> TicketTable:
        """The state of the sequence's table, as this process knows it."""
        known = self.tables.get(name)
        if known is None:
            new = TicketTable(name, self.context.stride, self.context.offset)
            known = self.tables.setdefault(name, new)
        return known

    def known_sequences(self) -> list[str]:
        """The sequences that this process has asked this server about."""
        return list(self.tables)

    def known_tables(self) -> list[TicketTable]:
        """The states of the tables that this process has asked this server about."""
        return list(self.tables.values())

    def is_well(self, name: str) -> bool:
        """Whether neither the server nor the sequence's table has failed lately."""
        table = self.table(name)
        if self.breaker.reason is not None or table.quarantine is not None:
            return False
        return table.breaker.state != "open"  # an error of a table costs no wait: just try

    def not_to_be_asked(self, name: str) -> TicketError | None:
        """Why this server gets no forced trial: its table is quarantined, or it does not answer."""
        quarantine = self.table(name).quarantine
        if quarantine is not None:
            return quarantine
        return self.breaker.reason if self.breaker.timed_out else None

    def is_raised_fence(self, mark: int) -> bool:
        """Whether a mark is not a ticket of this server, but a fence that `TableAccess.raise_fence` raised."""
        return (mark - self.context.offset) % self.context.stride != 0

    def is_database_of(self, engine: Engine) -> bool:
        """Whether this server is the same database as ``engine``'s."""
        return address_of(self.engine) == address_of(engine)

    def is_also(
        self,
        other: ServerAccess,
        answered: Identity | None = None,
        over: Connection | ServerAccess | None = None,
    ) -> bool:
        """Whether both addresses are known to lead to one database now, so that both are set back together.

        Args:
            other: server of the pool.
            answered: the server that answered at this address; None for the present one.
            over: the connection to the other address; None for the server that the address leads to now.
        """
        identity = answered or self.identity
        return (
            identity is not None
            and identity.is_same_run((over or other).identity)
            and self.engine.url.database == other.engine.url.database
        )

    def leads_to(self, answered: Identity | None) -> bool:
        """Whether the address still leads to the server or cluster that answered, as far as is known."""
        return (
            answered is None
            or answered.is_same_run(self.identity)
            or answered.shares_cluster(self.identity)
        )

    # -- connections

    def connect(self, *, afresh: bool = False) -> Connection:
        """A connection for one caller, which the hedging monitor does not poll.

        Args:
            afresh: whether to open a new one even if one is idle.

        Raises:
            TicketError: no connection could be opened; the breaker has recorded it.
        """
        try:
            self._replace_lost_engine()
            connection = self.connections.open() if afresh else self.connections.acquire()
        except Exception as error:
            raise self.failed(None, self.context.dialect.error_kind(error), error) from error
        if connection.generation != self.generation:
            self.recognised(connection)
        return connection

    def use(self, work: Callable[[StatementContext], None]) -> None:
        """Send statements that draw no ticket; their failures open no breaker.

        Args:
            work: called with a connection in autocommit; may be called again if that is lost.

        Raises:
            TicketError: no connection could be opened; the breaker has recorded it.
            Exception: the driver's error.
        """

        def on(connection: Connection) -> None:
            work(self.context.over(connection.cursor, connection.identity))

        self._off_the_loop(lambda: self._in_time(self.timeouts.draw_seconds, on))

    def _in_time(self, seconds: float, work: Callable[[Connection], T], attempts: int = 1) -> T:
        """Do work that is no draw, within a time limit where the driver has none.

        Raises:
            TimeoutError: it took longer, and was cancelled.
            Exception: as `_run` raises it.
        """
        if self.is_async and in_event_loop():
            return within(seconds, lambda: self._run(work, attempts))
        if self.context.dialect.has_read_timeout:
            return self._run(work, attempts)

        def cut_in_time(connection: Connection) -> T:
            with connection.cut_after(seconds):
                return work(connection)

        return self._run(cut_in_time, attempts)

    def _run(self, work: Callable[[Connection], T], attempts: int) -> T:
        """Do ``work`` with a connection; if that was idle and is lost, with a new one.

        Args:
            work: the work.
            attempts: how often it is tried when it fails with deadlocks and lock waits only.

        Raises:
            TicketError: no connection could be opened; the breaker has recorded it.
            Exception: whatever ``work`` raises.
        """
        with self.connections.alone or contextlib.nullcontext(), self._asking():
            was_lost = False
            while True:
                connection = self.connect(afresh=was_lost)
                try:
                    result = work(connection)
                except TicketError:
                    self.connections.release(connection)
                    raise
                except Exception as error:
                    self.connections.discard(connection)
                    attempts -= 1
                    kind = self.context.dialect.error_kind(error)
                    if kind is ErrorKind.DISCONNECTED and connection.reused:
                        # it may have been idle for hours, and so may the others
                        self.connections.close_idle()
                        was_lost = True
                    elif kind in (ErrorKind.DEADLOCK, ErrorKind.LOCK_TIMEOUT) and attempts > 0:
                        # spreads retries, guards no secret
                        pause(random.uniform(0, TIMING.retry_pause_seconds))
                    else:
                        raise
                except BaseException:
                    self.connections.discard(connection)
                    raise
                else:
                    self.alive_at = time.monotonic()
                    self.connections.release(connection)
                    return result

    @contextlib.contextmanager
    def _asking(self) -> Generator[None]:
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1

    @property
    def is_asked(self) -> bool:
        """Whether a caller other than a draw waits for the server's answer now."""
        return self._asked > 0

    def _off_the_loop(self, work: Callable[[], T]) -> T:
        if in_event_loop():
            return work() if self.is_async else off_the_loop(work)
        self.check_caller()
        return work()

    def check_caller(self) -> None:
        """Check that the caller can wait for the driver.

        Raises:
            TicketArgumentError: the driver is async, and the caller is synchronous code.
        """
        if self.is_async and not in_event_loop():
            raise TicketArgumentError(
                f"{self} has an async driver, which synchronous code cannot wait for. In a coroutine, await an"
                " AsyncTicketPool; let run_sync() of an AsyncSession or AsyncConnection call a synchronous function;"
                " without an event loop, use a synchronous driver"
            )

    def new_connections(self) -> Connections:
        """New connections that share nothing with the others, if the pool was given a URL."""
        own = isinstance(self._bind, (str, URL))
        engine = engine_for(self._bind, self.timeouts) if own else self.engine
        return Connections(engine, str(self), self.timeouts)

    def close(self) -> None:
        """Close every idle connection."""
        self.connections.close_all()

    def reinit_after_fork(self) -> None:
        """In a fork: do not touch the parent's connections and locks."""
        self.connections.abandon()
        unfinished = getattr(self.engine.dialect, "server_version_info", None) is None
        if unfinished:
            # another thread may have been reading the server's version; it does not exist in the fork
            self._replace_engine()
        for table in self.known_tables():
            table.reinit_after_fork()
        self.probes, self._recognition = Probes(), threading.Lock()

    def _replace_lost_engine(self) -> None:
        if self.connections.has_lost_first:
            self._replace_engine()

    def _replace_engine(self) -> None:
        """Begin with a new engine, if the pool was given a URL: the lock of the first connection is held for ever."""
        if not isinstance(self._bind, (str, URL)):
            return
        self.engine = engine_for(self._bind, self.timeouts)
        self.connections = Connections(self.engine, str(self), self.timeouts)
        self.context = replace(self.context, sqlalchemy=self.engine.dialect)

    # -- identity

    def recognise(self, connection: Connection) -> None:
        """Begin a new generation when a connection leads to another server, or to a restarted one.

        Raises:
            TicketServerError: it leads to the cluster of another server of the pool.
        """
        identity, is_new = connection.identity, not connection.generation
        with self._recognition:  # no two runs have one generation
            runs = self._known_runs
            if identity is None:  # where a server had shown one, this may be another server
                is_known = self.identity is None or not is_new
            else:
                is_known = runs is not None and runs.has(identity, is_new=is_new)
            if runs is not None and not is_known:
                self.generation += 1
                for table in self.known_tables():  # a crash may have undone what a session saw
                    table.largest_shown = 0
            if not is_known:
                self.identity = identity
                if identity is None or runs is None:
                    self._known_runs = KnownRuns(identity)
                else:
                    self._known_runs = runs.followed_by(identity, is_new=is_new)
            generation = self.generation
        if not is_known:
            peers = self._peers()
            if peers is not None:
                peers.on_new_generation(self)
            if runs is not None:  # it may be one without an identity so far
                self._has_come_back()
        self.refuse_duplicate(identity)
        connection.generation = generation

    def recognised(self, connection: Connection) -> Connection:
        """Return this connection, or discard it if `recognise` refuses it."""
        try:
            self.recognise(connection)
        except TicketError:
            self.connections.discard(connection)
            raise
        return connection

    def verify_again(self) -> None:
        """Begin a new generation: each connection and each table is verified before it is drawn from again."""
        with self._recognition:
            self.generation += 1

    @property
    def is_duplicate(self) -> bool:
        """Whether this server was refused as a member of another server's cluster."""
        reason = self.breaker.reason
        return reason is not None and reason.kind == "duplicate"

    def refuse_duplicate(self, identity: Identity | None) -> None:
        """Check that a connection does not lead to the cluster of another server of the pool."""
        peers = self._peers()
        first = None if peers is None else peers.first_of_cluster(self, identity)
        if first is None:
            return
        assert identity is not None
        error = TicketServerError(
            f"{self} and {first} are members of one cluster ({identity.cluster}): expected independent servers. "
            f"{self} issues no tickets, because one failure of the cluster can set back both servers and their "
            "marks. Give the pool one address for the whole cluster, and an independent server in place of the other"
        )
        error.kind = "duplicate"
        self.breaker.record_failure(error, refused=True)
        raise error

    # -- health

    def failed(self, name: str | None, kind: ErrorKind, error: Exception | None) -> TicketError:
        """Translate a driver's error, and record the failure on the right breaker."""
        if kind is ErrorKind.INVALID_NAME and name is None:  # the host's, or the user's
            kind = ErrorKind.DISCONNECTED
        failure = failure_of(kind, error, str(self), self.engine.url, name, self.context.dialect)
        failure.kind = kind.word
        if kind is ErrorKind.INVALID_NAME:
            return failure
        is_full = kind is ErrorKind.TOO_MANY_CONNECTIONS and self.connections.can_do_without_more()
        if is_full and self.breaker.is_closed:
            return failure  # it serves those that are open
        if name is None or not concerns_table(kind):
            self.breaker.record_failure(
                failure, timed_out=kind is ErrorKind.TIMEOUT, refused=name is None
            )
        elif kind is ErrorKind.DUPLICATE_NUMBER:
            self.quarantine(self.table(name), failure)
        else:
            self.table(name).breaker.record_failure(failure)
        return failure

    def abandoned(self, name: str, seconds: float) -> DrawAbandoned:
        """The error of a draw whose caller no longer waits."""
        return DrawAbandoned(
            f"{self}: no answer to a draw of {name!r} for {seconds:.3f} s: check whether it is overloaded or frozen, "
            "or another session locks the ticket table"
        )

    def quarantine(self, table: TicketTable, error: TicketError) -> None:
        """Quarantine a table until an operator repairs it; verify the other tables again and drop buffered tickets."""
        table.quarantine = error
        self.verify_again()  # the cause that set back one table may have set back all of them
        if self._on_quarantine is not None:
            self._on_quarantine(self, table.name, error)
        log.critical("%s", error)

    def is_alive_again(self) -> None:
        """Close its breaker on trial, since it has answered a probe."""
        was_away = not self.breaker.is_closed
        self.breaker.admit()
        if was_away:
            self._has_come_back()

    def expect_pause(self) -> None:
        """Let the pool's hedging monitor call `Peers.write_last` when draws pause, if there is one."""

    def _has_recovered(self, table: TicketTable) -> None:
        """Record a success after a failure."""
        was_away = self.breaker.reason is not None
        self.breaker.record_success()
        table.breaker.record_success()
        if was_away:
            self._has_come_back()

    def _has_come_back(self) -> None:
        """Require a new verification of tables that were verified without this server."""
        self.returns += 1
        peers = self._peers()
        if peers is not None:
            peers.on_return(self)

    def _bound_lead(self, table: TicketTable, last: int) -> None:
        """Wait before returning tickets far above the peers' marks.

        Raises:
            TicketsExhausted: meanwhile the peers have shown that the tickets are other servers'.
        """
        peers = self._peers()
        if peers is not None:
            peers.bound_lead(self, table, last)
        if last > table.ends_at:
            raise table.exhausted(self, 0)

    def _notify_peers(self, table: TicketTable, now: float) -> None:
        """Notify the peers of new tickets."""
        peers = self._peers()
        if peers is not None:
            peers.on_accepted(self, table, now)
