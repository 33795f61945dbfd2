"""What an attempt to draw seldom needs: to inspect its table first, and what follows its error.

After an error it is classified, the connection is given back or discarded, and the draw tries again or gives up.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from typing import TYPE_CHECKING, NoReturn, Protocol

from ..concurrency import pause, random, time
from ..connect.timeouts import CONNECT_TIMING
from ..dialects import ErrorKind
from ..errors import (
    Crowded,
    DrawAbandoned,
    OutOfStep,
    StaleConnection,
    TicketArgumentError,
    TicketError,
    TicketIntegrityError,
    TicketsExhausted,
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
    """Why a draw was cut off from the server that it waited for."""

    LOST_HEDGE = "another server has answered the same draw"
    FAILED_OVER = "another draw already waits for this unresponsive server"
    TIMED_OUT = "the time is over"
    CALLER_GONE = "its caller waits for it no longer"


class Request(Protocol):
    """A draw on one server, as far as its attempts go: an `InFlightRequest`, which says what each part is."""

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
    def abandon(self) -> None: ...


def end_of_failed(request: Request, error: BaseException) -> list[range] | None:
    """Count a draw that has failed; returns the tickets of the hedge that has answered in its place, if any."""
    if not isinstance(error, TicketError):  # a cancelled task, whose draw may go on in a thread
        request.abandon()
        return None
    if not isinstance(error, DrawAbandoned):
        request.table.errors += 1
    return None if isinstance(error, TicketArgumentError) else request.answer


def not_connected(request: Request, error: Exception) -> TicketError:
    """The error of a draw without a connection; recorded on the breaker, unless the draw was cancelled."""
    request.stop_waiting()
    if request.cancelled is not None:
        return _unresponsive_error(request, reused=False)
    server = request.server
    return server.failed(None, server.context.dialect.error_kind(error), error)


def connected_too_late(request: Request, connection: Connection) -> TicketError:
    """Why a draw goes no further that was cut off just when its connection came."""
    _give_back(connection, request)
    return _unresponsive_error(request, connection.reused)


def inspect(
    request: Request, connection: Connection, *, must_ask_peers: bool
) -> tuple[Layout, int, tuple[PeerServer, ...]]:
    """Find out how a table is drawn from, and above what its next ticket has to be.

    Args:
        request: the draw.
        connection: the connection that it is sent over.
        must_ask_peers: whether the peers are to be asked first.

    Returns:
        The layout, the fence, and the peers whose marks are not in it.

    Raises:
        TicketError: it is not to be drawn from.
        Exception: the driver's error.
    """
    server, table = request.server, request.table
    since = time.monotonic()

    def find() -> None:
        nonlocal since
        request.began += time.monotonic() - since  # before its deadline is looked at
        request.wait_on(connection, CONNECT_TIMING.several_round_trips_seconds)
        server.find(connection, table)
        request.stop_waiting()
        since = time.monotonic()

    if must_ask_peers:
        request.stop_waiting()  # others are waited for
        server.ask_peers(table, connection, find)
        request.began += time.monotonic() - since
    # inspecting a table takes longer than a draw
    request.wait_on(connection, CONNECT_TIMING.several_round_trips_seconds)
    layout = _inspect(server, connection, table)
    request.wait_on(connection)
    missing = tuple(table.missing_marks)
    before = table.fence
    if before + request.n * server.context.stride > table.largest:
        _refuse(server, table, request.n)
    return layout, before, missing


def recover(
    request: Request, connection: Connection, error: BaseException, layout: Layout | None
) -> bool:
    """Clean up after an attempt that failed; whether another one may do better, else ``error`` is to be raised again.

    Args:
        request: the draw.
        connection: the connection that it was sent over.
        error: the error that it ended with.
        layout: the layout that it drew by; None if the draw failed before that was known.

    Raises:
        TicketError: why no other attempt is made, where ``error`` does not say so itself.
    """
    server, table = request.server, request.table
    refused = isinstance(error, RefusedTickets)
    if isinstance(error, RefusedTickets):
        error = _refused(server, table, error)
    if isinstance(error, TicketIntegrityError):
        # it may be the connection that is one answer behind, and not the table
        _give_back(connection, request, keep=False)
        server.quarantine(table, error)
        if refused:
            raise error
        return False
    if isinstance(error, TicketError):
        is_of_table = isinstance(error, TicketTableError) and not isinstance(
            error, TicketTableMoved
        )
        # what is open may lead to another server than the address does by now
        _give_back(connection, request, keep=not is_of_table)
        if is_of_table:
            server.connections.close_idle()
            table.breaker.record_failure(error)
        if refused:
            raise error
        return False
    if not isinstance(error, Exception):
        # a cancelled task, an interrupt: an answer may still be on its way
        connection.cancel()
        _give_back(connection, request, keep=False)
        return False
    _recover_from_driver(request, connection, error, layout)
    return True


def _recover_from_driver(
    request: Request, connection: Connection, error: Exception, layout: Layout | None
) -> None:
    server, table, n = request.server, request.table, request.n
    kind = server.context.dialect.error_kind(error)
    if kind is ErrorKind.TIMEOUT:
        connection.cancel()  # some drivers would wait for an answer to their good-bye, too
    if kind is ErrorKind.LOCK_TIMEOUT:
        _inspect_queue(connection, request)
    # only this error can have left no lock and no answer behind
    is_clean = kind is ErrorKind.DEADLOCK and layout is not None and layout.is_one_statement(n)
    _give_back(connection, request, keep=is_clean)
    if request.cancelled is not None:
        raise _unresponsive_error(request, connection.reused) from error
    was_idle = connection.reused or isinstance(error, OutOfStep)
    if not _may_try_again(request, kind, was_idle):
        if kind is ErrorKind.TIMEOUT:
            raise _timed_out(request, error, connection.reused) from error
        failure = server.failed(table.name, kind, error)
        raise (Crowded(str(failure)) if request.others_are_served else failure) from error
    if kind is ErrorKind.LOCK_TIMEOUT and table.layout is not None:
        table.layout.lock_timed_out(n)
    request.error_kinds += (kind,)


def out_of_attempts(request: Request) -> TicketError:
    """The error of a draw whose attempts have failed until its time was over, or too often."""
    failure = request.server.failed(request.table.name, ErrorKind.LOCK_TIMEOUT, None)
    return Crowded(str(failure)) if _is_in_a_queue(request) else failure


def discard_connection(
    request: Request, connection: Connection, blocks: list[range]
) -> list[range] | None:
    """The end of an attempt without a row: None, to try again. Or of one that was cancelled: its blocks stand."""
    _give_back(connection, request, keep=False)
    if not blocks:  # the row that this layout draws from is gone: find out what happened
        request.table.layout = None
        request.error_kinds += (ErrorKind.TABLE_MISSING,)
        return None
    return blocks


def _inspect(server: TableAccess, connection: Connection, table: TicketTable) -> Layout:
    """Find out how a table is drawn from, and that its next ticket is a new one.

    Look without drawing: a ticket drawn here would move a set-back counter towards issued numbers that no peer has
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
        if follows is not None and follows <= known:
            raise _set_back(server, table, known, follows)
    return layout


def _inspect_queue(connection: Connection, request: Request) -> None:
    """After a lock wait, find out whether the table serves a queue of other clients.

    The server shows that without waiting: the number of Flickr's table goes on. That asks nothing of what this
    process has seen, as a fork or a process of one thread has seen nothing.
    """
    server, number = request.server, None
    request.lock_reported, server.alive_at = True, time.monotonic()
    with contextlib.suppress(Exception):  # then it is unknown
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


def _unresponsive_error(request: Request, reused: bool) -> TicketError:
    """The error of a server whose request the monitor has cancelled."""
    if request.cancelled is CancelReason.TIMED_OUT:
        return _timed_out(request, None, reused)
    server, table = request.server, request.table
    failure = server.abandoned(table.name, time.monotonic() - request.since)
    if request.cancelled is CancelReason.LOST_HEDGE and table.answered < request.since:
        table.breaker.record_failure(failure)
    return failure


def _timed_out(request: Request, error: Exception | None, reused: bool) -> TicketError:
    """The server is unresponsive, unless it has answered others since: then another session holds the table."""
    server = request.server
    lives = server.alive_at > request.since
    if request.cancelled is not None:  # at its deadline, unless nothing was heard for a time-out
        unheard = time.monotonic() - max(server.alive_at, request.since)
        lives = unheard <= server.timeouts.timeout_seconds
    kind = ErrorKind.LOCK_TIMEOUT if lives else ErrorKind.TIMEOUT
    failure = server.failed(request.table.name, kind, error)
    if reused and not request.lock_reported:
        server.connections.close_idle()
        return StaleConnection(str(failure))
    return Crowded(str(failure)) if lives and _is_in_a_queue(request) else failure


def _is_in_a_queue(request: Request) -> bool:
    """Whether a server that lives serves others at the table that a draw was not served at in time."""
    if request.others_are_served or not request.lock_reported:
        # the server did not even report a lock in time: it has too much to do
        return True
    numbers = [] if request.queue_number is None else [request.queue_number]

    def see(context: StatementContext) -> None:
        for see in range(TIMING.queue_polls):
            if see:
                pause(TIMING.queue_seconds / (TIMING.queue_polls - 1))
            found = inspection.definition(context, request.table.name)
            if found is None or found.follows is None:
                return
            numbers.append(found.follows)
            if numbers[0] < numbers[-1]:
                return

    with contextlib.suppress(Exception):  # then it is unknown
        request.server.use(see)
    return len(numbers) > 1 and numbers[0] < numbers[-1]


def _refuse(server: TableAccess, table: TicketTable, n: int) -> NoReturn:
    """Give no block that would end the sequence for everybody."""
    raise TicketsExhausted(
        f"the sequence {table.name!r} on {server} stands at {table.fence}: {n} more tickets would pass"
        f" {table.largest}, the largest that its column holds. Widen the column to 64 bits, or begin another sequence"
    )


def _may_try_again(request: Request, kind: ErrorKind, was_idle: bool) -> bool:
    """Whether the error says nothing against the server, and another attempt may do better."""
    server, table, errors_so_far = request.server, request.table, request.error_kinds
    if kind is ErrorKind.DEADLOCK:
        doublings = min(errors_so_far.count(kind), TIMING.deadlock_doublings)
        longest = TIMING.deadlock_pause_seconds * 2**doublings  # nodes of a cluster meet for longer
        left = max(0.0, request.deadline - time.monotonic())
        pause(min(left, random.uniform(0, longest)))  # spreads retries, guards no secret
        return True
    if kind is ErrorKind.DISCONNECTED and was_idle:  # the connection may have been idle for hours
        server.connections.close_idle()
        return True
    layout = table.layout
    if layout is not None and layout.adapts(kind):
        log.warning(
            "%s: blocks of %r are drawn more slowly from now on: %s", server, table.name, kind.value
        )
        return True
    if kind in (ErrorKind.TABLE_MISSING, ErrorKind.SCHEMA_MISMATCH, ErrorKind.EXHAUSTED):
        table.layout = None  # the table may have been converted since it was found
        # while it is altered again and again, each inspection may come between two alterations
        return errors_so_far.count(kind) < (
            TIMING.max_inspections if kind is ErrorKind.SCHEMA_MISMATCH else 1
        )
    return kind in (ErrorKind.LOCK_TIMEOUT, ErrorKind.KILLED) and kind not in errors_so_far


def _refused(server: TableAccess, table: TicketTable, refused: RefusedTickets) -> TicketError:
    """The error of tickets that did not pass the fence."""
    found, stride = refused.found, table.stride
    if refused.why == "residue":
        expected = f"a ticket that is {table.offset % stride} modulo {stride}"
        taken_over = "did a cluster take over its auto_increment_increment and offset?"
        return _integrity_error(server, table, "residue", expected, f"{found}: {taken_over}")
    if refused.why == "regression":
        return _set_back(server, table, refused.last, found)
    if refused.why == "repeated":
        return _repeated(server, table, found)
    return server.failed(table.name, ErrorKind.EXHAUSTED, None)


def _set_back(
    server: TableAccess, table: TicketTable, last: int, found: int
) -> TicketIntegrityError:
    expected = f"a ticket above {last}, which it had issued before"
    if last == table.largest_mark:
        before = (
            "as it was set back before"
            if server.is_raised_fence(last)
            else "which it had issued before"
        )
        expected = f"a ticket above {last}, {before}, as its peers know"
    why = "was it restored from a backup, promoted, truncated or altered?"
    least = server.raise_fence(table, last)
    return _integrity_error(server, table, "regression", expected, f"{found}: {why}", least)


def _repeated(server: TableAccess, table: TicketTable, found: int) -> TicketIntegrityError:
    expected = "a ticket that no other draw was given at the same time"
    why = "do two servers answer at its address?"
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
    error = TicketIntegrityError(
        f"{server} has broken its promise for the sequence {table.name!r}: expected {expected}; found"
        f" {found} None of this draw is used, and the table is not drawn from again by this"
        " process. Raise it above every id ever issued"
        f"{f', {least} at least,' if least else ''} before clients may use it."
    )
    error.kind = kind
    return error
