"""The rare parts of an attempt to draw: inspecting its table first, and handling its error.

An error is classified, the connection is returned or discarded, and the draw tries again or gives up.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from typing import TYPE_CHECKING, Protocol

from ..concurrency import TaskEvent, in_background, pause, random, threading, time
from ..connect.timeouts import CONNECT_TIMING
from ..dialects import ErrorKind
from ..errors import (
    Crowded,
    Deadlocked,
    DrawAbandoned,
    OutOfStep,
    StaleConnection,
    TicketArgumentError,
    TicketError,
    TicketIntegrityError,
    TicketServerError,
    TicketTableError,
    TicketTableMoved,
)
from ..tables import inspection
from ..tables.context import StatementContext
from .table_state import RefusedTickets
from .timing import TIMING

if TYPE_CHECKING:
    from ..connect.connection import Connection
    from ..tables.layouts import Layout
    from .table_access import TableAccess
    from .table_state import PeerServer, TicketTable

log = logging.getLogger(__name__)


class CancelReason(enum.Enum):
    """Why a draw was cancelled on the server that it waited for."""

    LOST_HEDGE = "another server has answered the same draw"
    FAILED_OVER = "another draw already waits for this unresponsive server"
    TIMED_OUT = "the time is over"
    CALLER_GONE = "its caller no longer waits"


class Request(Protocol):
    """The part of an `InFlightRequest` that its attempts use; that class describes each attribute."""

    stays: bool
    began: float
    lock_reported: bool
    queue_number: int | None
    others_are_served: bool
    error_kinds: tuple[ErrorKind, ...]

    @property
    def server(self) -> TableAccess: ...
    @property
    def table(self) -> TicketTable: ...
    @property
    def n(self) -> int: ...
    @property
    def deadline(self) -> float: ...
    @property
    def since(self) -> float: ...
    @property
    def cancelled(self) -> CancelReason | None: ...
    @property
    def answer(self) -> list[range] | None: ...
    def wait_on(self, connection: Connection, patience: float = 0.0, /) -> None: ...
    def stop_waiting(self) -> None: ...


def end_of_failed(request: Request, error: BaseException) -> list[range] | None:
    """Count a failed draw; returns the tickets of the hedge that answered instead, if any."""
    if not isinstance(error, TicketError):  # a cancelled task, an interrupt
        return None
    if not isinstance(error, (DrawAbandoned, Deadlocked)):
        request.table.errors += 1
    return None if isinstance(error, TicketArgumentError) else request.answer


def not_connected(request: Request, error: Exception) -> TicketError:
    """The error of a draw without a connection; recorded on the breaker, unless the draw was cancelled."""
    request.stop_waiting()
    server = request.server
    reason = server.breaker.reason
    if request.cancelled is CancelReason.FAILED_OVER and reason is not None:
        # a copy, as a raised error keeps the frames of its callers
        failure = TicketServerError(str(reason))
        failure.kind = reason.kind
        return failure
    if request.cancelled is not None:
        return unresponsive_error(request, reused=False)
    return server.failed(None, server.context.dialect.error_kind(error), error)


def connected_too_late(request: Request, connection: Connection) -> TicketError:
    """The error of a draw that was cancelled at the moment when its connection came."""
    _give_back(connection, request)
    return unresponsive_error(request, connection.reused)


def inspect(
    request: Request, connection: Connection, *, must_ask_peers: bool
) -> tuple[Layout, int, list[PeerServer]]:
    """Find the layout of a table, and the number that its next ticket must be above.

    Args:
        request: the draw.
        connection: the connection that it is sent over.
        must_ask_peers: whether the peers must be asked first.

    Returns:
        The layout, the fence, and the peers whose marks are not in it.

    Raises:
        TicketError: the table must not be drawn from.
        Exception: the driver's error.
    """
    server, table = request.server, request.table
    since = time.monotonic()

    def find() -> None:
        nonlocal since
        request.began += time.monotonic() - since  # before its deadline is checked
        request.wait_on(connection, CONNECT_TIMING.several_round_trips_seconds)
        server.find(connection, table)
        request.stop_waiting()
        since = time.monotonic()

    if must_ask_peers:
        request.stop_waiting()  # it waits for other servers
        server.ask_peers(table, connection, find)
        request.began += time.monotonic() - since
    # inspecting a table takes longer than a draw
    request.wait_on(connection, CONNECT_TIMING.several_round_trips_seconds)
    server.context.dialect.make_durable(connection.cursor)
    layout = _inspect(server, connection, table)
    request.wait_on(connection)
    missing = list(table.missing_marks)
    before = table.fence
    if before + request.n * server.context.stride > table.ends_at:
        raise table.exhausted(server, request.n)
    return layout, before, missing


def recover(
    request: Request, connection: Connection, error: BaseException, layout: Layout | None
) -> bool:
    """Clean up after a failed attempt; True if another may succeed, False if ``error`` must be raised again.

    Args:
        request: the draw.
        connection: the connection that it was sent over.
        error: the error that it ended with.
        layout: the layout that it drew by; None if the draw failed before that was known.

    Raises:
        TicketError: why no other attempt is made, if ``error`` itself does not say.
    """
    server, table = request.server, request.table
    refused = isinstance(error, RefusedTickets)
    if isinstance(error, RefusedTickets):
        error = _refused(server, table, error)
    if isinstance(error, TicketIntegrityError):
        # the connection may be one answer behind, rather than the table wrong
        _give_back(connection, request, keep=False)
        server.quarantine(table, error)
        if refused:
            raise error
        return False
    if isinstance(error, TicketError):
        is_of_table = isinstance(error, TicketTableError) and not isinstance(
            error, TicketTableMoved
        )
        # open connections may lead to another server than the address does now
        _give_back(connection, request, keep=not is_of_table)
        if is_of_table:
            server.connections.close_idle()
            table.breaker.record_failure(error)
        if refused:
            raise error
        return False
    if not isinstance(error, Exception):
        _cut_off(connection, request)  # a cancelled task, an interrupt
        return False
    _recover_from_driver(request, connection, error, layout)
    return True


def _recover_from_driver(
    request: Request, connection: Connection, error: Exception, layout: Layout | None
) -> None:
    server, table, n = request.server, request.table, request.n
    kind = server.context.dialect.error_kind(error)
    if kind is ErrorKind.DUPLICATE_NUMBER and f"'{table.largest}'" in str(error):
        kind = ErrorKind.EXHAUSTED  # MySQL stays at the last number and finds it taken
    if kind is ErrorKind.TIMEOUT:
        connection.cancel()  # some drivers would wait for an answer to their goodbye, too
    if kind is ErrorKind.LOCK_TIMEOUT:
        try:
            _inspect_queue(connection, request)
        except BaseException:  # a cancelled task, an interrupt
            _cut_off(connection, request)
            raise
    # only after this error is it certain that no lock and no answer are left
    is_deadlock = kind is ErrorKind.DEADLOCK and layout is not None
    is_clean = is_deadlock and not connection.cursor.may_hold_lock
    _give_back(connection, request, keep=is_clean)
    if request.cancelled is not None:
        raise unresponsive_error(request, connection.reused) from error
    waited = time.monotonic() - request.since
    if kind is ErrorKind.DEADLOCK and layout is not None and waited > TIMING.long_draw_seconds:
        layout.took_long(n, waited)
    if kind is ErrorKind.DEADLOCK and not request.stays:
        raise Deadlocked(f"{server}: a deadlock ended a draw of {table.name!r}") from error
    was_idle = connection.reused or isinstance(error, OutOfStep)
    if not _may_try_again(request, kind, was_idle):
        if kind is ErrorKind.TIMEOUT:
            raise _timed_out(request, error, connection.reused) from error
        failure = server.failed(table.name, kind, error)
        raise (Crowded(str(failure)) if request.others_are_served else failure) from error
    if kind is ErrorKind.LOCK_TIMEOUT and (found := table.layout) is not None:
        found.lock_timed_out(n)
    request.error_kinds += (kind,)


def out_of_attempts(request: Request) -> TicketError:
    """The error of a draw whose attempts failed too often, or until its time was over."""
    kinds = request.error_kinds
    kind = ErrorKind.OVERLOADED
    if ErrorKind.LOCK_TIMEOUT in kinds:
        kind = ErrorKind.LOCK_TIMEOUT
    elif len(kinds) >= TIMING.max_attempts and kinds[-1] is not ErrorKind.DEADLOCK:
        kind = kinds[-1]
    failure = request.server.failed(request.table.name, kind, None)
    has_waited = kind in (ErrorKind.LOCK_TIMEOUT, ErrorKind.OVERLOADED)
    return Crowded(str(failure)) if has_waited and _is_in_a_queue(request) else failure


def discard_connection(
    request: Request, connection: Connection, blocks: list[range]
) -> list[range] | None:
    """Discard the connection of an attempt that found no row or was cancelled; returns blocks, or None to try again."""
    _give_back(connection, request, keep=False)
    if not blocks:  # the row that this layout draws from is gone: find out what happened
        request.table.layout = None
        request.error_kinds += (ErrorKind.TABLE_MISSING,)
        return None
    return blocks


def _inspect(server: TableAccess, connection: Connection, table: TicketTable) -> Layout:
    """Find the layout of a table, and check that its next ticket is a new one.

    It draws nothing: a ticket drawn here would move a set-back counter towards issued numbers that no peer has
    recorded.
    """
    unchanged = server.still_as_inspected(connection, table)
    if unchanged is not None:
        return unchanged
    known = table.fence
    layout = server.find(connection, table)
    if table.last_shown < known:
        context = server.context.over(connection.cursor)
        inspection.catch_up(context)
        follows = inspection.follows(context, table.name, layout.name, layout.stub)
        # the next ticket is the first one of the server's residue class from there on
        if follows is not None and follows + (table.offset - follows) % table.stride <= known:
            raise _set_back(server, table, known, f"a table at {table.last_shown}")
    return layout


def _inspect_queue(connection: Connection, request: Request) -> None:
    """After a lock wait, check whether the table serves a queue of other clients.

    The server shows it without a wait: the number of Flickr's table grows. This process's own draws would not show it
    in a fork, or in a process with one thread.
    """
    server, number = request.server, None
    request.lock_reported, server.alive_at = True, time.monotonic()
    with contextlib.suppress(Exception):  # then it is unknown
        request.wait_on(connection)
        context = server.context.over(connection.cursor)
        definition = inspection.definition(context, request.table.name)
        number = None if definition is None else definition.follows
    if number is not None and request.queue_number is not None and number > request.queue_number:
        request.others_are_served = True
    request.queue_number = number


def _give_back(connection: Connection, request: Request, *, keep: bool = True) -> None:
    request.stop_waiting()
    if keep and request.cancelled is None:
        request.server.connections.release(connection)
    else:
        request.server.connections.discard(connection)


def _cut_off(connection: Connection, request: Request) -> None:
    """Close a connection whose answer may still be on its way."""
    connection.cancel()
    _give_back(connection, request, keep=False)


def unresponsive_error(request: Request, reused: bool) -> TicketError:
    """The error of a server whose request the monitor cancelled."""
    if request.cancelled is CancelReason.TIMED_OUT:
        return _timed_out(request, None, reused)
    server, table = request.server, request.table
    failure = server.abandoned(table.name, time.monotonic() - request.since)
    if request.cancelled is CancelReason.LOST_HEDGE and table.answered < request.since:
        table.breaker.record_failure(failure)
    return failure


def _timed_out(request: Request, error: Exception | None, reused: bool) -> TicketError:
    """The error of a time-out: the server is unresponsive or, if it has answered others since, the table is locked."""
    server = request.server
    lives = server.alive_at > request.since
    # at its deadline, if the server has sent something within a time-out
    if request.cancelled is not None:
        unheard = time.monotonic() - max(server.alive_at, request.since)
        lives = unheard <= server.timeouts.timeout_seconds
    kind = ErrorKind.TIMEOUT
    if lives:
        kind = ErrorKind.LOCK_TIMEOUT if request.lock_reported else ErrorKind.OVERLOADED
    failure = server.failed(request.table.name, kind, error)
    if reused and not request.lock_reported:
        server.connections.close_idle()
        return StaleConnection(str(failure))
    return Crowded(str(failure)) if lives and _is_in_a_queue(request) else failure


def _is_in_a_queue(request: Request) -> bool:
    """Whether the server is alive and the table serves other clients, while this draw was not served in time."""
    if request.others_are_served or not request.lock_reported:
        # the server did not even report a lock in time: it is overloaded
        return True
    if request.queue_number is None:  # it did not answer when it was asked, or shows no number
        return False
    numbers = [request.queue_number]

    def see(context: StatementContext) -> None:
        for poll in range(TIMING.queue_polls):
            if poll:
                pause(TIMING.queue_seconds / (TIMING.queue_polls - 1))
            found = inspection.definition(context, request.table.name)
            if found is None or found.follows is None:
                return
            numbers.append(found.follows)
            if numbers[0] < numbers[-1]:
                return

    def ask() -> None:
        try:
            with contextlib.suppress(Exception):  # then it is unknown
                request.server.use(see)
        finally:
            over.set()

    # the server may be frozen by now, and the user's own Engine may have no time-outs
    in_a_task = request.server.is_async
    over = TaskEvent() if in_a_task else threading.Event()
    if in_background(ask, f"sqla_tickets queue at {request.server}", in_a_task=in_a_task):
        over.wait(2 * TIMING.queue_seconds)
    return len(numbers) > 1 and numbers[0] < numbers[-1]


def _may_try_again(request: Request, kind: ErrorKind, was_idle: bool) -> bool:
    """Whether the error does not count against the server, and another attempt may succeed."""
    server, table, errors_so_far = request.server, request.table, request.error_kinds
    if kind is ErrorKind.DEADLOCK:
        doublings = min(errors_so_far.count(kind), TIMING.deadlock_doublings)
        # nodes of a cluster conflict for longer
        longest = TIMING.deadlock_pause_seconds * 2**doublings
        left = max(0.0, request.deadline - time.monotonic())
        pause(min(left, random.uniform(0, longest)))  # spreads retries, guards no secret
        return True
    if kind is ErrorKind.DISCONNECTED and was_idle:  # the connection may have been idle for hours
        server.connections.close_idle()
        return True
    layout = table.layout
    if layout is not None and layout.adapts(kind, request.n):
        log.warning(
            "%s: tickets of %r are drawn more slowly from now on: %s",
            server,
            table.name,
            kind.value,
        )
        return True
    if kind in (ErrorKind.TABLE_MISSING, ErrorKind.SCHEMA_MISMATCH, ErrorKind.EXHAUSTED):
        table.layout = None  # the table may have been converted since it was found
        # while the table is altered repeatedly, each inspection may fall between two alterations
        return errors_so_far.count(kind) < (
            TIMING.max_inspections if kind is ErrorKind.SCHEMA_MISMATCH else 1
        )
    return kind in (ErrorKind.LOCK_TIMEOUT, ErrorKind.KILLED) and kind not in errors_so_far


def _refused(server: TableAccess, table: TicketTable, refused: RefusedTickets) -> TicketError:
    """The error of tickets that the fence refused."""
    found, stride = refused.found, table.stride
    if refused.why == "residue":
        expected = f"a ticket that is {table.offset % stride} modulo {stride}"
        taken_over = (
            "check whether a cluster changed auto_increment_increment and auto_increment_offset."
        )
        return _integrity_error(server, table, "residue", expected, f"{found}: {taken_over}")
    if refused.why == "regression":
        return _set_back(server, table, refused.last, str(found))
    if refused.why == "repeated":
        return _repeated(server, table, found)
    if table.joined is not None:
        return table.exhausted(server, 0)
    return server.failed(table.name, ErrorKind.EXHAUSTED, None)


def _set_back(
    server: TableAccess, table: TicketTable, last: int, found: str
) -> TicketIntegrityError:
    expected = f"a ticket above {last}, which it had issued before"
    if last == table.largest_mark:
        expected += ", as its peers know"
        if server.is_raised_fence(last):
            expected = (
                f"a ticket above {last}, as its peers know: a process has already found that this server"
                " was set back"
            )
    why = "find out whether it was restored from a backup, promoted, truncated or altered."
    least = server.raise_fence(table, last)
    return _integrity_error(server, table, "regression", expected, f"{found}: {why}", least)


def _repeated(server: TableAccess, table: TicketTable, found: int) -> TicketIntegrityError:
    expected = "a ticket that no concurrent draw received"
    why = "check whether two servers answer at its address."
    least = server.raise_fence(table, table.high_water)
    return _integrity_error(server, table, "regression", expected, f"{found}: {why}", least)


def _integrity_error(
    server: TableAccess,
    table: TicketTable,
    kind: str,
    expected: str,
    found: str,
    least: int = 0,
) -> TicketIntegrityError:
    repair = "Before clients use the table, raise the sequence above every id ever issued."
    if least:
        repair = (
            f"Run sqla-tickets restore --offset {table.offset} (and --pool, unless its pool is the default one), or raise"
            f" the sequence above every id ever issued (at least {least})."
        )
    error = TicketIntegrityError(
        f"{server} has broken its promise for the sequence {table.name!r}: expected {expected}; found"
        f" {found} This draw's tickets are discarded. This process has quarantined the table: it no longer draws"
        f" from it. {repair}"
    )
    error.kind = kind
    return error
