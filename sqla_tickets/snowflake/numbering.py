"""Which node numbers a server leases: those of one residue class, as its table of node numbers says itself.

An address may lead to another server of the pool, and a process may have an old list of servers. So the table decides:
it says in a row of its own whose numbers it has, and nobody leases others there.

When a pool grows, the servers that have numbers give up those of the servers that join, before one of these opens.
A server that joins leases nothing until every id that was made with its numbers before is of the past.
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
from .lease_table import NAME, TABLE, Claim, latest_horizon, record_horizon, server_clock

if TYPE_CHECKING:
    from ..draw.server import TicketServer

T = TypeVar("T")
P = ParamSpec("P")

#: In place of a node number; no number is below 0.
_ROW: Final = -1
_TEXT: Final = re.compile(r"stride ([1-9][0-9]{0,4}), offset ([1-9][0-9]{0,4})")
_LONGEST_LEASE_MICROSECONDS: Final = 366 * 86_400_000_000


class _OtherServer(TicketServerError):
    """An address leads to a server that has the node numbers of another one."""


class Numbering(NamedTuple):
    """The node numbers that one server leases.

    Attributes:
        stride: how many numbers apart two of them are.
        offset: their residue class.
        since: no id was made with them by another server after this time, in microseconds since 1970.
    """

    stride: int
    offset: int
    since: int = 0

    def __str__(self) -> str:
        return f"stride {self.stride}, offset {self.offset}"


def read(context: StatementContext) -> Numbering | None:
    """The numbering that a table says it has; None where it says none.

    Raises:
        TicketTableError: what it says cannot be read.
    """
    rows = context.rows(context.dialect.compiled(read, _selection))
    if not rows:
        return None
    ((text, since),) = rows
    found = _TEXT.fullmatch(str(text))
    if found is None:
        raise TicketTableError(
            f"the row {_ROW} of {NAME!r} on {context.server} cannot be read: expected"
            f" {str(Numbering(context.stride, context.offset))!r}, found {text!r}. Compare it with the other servers'"
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
    """Do something with the node numbers of a server.

    The table is asked whose numbers it has before and after: what was done while that changed counts for nothing,
    and is done again. The answer of another server that the address leads to counts for nothing, either.

    Args:
        server: the server.
        work: gets a connection in autocommit, with the larger stride, of the table and the pool: when
            a pool grows, either may be late.
        args: what else it gets.
        kwargs: the same by name.

    Raises:
        TicketTableMissing: there is no table, or it does not say whose numbers it has.
        TicketServerError: they are another server's.
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
    """Ids of this server's numbers are all after this time, in microseconds since 1970."""
    return _of_server(context).since


def fault(context: StatementContext) -> TicketError | None:
    """Why a table leases nothing; a `TicketTableMissing` where it does not say whose numbers it has."""
    try:
        _of_server(context)
    except (TicketTableError, _OtherServer) as error:
        return error
    return None


def _of_server(context: StatementContext) -> Numbering:
    """The numbering of a table that is the server's own."""
    found = read(context)
    if found is None:
        raise TicketTableMissing(
            f"the table {NAME!r} on {context.server} does not say which node numbers it has: run"
            " NodeLeases(pool).create_table(), which writes that there. If that server was retired, give this"
            " process the new list of servers instead"
        )
    _check_fit(context, found, context.stride)
    return found


def _check_fit(context: ServerContext, found: Numbering, stride: int) -> None:
    there = f"the table {NAME!r} on {context.server} has the node numbers of {found}"
    if found.offset != context.offset:
        raise _OtherServer(
            f"{there}: expected the offset {context.offset}. Does the address lead to another server of the pool,"
            " or are its servers in another order?"
        )
    if found.stride % stride and stride % found.stride:
        raise TicketTableError(
            f"{there}: expected the stride {stride}, or one of which either is a multiple"
        )


def divide(servers: Sequence[TicketServer], stride: int) -> None:
    """Divide the node numbers between servers that have the table; idempotent, and safe to break off anywhere.

    Those that have numbers take the larger stride first. Then nobody leases a number of a server that joins, so
    it can be told up to when ids were made with them.

    Args:
        servers: the pool's servers.
        stride: the pool's stride. A table that has a larger one keeps it, and the others take it.

    Raises:
        TicketServerError: a table has another server's numbers.
        TicketTableError: it has a stride that does not fit.
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
    """Have servers lease no more numbers, as they are retired. Their owners go on to the end of their leases.

    Those that stay are told up to when: an owner may not have reached them, and the next server of these numbers asks
    them alone.

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
    """Send a statement that writes a numbering, unless another process was quicker."""
    context.send(statement)
    _check_is(context, numbering)


def _check_is(context: StatementContext, expected: Numbering | None) -> None:
    found = read(context)
    if (found and found[:2]) != (expected and expected[:2]):
        raise TicketTableError(
            f"the table {NAME!r} on {context.server} has the node numbers of {found}: expected those of the"
            f" {expected}. Does another process divide them at the same time? Try again"
        )


def _narrowing(before: Sequence[Numbering], stride: int) -> ClauseElement:
    """Give a table a larger stride, unless it has another numbering than one of these."""
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
    """The statements of `divide` for one server, to be written down.

    They cannot know up to when ids were made with its numbers. A process that leases one asks the peers.
    """
    smaller = [n for n in range(offset, stride) if stride % n == 0]
    statements = [_insert(dialect, Numbering(stride, offset))]
    if smaller:
        statements.insert(0, _narrowing([Numbering(n, offset) for n in smaller], stride))
    options = {"literal_binds": True}
    return [str(each.compile(dialect=dialect, compile_kwargs=options)) for each in statements]


def _last_id(context: StatementContext, expected: Numbering | None, own: Numbering) -> int:
    """The latest horizon that a peer has, or was told, of a server's own numbers."""
    c = TABLE.c
    catch_up(context)
    _check_is(context, expected)
    is_own = (c.node >= 0, c.node % own.stride == own.offset % own.stride)
    can_be_true = c.horizon <= server_clock() + latest_horizon(0, _LONGEST_LEASE_MICROSECONDS)
    ((horizon,),) = context.rows(select(func.max(c.horizon)).where(*is_own, can_be_true))
    return int(horizon or 0)
