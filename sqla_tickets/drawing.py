"""One draw on one server: attempts until it has answered, and the two checks on each ticket."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Final, NoReturn

from . import looking, tables
from .aio import pause
from .errors import (
    GivenUp,
    StaleConnection,
    TicketError,
    TicketsExhausted,
    TicketTableError,
    TicketTableMoved,
    TicketViolation,
)
from .faults import Fault, fault_of
from .flight import Cut, Flight
from .statements import largest_ticket

if TYPE_CHECKING:
    from .connections import Connection
    from .layouts import Layout
    from .server import TicketServer
    from .ticket_table import TicketTable

__all__ = ["draw"]

log = logging.getLogger(__name__)

#: How often one draw is sent to one server while deadlocks and lock waits are all that happens.
ATTEMPTS: Final = 30
#: Seconds without a draw after which a table is met anew: others may know better by now.
IDLE: Final = 30.0
#: Seconds for which single tickets queue for the lock of a table, after one of them had waited in vain.
CROWDED: Final = 10.0
LARGEST: Final = largest_ticket(64)
#: How often one draw looks again at a table whose columns are not what they were a moment ago.
LOOKS: Final = 5


def draw(flight: Flight) -> list[range]:
    """Up to ``flight.n`` new tickets, at least one, as ascending blocks.

    Raises:
        TicketError: why the server gave none. Its breaker, or the table's, has been told.
    """
    met: list[Fault] = []
    try:
        while len(met) < ATTEMPTS:
            blocks = _attempt(flight, met)
            if blocks is not None:
                return blocks
        raise flight.server.failed(flight.table.name, Fault.BUSY, None)
    except GivenUp:
        raise
    except TicketError:
        flight.table.errors += 1
        raise


def _attempt(flight: Flight, met: list[Fault]) -> list[range] | None:
    """One attempt: blocks, or None when another one may do better after what was met so far."""
    server, table, n = flight.server, flight.table, flight.n
    connection = _connect(flight)
    flight.board(connection)
    if flight.was_cut is not None:  # just when the connection came
        _leave(connection, flight)
        raise _silent(flight, connection.reused)
    # whoever grows a sequence ends all connections, for each client to look at it anew
    layout = table.layout if table.name in connection.known_tables else None
    # a block needs the table's lock, a single ticket none: but behind many blocks it waits for ever without,
    # and where a reader keeps the lock away, a block with it
    lock = Fault.BUSY not in met if n > 1 else flight.since < table.crowded
    try:
        lately = flight.since - IDLE
        if table.epoch != server.epoch or (table.answered < lately and table.met < lately):
            flight.leave()  # others are waited for
            server.meet(table)
            layout = None
        if layout is None:
            layout = _look(server, connection, table)
            flight.board(connection)  # looking at a table takes longer than a draw
        before = table.known
        if before + n * server.place.stride > LARGEST:
            _refuse(server, table, n)
        blocks = layout.draw(connection.cursor, n, lock=lock)
    except TicketError as error:
        _leave(connection, flight)
        if isinstance(error, TicketTableError) and not isinstance(error, TicketTableMoved):
            table.breaker.trip(error)
        raise
    except Exception as error:
        fault = fault_of(error)
        if fault is Fault.TIMEOUT:
            connection.cut()  # some drivers would wait for an answer to their good-bye, too
        # only this error can have left no lock and no answer behind
        counts = layout is not None and layout.name == "counter"
        is_one_statement = counts or (n == 1 and not lock)
        _leave(connection, flight, keep=fault is Fault.AGAIN and is_one_statement)
        if flight.was_cut is not None:
            raise _silent(flight, connection.reused) from error
        if not _may_try_again(server, table, fault, met, connection.reused):
            if fault is Fault.TIMEOUT:
                raise _timed_out(flight, error, connection.reused) from error
            raise server.failed(table.name, fault, error) from error
        if fault is Fault.BUSY and n == 1:
            table.crowded = 0.0 if lock else time.monotonic() + CROWDED
        met.append(fault)
        return None
    except BaseException:  # a cancelled task, an interrupt: an answer may still be on its way
        connection.cut()
        _leave(connection, flight, keep=False)
        raise
    _leave(connection, flight)
    if not blocks:  # the row that this layout draws from is gone: find out what happened
        table.layout = None
        met.append(Fault.MISSING)
        return None
    return _accept(server, table, blocks, before)


def _look(server: TicketServer, connection: Connection, table: TicketTable) -> Layout:
    """Find out how a table is drawn from, and that its next ticket is a new one.

    That is told without drawing: whoever is refused must not bring an old number nearer to those
    that nobody has told of yet.
    """
    recalled = looking.recall(server, connection, table)
    if recalled is not None:
        return recalled
    known = table.known
    layout = looking.find(server, connection, table)
    if table.stood < known:
        tables.catch_up(connection.cursor, server.place)
        follows = tables.follows(connection.cursor, server.place, table.name, layout.name)
        if follows is not None and follows <= known:
            raise _set_back(server, table, known, follows)
    return layout


def _connect(flight: Flight) -> Connection:
    try:
        return flight.server.connect(flight)
    except Exception as error:
        flight.leave()
        if flight.was_cut is None:
            raise
        raise _silent(flight, reused=False) from error


def _leave(connection: Connection, flight: Flight, *, keep: bool = True) -> None:
    flight.leave()
    if keep and flight.was_cut is None:
        flight.server.connections.give(connection)
    else:
        flight.server.connections.discard(connection)


def _silent(flight: Flight, reused: bool) -> TicketError:
    """What is to be said of a server from whose answer the watch has cut the draw off."""
    if flight.was_cut is Cut.TIMED_OUT:
        return _timed_out(flight, None, reused)
    server, table = flight.server, flight.table
    failure = server.given_up(table.name, time.monotonic() - flight.since)
    if flight.was_cut is Cut.BEATEN and table.answered < flight.since:
        table.breaker.trip(failure)
    return failure


def _timed_out(flight: Flight, error: Exception | None, reused: bool) -> TicketError:
    """The server's fault, unless it has given others an answer since: then somebody holds the table."""
    server = flight.server
    fault = Fault.BUSY if server.alive_at > flight.since else Fault.TIMEOUT
    failure = server.failed(flight.table.name, fault, error)
    if reused:
        server.connections.close_idle()
        return StaleConnection(str(failure))
    return failure


def _refuse(server: TicketServer, table: TicketTable, n: int) -> NoReturn:
    """Give no block that would end the sequence for everybody."""
    raise TicketsExhausted(
        f"the sequence {table.name!r} on {server} stands at {table.known}: {n} more tickets would pass"
        f" {LARGEST}, the largest that there is"
    )


def _may_try_again(
    server: TicketServer, table: TicketTable, fault: Fault, met: list[Fault], reused: bool
) -> bool:
    """Whether the error says nothing against the server, and another attempt may do better."""
    if fault is Fault.AGAIN:
        longest = 0.005 * 2 ** min(met.count(fault), 5)  # nodes of a cluster meet for longer
        pause(random.uniform(0, longest))  # noqa: S311  # spreads retries, guards no secret
        return True
    if fault is Fault.LOST and reused:  # the connection may have been idle for hours
        server.connections.close_idle()
        return True
    layout = table.layout
    if layout is not None and layout.adapts(fault):
        log.warning("%s: blocks of %r are drawn a slower way: %s", server, table.name, fault.value)
        return True
    if fault in (Fault.MISSING, Fault.SHAPE, Fault.EXHAUSTED):
        table.layout = None  # the table may have been converted since it was found
        # while it is altered again and again, each look at it may come between two alterations
        return met.count(fault) < (LOOKS if fault is Fault.SHAPE else 1)
    return fault is Fault.BUSY and fault not in met


def _accept(
    server: TicketServer, table: TicketTable, blocks: list[range], before: int
) -> list[range]:
    """The two checks on each ticket, and what the next draws are compared with."""
    offset, stride = server.place.offset, server.place.stride
    last = before
    for block in blocks:
        if (block[0] - offset) % stride:
            expected = f"a ticket that is {offset % stride} modulo {stride}"
            taken_over = "did a cluster take over its auto_increment_increment and offset?"
            raise _violated(server, table, "residue", expected, f"{block[0]}: {taken_over}")
        if block[0] <= last:
            raise _set_back(server, table, last, block[0])
        last = block[-1]
    if last > LARGEST:
        raise server.failed(table.name, Fault.EXHAUSTED, None)
    if not server.has_answered(table, blocks):
        raise _repeated(server, table, blocks[0][0])
    return blocks


def _set_back(server: TicketServer, table: TicketTable, last: int, found: int) -> TicketViolation:
    expected = f"a ticket above {last}, which it had issued before"
    if last == table.mark:
        before = (
            "as it was set back before" if server.is_alarm(last) else "which it had issued before"
        )
        expected = f"a ticket above {last}, {before}, as its peers know"
    why = "was it restored from a backup, promoted, truncated or altered?"
    least = server.distrust(table, last)
    return _violated(server, table, "regression", expected, f"{found}: {why}", least)


def _repeated(server: TicketServer, table: TicketTable, found: int) -> TicketViolation:
    expected = "a ticket that no other draw was given at the same time"
    why = "do two servers answer at its address?"
    least = server.distrust(table, table.high_water)
    return _violated(server, table, "regression", expected, f"{found}: {why}", least)


def _violated(
    server: TicketServer,
    table: TicketTable,
    kind: str,
    expected: str,
    found: str,
    least: int = 0,
) -> TicketViolation:
    error = TicketViolation(
        f"{server} has broken its promise for the sequence {table.name!r}: expected {expected}; found"
        f" {found} None of this draw is used, and the table is not drawn from again by this"
        " process. Raise it above every id ever issued"
        f"{f', {least} at least,' if least else ''} before clients may use it."
    )
    error.kind = kind
    server.quarantine(table, error)
    return error
