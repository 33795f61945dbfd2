"""One ticket server as its pool draws from it, and the draws in flight on it.

It turns "n tickets of photos" into checked blocks, or into one `TicketError` that says why not. It knows nothing of
sessions, and asks other servers through the `Peers` that its pool gave it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import ref

from ..concurrency import background_call, current_loop, running_loop, threading, time
from ..connect.connection import Connection
from ..connect.limit import Pending
from ..connect.timeouts import Timeouts
from ..dialects import ErrorKind
from ..errors import Deadlocked, OutOfStep, TicketError, copy_of
from ..events import Draw
from .access import OnQuarantine, Peers, ServerSpec
from .buffer import drop_everything
from .health_check import probe
from .slow_path import (
    CancelReason,
    connected_too_late,
    discard_connection,
    end_of_failed,
    inspect,
    not_connected,
    out_of_attempts,
    recover,
    unresponsive_error,
)
from .table_access import TableAccess
from .table_state import PeerServer, TicketTable
from .timing import TIMING

if TYPE_CHECKING:
    from ..events import Dispatcher
    from ..tables.layouts import Layout

__all__ = ["InFlightRequest", "Monitor", "TicketServer"]

log = logging.getLogger(__name__)


class Poller(Protocol):
    """The thread of a `Monitor`."""

    @property
    def is_awake(self) -> bool: ...
    @property
    def is_resting(self) -> bool: ...


class Monitor(Protocol):
    """The hedging monitor, as a server knows it: `HedgingMonitor` describes each part."""

    ended: int
    patience: float
    measure_at: float

    @property
    def poller(self) -> Poller: ...
    @property
    def durations(self) -> deque[float]: ...
    def wake_up(self) -> None: ...
    def hedge(self, request: InFlightRequest, /) -> None: ...
    def check(self, now: float) -> None: ...


class AnsweredElsewhere(Exception):
    """The end of a wait whose request was detached."""


class Cancelled(NamedTuple):
    """The end of a wait that another thread cancelled.

    Attributes:
        why: the reason.
        answer: the blocks that another server gave instead.
    """

    why: CancelReason
    answer: list[range] | None


class InFlightRequest:
    """One draw on one server; each of its attempts may use another connection.

    A wait ends once: with an answer, or because another thread cancels it. The first to write its `end` decides.

    Args:
        server: the server that it waits for.
        table: the sequence's table.
        n: how many tickets it wants.
        loop: the caller's event loop; None for a thread.
        under_way: a lock that the draw holds until it ends; a new one by default. A ``with`` releases it even after an
            interrupt, so the monitor sees that the draw is over.

    Attributes:
        connection: the connection that it opens, or waits on.
        hedge_of: the overdue draw on another server that it repeats, if any.
        is_patient: whether it waits for this server, as the others were tried before.
        stays: whether it tries this server again after a deadlock; else it ends with `Deadlocked`.
        began: when it began, by ``time.monotonic()``, plus the time that it waited for peers, which does not count.
        since: when its present wait began, for a connection or for an answer.
        patience: the minimum of seconds before the answer is overdue.
        overdue_seconds: after how long its thread has it polled, if the thread limits its wait itself.
        is_polled: whether the monitor must poll it.
        begun: the timestamp of the background call that waits for it, which a hedge inherits; 0 in none.
        end: empty during a wait; else how that ended, under the key 0. A dict, as ``setdefault()`` is atomic.
        is_abandoned: whether its caller is gone.
        is_unanswered: whether its server was marked unresponsive, as it had no answer.
        is_scheduled: whether its event loop is about to run an action of the monitor.
        hedged: whether it was sent to another server, too, or must not be.
        lock_reported: whether the server has reported that another session holds the table.
        queue_number: the table's next number when its last lock wait failed.
        others_are_served: whether that number grew during the next lock wait, so the table serves other clients.
        context: the caller's context variables, for the event at its end, if there are listeners.
        error_kinds: the kinds of its attempts' errors so far.
        read_late: reads its answer, if its thread limits its wait itself.
        detached: the blocks with which its caller has left; None while it waits.
        waits_for_hedge: whether its thread waits for the other server, and cannot read its answer.
    """

    # class attributes cost a draw nothing until they are set
    waits_for_hedge = is_patient = is_polled = is_scheduled = is_unanswered = hedged = stays = False
    lock_reported = others_are_served = False
    queue_number: int | None = None
    end: dict[int, Cancelled | None] = {0: None}  # noqa: RUF012  # nothing is written where the key is
    is_abandoned = False
    context: Context | None = None
    error_kinds: tuple[ErrorKind, ...] = ()
    connection: Pending | None = None
    read_late: Callable[[], int] | None = None
    detached: list[range] | None = None
    hedge_of: InFlightRequest | None = None
    began = since = patience = overdue_seconds = 0.0
    begun = 0

    def __init__(
        self,
        server: TicketServer,
        table: TicketTable,
        n: int,
        loop: asyncio.AbstractEventLoop | None = None,
        under_way: threading.Lock | None = None,
    ) -> None:
        self.server, self.table, self.n, self.loop = server, table, n, loop
        self.under_way = under_way or threading.Lock()

    @property
    def is_hedge(self) -> bool:
        """Whether it repeats an overdue draw on another server."""
        return self.hedge_of is not None

    @property
    def is_server_down(self) -> bool:
        """Whether the server was found to be down since the wait began."""
        breaker = self.server.breaker
        return breaker.reason is not None and breaker.opened_at > self.since

    @property
    def waits_for_probe(self) -> bool:
        """Whether it opens no connection yet, as a probe opens one that is then kept for a draw.

        A probe's connection may be lost without an error, so half of the time-out is left for one of its own. The
        trial of an open circuit waits for none.
        """
        server, now = self.server, time.monotonic()
        has_time = now < (self.began or now) + server.timeouts.timeout_seconds / 2
        is_kept = not server.is_async  # else it is of the probe's own event loop
        is_trial = server.breaker.reason is not None
        return has_time and is_kept and not is_trial and server.probes.are_awaited(server.alive_at)

    @property
    def is_stuck(self) -> bool:
        """Whether the server keeps draws waiting."""
        return bool(self.server.unresponsive) or self.waits_for_probe

    @property
    def is_over(self) -> bool:
        """Whether the draw is over, so that nothing waits for this request."""
        loop, has_ended = self.loop, not self.under_way.locked()
        return self.detached is None and (has_ended or (loop is not None and loop.is_closed()))

    @property
    def is_ready(self) -> bool:
        """Whether its wait is over, or its answer has come."""
        return bool(self.end) or (self.connection is not None and self.connection.has_answer)

    @property
    def is_late_hedge(self) -> bool:
        """Whether the draw that it repeats has its own answer, and waits only for this one."""
        draw = self.hedge_of
        return draw is not None and draw.waits_for_hedge and not draw.end and draw.is_ready

    @property
    def deadline(self) -> float:
        """When its wait for this server ends at the latest, by ``time.monotonic()``."""
        return (self.began or time.monotonic()) + self.server.timeouts.draw_seconds

    @property
    def cancelled(self) -> CancelReason | None:
        """Why it was cancelled on this server; None if it was not."""
        end = self.end.get(0)
        return None if end is None else end.why

    @property
    def answer(self) -> list[range] | None:
        """The blocks that another server gave instead."""
        end = self.end.get(0)
        return self.detached or (None if end is None else end.answer)

    def wait_on(self, connection: Pending, patience: float = 0.0) -> None:
        """Begin to wait for an answer on this connection, or for its opening.

        Args:
            connection: the connection that it opens, or waits on.
            patience: the minimum of seconds before the answer is overdue.
        """
        self.stop_waiting()
        if self.cancelled is not None:  # while it waited for something else
            connection.cancel()
            return
        self.connection, self.patience, self.since = connection, patience, time.monotonic()
        self.began = self.began or self.since
        self.end = {}
        self.server.in_flight.add(self)
        if self.is_abandoned:  # read after the wait has begun
            self.cancel(CancelReason.CALLER_GONE)
        self.be_polled()

    def be_polled(self) -> None:
        """Have the hedging monitor poll it from now on; it is in flight."""
        self.begun = background_call.get().timestamp
        self.is_polled = True
        self.server.wake_monitor()

    def be_overdue(self, read_late: Callable[[], int]) -> None:
        """Draw from another server in this thread, or have the hedging monitor poll it.

        On a busy machine, another thread would run later.

        Args:
            read_late: reads the answer once it has come.

        Raises:
            AnsweredElsewhere: another server has answered, and the monitor waits for the late answer.
        """
        self.read_late = read_late
        self.server.hedge(self)
        if self.detached is not None or self.end:
            raise AnsweredElsewhere
        self.be_polled()

    def detach(self, answer: list[range]) -> bool:
        """Detach it from its caller, who has another server's answer: the monitor waits for the late one.

        That shows that the server is alive. A connection that is closed would cost a busy server a new one.

        Returns:
            False if its own answer has come.
        """
        end, connection = Cancelled(CancelReason.LOST_HEDGE, answer), self.connection
        if not isinstance(connection, Connection) or (not self.end and connection.has_answer):
            return False
        earlier = self.end.setdefault(0, end)
        if earlier is not None and earlier is not end:  # it was cancelled, and its socket is shut
            self.end[0] = earlier._replace(answer=answer)
            return True
        # its thread still holds the lock, and a later draw may use the connection before it lets go
        connection.under_way, connection.cursor.request = threading.Lock(), None
        self.server.detached.add(self)
        self.is_polled = True  # one of the next draws wakes the monitor
        self.detached, self.end = answer, {}
        if self.server.connections.were_closed_since(connection):
            self.server.close_detached()
        return True

    def stop_waiting(self) -> None:
        """End the wait; after that, nothing cancels it, and `cancelled` says whether something has."""
        self.end.setdefault(0, None)
        self.server.in_flight.discard(self)

    def waits(self, seconds: float, now: float) -> bool:
        """Whether it has waited for that many seconds, and no answer is in its socket."""
        age, connection = now - self.since, self.connection
        return (
            age > seconds
            and not self.end
            and connection is not None
            and connection.can_be_cancelled
            and age > max(connection.patience, self.patience)
            and not connection.has_answer
        )

    def is_to_be_polled(self, now: float) -> bool:
        """Whether it may be overdue and its thread does not notice that by itself, or was kept from it."""
        if self.detached is not None:
            return False
        return self.is_polled or now - self.since > self.overdue_seconds + TIMING.late_tick_seconds

    def abandon(self) -> None:
        """End a draw whose caller is gone: cancel its present wait and later ones."""
        self.is_abandoned = True
        self.cancel(CancelReason.CALLER_GONE)

    def give_up(self) -> None:
        """Cancel its own wait: its time is over, or the server was found to be down."""
        is_over = time.monotonic() > self.deadline
        self.cancel(CancelReason.TIMED_OUT if is_over else CancelReason.FAILED_OVER)

    def cancel(self, why: CancelReason, answer: list[range] | None = None) -> bool:
        """Release the caller, with an answer or for the next server.

        Returns:
            False if the caller no longer waits; the answer is then unused, and a gap.
        """
        wait, end = self.end, Cancelled(why, answer)
        connection = (
            self.connection
        )  # read after the wait: it may be a later one's, but then that wait has ended
        if wait.setdefault(0, end) is not end:
            return False
        if connection is not None:
            connection.cancel()
        if self.is_unanswered:  # only its answer could have shown that the server is alive
            probe(self.server, timestamp=self.begun)
        return True


class TicketServer(TableAccess):
    """A database server that issues the tickets of one residue class.

    Args:
        spec: the server as the user gave it to the pool.
        position: its position in the pool's list, counted from 1; its offset where the spec has none.
        stride: the pool's stride.
        timeouts: the server's time-outs.

    Raises:
        TicketArgumentError: the spec's ``bind`` is not a server.

    Attributes:
        in_flight: this process's requests that wait for it.
        detached: those requests whose callers have another server's answer.
        unresponsive: those requests that have waited too long while no request got an answer.
    """

    def __init__(self, spec: ServerSpec, position: int, stride: int, timeouts: Timeouts) -> None:
        super().__init__(spec, position, stride, timeouts)
        self.in_flight: set[InFlightRequest] = set()
        self.detached: set[InFlightRequest] = set()
        self.unresponsive: set[InFlightRequest] = set()
        self._monitor: Callable[[], Monitor | None] = lambda: None
        self._events: Dispatcher | None = None

    def connect_peers(
        self, peers: Peers, on_quarantine: OnQuarantine, monitor: Monitor, events: Dispatcher
    ) -> None:
        """Connect the server to its pool: peers that verify its tables, callbacks and the monitor.

        Args:
            peers: the server's peers; only a weak reference to them is kept.
            on_quarantine: called with an integrity error, before another draw from the table.
            monitor: the monitor of overdue draws; only a weak reference to it is kept.
            events: the dispatcher, for draws.
        """
        self._peers, self._on_quarantine = ref(peers), on_quarantine
        self._monitor, self._events = ref(monitor), events

    # -- the draws in flight

    def is_unresponsive(self, name: str) -> bool:
        """Whether the server, or the sequence's table, keeps draws waiting."""
        if self.probes.are_under_way and self.probes.are_awaited(self.alive_at):
            return True
        # a request that waits although later ones were answered has lost its connection
        answered = self.table(name).answered if self.unresponsive else 0.0
        return any(f.table.name == name and f.since > answered for f in list(self.unresponsive))

    @property
    def is_alive(self) -> bool:
        """Whether it has answered a draw or a probe since it last seemed unresponsive."""
        doubted = [request.since for request in list(self.unresponsive)]
        return not self.probes.are_awaited(self.alive_at) and self.alive_at > max(
            doubted, default=0.0
        )

    def remove(self, request: InFlightRequest) -> None:
        """Remove a request that is no longer in flight."""
        self.in_flight.discard(request)
        self.unresponsive.discard(request)

    def wake_monitor(self) -> None:
        """Let the hedging monitor poll the requests in flight, if it does not do so."""
        monitor = self._monitor()
        if monitor is not None and not monitor.poller.is_awake:
            monitor.wake_up()

    def expect_pause(self) -> None:
        """Let the hedging monitor call `write_last_marks` when draws pause."""
        monitor = self._monitor()
        if monitor is not None and monitor.poller.is_resting:
            monitor.wake_up()

    def write_last_marks(self) -> bool:
        """Begin to write the last marks, as draws have paused; returns whether it is to be called again."""
        peers = self._peers()
        return peers is not None and peers.write_last()

    def hedge(self, request: InFlightRequest) -> None:
        """Draw from another server in the thread of an overdue draw, if that is better."""
        monitor = self._monitor()
        if monitor is not None:
            monitor.hedge(request)

    @property
    def patience(self) -> float:
        """After how many seconds a draw is overdue."""
        monitor = self._monitor()
        return TIMING.first_patience_seconds if monitor is None else monitor.patience

    def load(self, name: str) -> tuple[bool, bool, int]:
        """The sort key of healthy servers; lower is better.

        A draw need not open another connection because a mark is written over the only one.
        """
        return self.is_unresponsive(name), self.connections.are_lent, len(self.in_flight)

    def reinit_after_fork(self) -> None:
        """In a fork: do not touch the parent's connections, locks and draws."""
        super().reinit_after_fork()
        self.close_detached()
        self.in_flight, self.unresponsive = set(), set()

    # -- drawing

    def draw(
        self,
        name: str,
        n: int,
        *,
        is_patient: bool = False,
        stays: bool = False,
        hedge_of: InFlightRequest | None = None,
    ) -> list[range]:
        """Draw up to ``n`` new tickets of the sequence ``name``, at least one, as ascending blocks.

        Args:
            name: the sequence's name.
            n: how many are wanted.
            is_patient: whether the other servers were tried before.
            stays: whether it tries again here after a deadlock, as a patient draw and a hedge do.
            hedge_of: the draw on another server that this one repeats.

        Raises:
            TicketError: why this server gave none. Its breaker, or the table's, has recorded the failure, unless it was
                a deadlock.
        """
        if not is_patient and not stays and hedge_of is None:
            blocks = self.draw_at_once(name, n, time.monotonic())
            if blocks is not None:
                return blocks
        request = self._request(name, n, hedge_of)
        request.is_patient = is_patient
        request.stays = stays or is_patient or request.is_hedge
        return self._draw_with_care(request)

    def _request(
        self, name: str, n: int, hedge_of: InFlightRequest | None = None
    ) -> InFlightRequest:
        loop = current_loop()
        request = InFlightRequest(self, self.tables.get(name) or self.table(name), n, loop)
        request.hedge_of = hedge_of
        if self._events is not None and self._events.is_told_of_draws():
            request.context = (hedge_of and hedge_of.context) or copy_context()
        return request

    def draw_at_once(
        self, name: str, n: int, since: float, hedge_of: InFlightRequest | None = None
    ) -> list[range] | None:
        """Draw over an idle connection, from a table that is known: the path of nearly every draw.

        Args:
            name: the sequence's name.
            n: how many tickets are wanted.
            since: the time now, by ``time.monotonic()``.
            hedge_of: the draw on another server that this one repeats.

        Returns:
            The same as `draw`; None if something has to be found out first, and no ticket was drawn.

        Raises:
            TicketError: as `draw` raises it.
        """
        connections, table = self.connections, self.tables.get(name)
        monitor, events = self._monitor(), self._events
        if table is None or monitor is None or events is None:
            return None
        loop = running_loop()
        if (
            (loop is None and not self._is_direct)
            or (events.has_listeners and events.dispatch.drawn)
            or ((events.logs_draws or since > monitor.measure_at) and events.is_told_of_draws())
        ):
            return None
        idle = connections.of_threads if loop is None else connections.of_greenlet(loop)
        if not idle:
            return None
        try:
            connection = idle.pop()
        except IndexError:
            return None
        # the layout first and the fence last: marks that arrive in between count
        layout = table.layout
        lately = since - TIMING.idle_seconds
        is_known = (
            connection.is_owner_process[0]
            and name in connection.known_tables
            and connection.generation == self.generation == table.generation
            and (table.answered > lately or table.peers_asked_at > lately)
            and not table.doubtful_marks
            and not table.missing_marks
        )
        before = max(table.largest_shown, table.high_water)
        if layout is None or not is_known or before + n * table.stride > table.ends_at:
            connections.release(connection)
            return None
        request = InFlightRequest(self, table, n, loop, connection.under_way)
        request.connection, request.began, request.since = connection, since, since
        request.end = {}
        request.overdue_seconds = monitor.patience + TIMING.spare_patience_seconds
        if hedge_of is not None:
            request.hedge_of, request.stays = hedge_of, True
        try:
            with connection.under_way:
                self.in_flight.add(request)
                connection.cursor.request = request
                blocks = self._exchange(request, connection, layout, before)
                connection.cursor.request = None
        except BaseException as error:  # in no other variable, as its traceback keeps every frame
            if not self._goes_on(error, request, connection, layout):
                raise
            return request.answer or self._draw_again(request)
        if not blocks:
            discard_connection(request, connection, blocks)
            return self._draw_again(request)
        if request.end[0] is None:
            connections.release(connection)
        else:
            discard_connection(request, connection, blocks)
        if blocks[-1][-1] > table.lead_limit:
            try:
                self._bound_lead(table, blocks[-1][-1])
            except TicketError:
                table.errors += 1
                raise
        return blocks

    def _exchange(
        self, request: InFlightRequest, connection: Connection, layout: Layout, before: int
    ) -> list[range]:
        """Send a draw and accept its tickets, which must be above ``before``; none if the table's row is gone."""
        table = request.table
        has_waited = ErrorKind.LOCK_TIMEOUT in request.error_kinds
        blocks = layout.draw(connection.cursor, request.n, has_waited=has_waited)
        if not connection.is_owner_process[0]:
            raise OutOfStep("a fork: the answer is the parent's")
        request.end.setdefault(0, None)  # `stop_waiting`, without the call
        self.in_flight.discard(request)
        if blocks:
            table.accept(blocks, before)
            table.answered = self.alive_at = now = time.monotonic()
            monitor = self._monitor()
            if (seconds := now - request.since) > TIMING.long_draw_seconds:
                layout.took_long(request.n, seconds)
            if monitor is not None:
                monitor.durations.append(seconds)
                monitor.ended += 1
                if now > monitor.measure_at:
                    monitor.check(now)
            if self.breaker.failures or table.breaker.failures:
                self._has_recovered(table)
            if now >= table.write_due:
                self._notify_peers(table, now)
        if self.unresponsive:
            self.unresponsive.discard(request)
        return blocks

    def _goes_on(
        self,
        error: BaseException,
        request: InFlightRequest,
        connection: Connection,
        layout: Layout,
    ) -> bool:
        """Clean up after a failed first attempt; whether to try again, or another server has answered.

        Raises:
            TicketError: why the server gave no tickets, if ``error`` itself does not say.
        """
        if request.detached is not None:  # the connection is the monitor's
            return isinstance(error, AnsweredElsewhere)
        connection.cursor.request = None
        request.under_way = threading.Lock()  # its connection may be another draw's soon
        with request.under_way:
            try:
                if recover(request, connection, error, layout):
                    return True
                self.unresponsive.discard(request)
                return end_of_failed(request, error) is not None
            except TicketError as failure:
                self.unresponsive.discard(request)
                if end_of_failed(request, failure) is None:
                    raise
                return True

    def _draw_again(self, request: InFlightRequest) -> list[range] | None:
        """Draw after a first attempt in vain; None for a hedge, which the overdue draw's thread must not wait for."""
        return None if request.is_hedge else self._draw_with_care(request)

    def _draw_with_care(self, request: InFlightRequest) -> list[range]:
        """Draw with any connection, find out what has to be known, and try again while that may help.

        Raises:
            TicketError: why the server gave no tickets. Its breaker, or the table's, has recorded the failure.
        """
        began, blocks = time.monotonic(), list[range]()
        try:
            with request.under_way:
                try:
                    if request.loop is None and self._is_direct:
                        blocks = self._repeat(request)
                    else:
                        blocks = self._draw_indirectly(request)
                except TicketError:
                    raise
                except BaseException:  # a cancelled task, whose draw may go on in a thread
                    request.abandon()
                    raise
                finally:
                    self.remove(request)
            if blocks[-1][-1] > request.table.lead_limit:
                self._bound_lead(request.table, blocks[-1][-1])
        except (
            BaseException
        ) as error:  # in no other variable, as its traceback keeps every frame alive
            answer = end_of_failed(request, error)
            # after a deadlock, the draw goes on with another request
            if request.context is not None and not isinstance(error, Deadlocked):
                self._dispatch_drawn(request, began, [], error)
            if answer is None:
                raise
            return answer
        if request.context is not None:
            self._dispatch_drawn(request, began, blocks, None)
        return blocks

    def _dispatch_drawn(
        self,
        request: InFlightRequest,
        began: float,
        blocks: list[range],
        error: BaseException | None,
    ) -> None:
        """Notify the listeners that a draw has ended."""
        events, context = self._events, request.context
        assert events is not None
        assert context is not None
        seconds, asked = time.monotonic() - began, (request.table.name, self, request.n)
        events.drawn(Draw(events.pool, *asked, blocks, seconds, error, request.is_hedge), context)

    def _draw_indirectly(self, request: InFlightRequest) -> list[range]:
        """Draw in an event loop, or over the one connection that all threads share."""
        return self._off_the_loop(lambda: self._draw_alone(request))

    def _draw_alone(self, request: InFlightRequest) -> list[range]:
        with self.connections.alone or contextlib.nullcontext():
            return self._repeat(request)

    def _repeat(self, request: InFlightRequest) -> list[range]:
        """Repeat an attempt whose error does not count against the server, until one is answered or the time is over.

        Raises:
            TicketError: why the server gave no tickets. Its breaker, or the table's, has recorded the failure.
        """
        kinds = request.error_kinds
        while not kinds or (
            len(kinds) < TIMING.max_attempts and time.monotonic() < request.deadline
        ):
            blocks = self._attempt(request)
            if blocks:
                return blocks
            kinds = request.error_kinds
        raise out_of_attempts(request)

    def _attempt(self, request: InFlightRequest) -> list[range] | None:
        """Make one attempt; returns blocks, or None if another attempt may succeed.

        Raises:
            TicketError: the server gives no tickets.
        """
        table = request.table
        self._replace_lost_engine()
        try:
            connection = self.connections.acquire(request)
        except Exception as error:
            raise not_connected(request, error) from error
        if connection.generation != self.generation:
            try:
                self.recognise(connection)
            except TicketError:
                request.stop_waiting()
                self.connections.discard(connection)
                raise
        request.wait_on(connection)
        if request.cancelled is not None:  # at the moment when the connection came
            raise connected_too_late(request, connection)
        # a new connection may lead to another server than the last one
        layout = table.layout if table.name in connection.known_tables else None
        try:
            lately = request.since - TIMING.idle_seconds
            must_ask_peers = (
                table.generation != connection.generation
                or (table.answered < lately and table.peers_asked_at < lately)
                or bool(table.doubtful_marks)
                or (bool(table.missing_marks) and table.has_mark_to_read)
            )
            # read before the fence: a mark that arrives in between then counts
            # a tuple of a dict would break if another thread changed it, in a free-threaded interpreter
            missing: list[PeerServer] = list(table.missing_marks)
            # read after the layout: marks that another draw has just read then count here, too
            before = max(table.largest_shown, table.high_water)
            # its column may have been widened
            is_near_end = before + request.n * table.stride > table.ends_at
            if layout is None or must_ask_peers or is_near_end:
                layout, before, missing = inspect(
                    request, connection, must_ask_peers=must_ask_peers
                )
            blocks = self._exchange(request, connection, layout, before)
            if blocks and missing and table.has_learned(missing):
                drop_everything()  # these tickets, too: their buffer is closed
        except BaseException as error:  # `recover` cleans up, and says whether to try again
            if recover(request, connection, error, layout):
                return None
            raise
        if not blocks or request.cancelled is not None:
            return discard_connection(request, connection, blocks)
        self.connections.release(connection)
        return blocks

    # -- late answers

    def settle(self, request: InFlightRequest) -> None:
        """End a detached request that is ready; a second call does no harm."""
        connection = request.connection
        assert isinstance(connection, Connection)
        self.remove(request)
        try:
            self.detached.remove(request)
        except KeyError:
            return
        request.stop_waiting()
        if request.cancelled is not None:
            self.connections.discard(connection)
            unresponsive_error(request, connection.reused)  # recorded, and raised by nobody
        elif connection.has_answer and self._has_late_tickets(request, connection):
            self.alive_at = time.monotonic()
            self.connections.release(connection)
            if self._events is not None:
                self._events.discarded(request.table.name, request.n, "hedge")
        else:
            self.connections.discard(connection)

    def _has_late_tickets(self, request: InFlightRequest, connection: Connection) -> bool:
        """Read a late answer; whether it has tickets, and the connection is healthy."""
        assert request.read_late is not None
        if not connection.is_owner_process[0]:
            return False  # a fork: the answer is the parent's
        try:
            with connection.cut_after(self.timeouts.timeout_seconds):  # the rest of it may not come
                request.read_late()
        except Exception as error:  # noqa: BLE001  # any of the driver's
            kind = self.context.dialect.error_kind(error)
            if kind is ErrorKind.LOCK_TIMEOUT:
                self.failed(request.table.name, kind, error)
            else:
                probe(self)
            return False
        return True

    def close(self) -> None:
        """Close every connection that no draw uses."""
        super().close()
        self.close_detached()

    def close_detached(self) -> None:
        """Close the connections of detached requests; in a fork, forget them."""
        for request in list(self.detached):
            request.end.setdefault(0, Cancelled(CancelReason.CALLER_GONE, None))
            self.settle(request)

    def unquarantine(self, name: str) -> None:
        """Verify a quarantined table again, with one ticket that is discarded.

        Raises:
            TicketIntegrityError: its next ticket is still wrong; the table stays quarantined.
            TicketError: the server failed; the table stays quarantined.
        """
        table = self.table(name)
        verified = table.quarantine
        if verified is not None:
            table.layout, table.generation = None, 0
            request = self._request(name, 1)
            # only this table's ticket shows that it is healthy
            request.is_patient = request.stays = request.hedged = True
            self._draw_with_care(request)
            if (later := table.quarantine) not in (verified, None):  # of a draw that waited
                raise copy_of(later)
            table.release()
            # the log's last word about it was a critical one
            log.warning("drawing again from the ticket table %r on %s: it is healthy", name, self)
