"""The node numbers that a server leases: those of one residue class, which its table of node numbers names.

An address may lead to another server of the pool, and a process may have an old list of servers. So the table
decides: a row of it says which numbers it has, and no process leases others there.

When a pool grows, the old servers first give up the numbers of the servers that join. A server that joins leases
nothing until all earlier ids with its numbers are in the past.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from sqlalchemy import ClauseElement, Dialect, delete, func, or_, select, update

from ..dialects import dialect_of
from ..errors import TicketError, TicketServerError, TicketTableError, TicketTableMissing
from ..tables.context import ServerContext, StatementContext
from ..tables.inspection import catch_up
from .lease_table import MOST_AHEAD, NAME, TABLE, Claim, record_horizon, server_clock

if TYPE_CHECKING:
    from ..draw.server import TicketServer

T = TypeVar("T")
P = ParamSpec("P")

#: In place of a node number; no number is below 0.
_ROW: Final = -1
_TEXT: Final = re.compile(r"stride ([1-9][0-9]{0,4}), offset ([1-9][0-9]{0,4})")


class _OtherServer(TicketServerError):
    """Raised if an address leads to a server with another server's node numbers."""


class Numbering(NamedTuple):
    """The node numbers that one server leases.

    Attributes:
        stride: the difference between two consecutive numbers.
        offset: their residue class.
        since: the latest time of ids that earlier servers of these numbers made possible, in microseconds since 1970.
    """

    stride: int
    offset: int
    since: int = 0

    def __str__(self) -> str:
        return f"stride {self.stride}, offset {self.offset}"


def read(context: StatementContext) -> Numbering | None:
    """The numbering in a table's row; None if it has no such row.

    Raises:
        TicketTableError: the row cannot be read.
    """
    rows = context.rows(context.dialect.compiled(read, _selection))
    if not rows:
        return None
    ((text, since),) = rows
    found = _TEXT.fullmatch(str(text))
    if found is None:
        raise TicketTableError(
            f"the row {_ROW} of {NAME!r} on {context.server} cannot be read: expected"
            f" {str(Numbering(context.stride, context.offset))!r}, found {text!r}. Compare it with the other "
            f"servers' rows"
        )
    return Numbering(int(found[1]), int(found[2]), int(since))


def _selection() -> ClauseElement:
    return select(TABLE.c.holder, TABLE.c.horizon).where(TABLE.c.node == _ROW)


def ask(
    server: TicketServer,
    work: Callable[Concatenate[StatementContext, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Do ``work`` with the node numbers of a server.

    It reads the table's numbering before and after. If that changed, the work is discarded and done again. An answer
    from another server that the address leads to is discarded, too.

    Args:
        server: the server.
        work: called with a connection in autocommit and the larger stride of the table's and the pool's, as either
            may be out of date while a pool grows.
        args: more arguments of ``work``.
        kwargs: more keyword arguments of ``work``.

    Raises:
        TicketTableMissing: there is no table, or it does not say which numbers it has.
        TicketServerError: the numbers are another server's.
        TicketError: the server failed, or ``work`` did.
    """

    def do(context: StatementContext) -> T:
        before = _of_server(context)
        while True:
            of_both = replace(context, stride=max(before.stride, context.stride))
            result = work(of_both, *args, **kwargs)
            before, divided = _of_server(context), before
            if before == divided:
                return result

    try:
        return server.do(NAME, do)
    except _OtherServer:
        # what is open may lead to another server than the address does by now
        server.connections.close_idle()
        raise


def opened(context: StatementContext) -> int:
    """All ids of this server's numbers are after this time, in microseconds since 1970."""
    return _of_server(context).since


def fault(context: StatementContext) -> TicketError | None:
    """Why a table leases no numbers; a `TicketTableMissing` if it does not say which numbers it has."""
    try:
        _of_server(context)
    except (TicketTableError, _OtherServer) as error:
        return error
    return None


def _of_server(context: StatementContext) -> Numbering:
    """The numbering of the server's own table."""
    found = read(context)
    if found is None:
        raise TicketTableMissing(
            f"the table {NAME!r} on {context.server} does not say which node numbers it has: run "
            "NodeLeases(pool).create_table(), which records them. If that server was retired, give this process the "
            f"new list of servers instead"
        )
    _check_fit(context, found, context.stride)
    return found


def _check_fit(context: ServerContext, found: Numbering, stride: int) -> None:
    there = f"the table {NAME!r} on {context.server} has the node numbers of {found}"
    if found.offset != context.offset:
        raise _OtherServer(
            f"{there}: expected the offset {context.offset}. Check the address and the order of the pool's servers"
        )
    if found.stride % stride and stride % found.stride:
        raise TicketTableError(
            f"{there}: expected the stride {stride}, a multiple or a divisor of it"
        )


def divide(servers: Sequence[TicketServer], stride: int) -> None:
    """Divide the node numbers between servers that have the table; idempotent, and safe to interrupt.

    Servers with numbers first take the larger stride. Then no process leases a number of a server that joins, so the
    latest time of earlier ids is known, and is written there.

    Args:
        servers: the pool's servers.
        stride: the pool's stride. If a table has a larger one, all tables take that.

    Raises:
        TicketServerError: a table has another server's numbers.
        TicketTableError: a table's stride does not fit.
        TicketError: a server failed. Call it again when that is repaired.
    """
    found = {server: server.do(NAME, read) for server in servers}
    known = {server: each for server, each in found.items() if each is not None}
    stride = max([stride, *(each.stride for each in known.values())])
    largest = max(server.offset for server in servers)
    for server, each in known.items():
        _check_fit(server.context, each, stride)
    for server, each in known.items():
        if each.stride < largest:  # else a wrong stride would take numbers from it for nothing
            known[server] = each._replace(stride=stride)
            server.do(NAME, _write, _narrowing([each], stride), known[server])
    for server in [server for server in servers if server not in known]:
        own = Numbering(stride, server.offset)
        peers = [peer for peer in servers if peer is not server]
        since = max((peer.do(NAME, _last_id, known.get(peer), own) for peer in peers), default=0)
        own = known[server] = own._replace(since=since)
        server.do(NAME, _write, _insert(server.engine.dialect, own), own)


def is_divided(servers: Iterable[TicketServer]) -> bool:
    """Whether one of the servers leases node numbers.

    Raises:
        TicketError: a server failed.
    """
    for server in servers:
        with contextlib.suppress(TicketTableMissing):
            if server.do(NAME, read) is not None:
                return True
    return False


def close(servers: Iterable[TicketServer], staying: Sequence[TicketServer]) -> None:
    """Stop leasing numbers of servers that retire. Owners continue until their leases end.

    The horizons are recorded on the servers that stay: an owner may not have reached them, and the next server of
    these numbers asks only them.

    Raises:
        TicketError: a server failed. Call it again when that is repaired.
    """
    for server in servers:
        with contextlib.suppress(TicketTableMissing):
            server.do(NAME, lambda context: context.send(_closing()))
            own = Numbering(server.context.stride, server.offset)
            claim = Claim("", "retired", 0, server.do(NAME, _last_id, None, own))
            for peer in staying if claim.horizon else ():
                peer.do(NAME, record_horizon, own.offset % own.stride, claim)


def _closing() -> ClauseElement:
    return delete(TABLE).where(TABLE.c.node == _ROW)


def _write(context: StatementContext, statement: ClauseElement, numbering: Numbering) -> None:
    """Send a statement that writes a numbering; checks the result if another process was quicker."""
    context.send(statement)
    _check_is(context, numbering)


def _check_is(context: StatementContext, expected: Numbering | None) -> None:
    found = read(context)
    if (found and found[:2]) != (expected and expected[:2]):
        raise TicketTableError(
            f"the table {NAME!r} on {context.server} has the node numbers of {found}: expected those of the "
            f"{expected}. Another process may be dividing them: try again"
        )


def _narrowing(before: Sequence[Numbering], stride: int) -> ClauseElement:
    """Give a table a larger stride, if its numbering is one of these."""
    c = TABLE.c
    new = before[0]._replace(stride=stride)
    was = or_(*(c.holder == str(each) for each in before))
    return update(TABLE).where(c.node == _ROW, was).values(holder=str(new))


def _insert(dialect: Dialect, numbering: Numbering) -> ClauseElement:
    """Write the row of a numbering, unless there is one."""
    row = {
        "node": _ROW,
        "owner": "",
        "holder": str(numbering),
        "fence": 0,
        "duration": 0,
        "expires": 0,
        "horizon": numbering.since,
    }
    return dialect_of(dialect).upsert_largest(TABLE, [row], "fence", same="holder")


def opening(dialect: Dialect, stride: int, offset: int) -> list[str]:
    """The statements of `divide` for one server, for a script.

    A script cannot contain the latest time of earlier ids. A process that leases a number asks the peers.
    """
    smaller = [n for n in range(offset, stride) if stride % n == 0]
    statements = [_insert(dialect, Numbering(stride, offset))]
    if smaller:
        statements.insert(0, _narrowing([Numbering(n, offset) for n in smaller], stride))
    options = {"literal_binds": True}
    return [str(each.compile(dialect=dialect, compile_kwargs=options)) for each in statements]


def _last_id(context: StatementContext, expected: Numbering | None, own: Numbering) -> int:
    """The latest horizon of a server's own numbers in a peer's table."""
    c = TABLE.c
    catch_up(context)
    _check_is(context, expected)
    is_own = (c.node >= 0, c.node % own.stride == own.offset % own.stride)
    can_be_true = c.horizon <= server_clock() + MOST_AHEAD
    ((horizon,),) = context.rows(select(func.max(c.horizon)).where(*is_own, can_be_true))
    return int(horizon or 0)
