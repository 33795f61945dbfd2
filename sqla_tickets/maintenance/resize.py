# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""Resizing a pool: more ticket servers, or fewer, while old and new clients draw.

A server can join at once where the stride has a residue class to spare. Where it has none, the stride is
multiplied, as MariaDB's manual tells for AUTO_INCREMENT: of the numbers of a server of stride 2, every
other one goes to a server that joins with stride 4. What keeps them apart while clients of the old
configuration still take them all is distance: the servers that join begin a gap above.

1. `begin`: the sequence is opened on the servers that join, a gap above all others.
2. Clients get the new configuration, one after the other. Those draw from the servers that joined, as the
   metadata of the others' tables refuses them; those of the old configuration draw from the others.
3. `finish`, when no client draws with the old configuration any more: the old servers get the new stride. No
   number of theirs is above the gap, and from now on they issue every other one only. The table refuses a
   client that still has the old configuration: its stub column has another name.

The proof: a server that joined has never issued a number below the gap, and none of its class above it
is issued by any other server: not before step 3, because no draw comes so far, and not after, because the
stride skips them. Nor does a raise come so far: the old servers refuse that themselves. They are told where
the others begin before one of them is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from ..draw.server import TicketServer
from ..errors import TicketArgumentError, TicketTableError
from ..high_water.statements import GAP_NUMBERS, JOINED
from ..tables.context import StatementContext
from ..tables.inspection import ActiveTable, metadata_in
from ..tables.metadata import TableMetadata, Tombstone
from ..tables.new_table import largest_ticket, stub_of
from . import tombstones
from .handle import Servers, TableHandle, handles
from .operations import MARGIN_NUMBERS, refuse_during_resize
from .tombstones import Destination

__all__ = ["GAP_NUMBERS", "begin", "finish", "retire", "unfinished"]

log = logging.getLogger(__name__)


def begin(old: Servers, new: Servers, name: str, *, gap: int = GAP_NUMBERS, held: int = 0) -> int:
    """Open a sequence on the servers that ``new`` has and ``old`` has not.

    Args:
        old: the pool as it is.
        new: the pool as it will be: the same servers first, the same stride or a multiple.
        name: the sequence's name.
        gap: how far above the old servers the others begin, where the stride changes: more than they
            issue until `finish`.
        held: the largest id on the shards, where no ticket server has issued it.

    Returns:
        No server that joins issues this number or one below from now on.

    Raises:
        TicketArgumentError: the pools do not fit, the table is too narrow for the gap, or it has no metadata and
            the stride changes.
        TicketTableError: an old server cannot be told where the others begin, or has just come that far; or
            its table could not be closed to the old configuration at the end.
        TicketError: a server failed. Call it again when that is repaired.
    """
    _check_fit(old, new)
    states = {handle: handle.active() for handle in handles(old, name)}
    if new.stride != old.stride:
        _check_metadata(states)
    highest = max(held, *(state.number or 0 for state in states.values()))
    model = next(iter(states.values()))
    bits = 32 if model.largest <= largest_ticket(32) else 64
    largest = model.largest
    added = handles(new, name, new.servers[len(old.servers) :])
    joining = {handle: handle.inspect() for handle in added}
    stub = tombstones.stub_column(new.stride, *states.values(), *joining.values())
    if new.stride != old.stride:  # the old servers' will have it, too
        stub = stub_of(new.stride)
    closed = [state.high_water for state in joining.values() if isinstance(state, Tombstone)]
    distance = MARGIN_NUMBERS if new.stride == old.stride else gap
    # of one whose place is taken, which may have come further
    known = new._marks.of(name).prepare(opens_above=0)
    above = max(highest + distance, *closed, known + new._marks.margin if known else 0)
    if above + gap // 10 > largest:
        raise TicketArgumentError(
            f"the numbers of {name!r} end at {largest}: servers that join at {above}"
            " would have hardly any. Choose a smaller gap, or widen the tables to 64 bits"
        )
    if new.stride != old.stride and not any(isinstance(s, ActiveTable) for s in joining.values()):
        new._marks.of(name).write_joined(above)
        _check_below(old, new, name, above)
    joined = [state.number or 0 for state in joining.values() if isinstance(state, ActiveTable)]
    for handle, state in joining.items():
        layouts = handle.server.context.dialect.layouts
        element = handle.element(
            above + 1,
            layout=model.layout if model.layout in layouts else None,
            bits=bits,
            stub=stub,
            path=tombstones.path_of(model),
        )
        if isinstance(state, Tombstone):
            handle.open(element, state)
        elif state is None:
            handle.server.create(element)
        else:
            log.info("%s has joined already", handle)
    return min(above, *joined) if joined else above


def _check_fit(old: Servers, new: Servers) -> None:
    same = [server.offset for server in old.servers] == [
        server.offset for server in new.servers[: len(old.servers)]
    ]
    if new.stride % old.stride or not same or len(new.servers) <= len(old.servers):
        raise TicketArgumentError(
            f"{old.name!r} cannot grow from a stride of {old.stride} to {new.stride}: expected the"
            " old stride or a multiple of it, and a list that begins with the old servers and has more"
        )


def _check_metadata(states: Mapping[TableHandle, ActiveTable]) -> None:
    """Check that a table can refuse clients of the new configuration, and those of the old one later."""
    for handle, state in states.items():
        if state.metadata is None:
            metadata = TableMetadata(state.layout, handle.stride, handle.offset)
            raise TicketArgumentError(
                f"the ticket table {handle} has no metadata, as another program has made it, so it could"
                " not tell clients of the old configuration from those of the new one. Write it first:"
                f" ALTER TABLE `{handle.sequence}` COMMENT='{metadata}'"
            )
        handle.run(tombstones.rehearse)


def _check_below(old: Servers, new: Servers, name: str, above: int) -> None:
    """Check that every old server is below the number, and will refuse to be raised above it."""
    for handle, known_as in zip(handles(old, name), new.servers, strict=False):
        known = (new._marks.of(name).kept_by(known_as) or {}).get(JOINED, 0)
        number = handle.active().number or 0
        if known < above or number > above:
            raise TicketTableError(
                f"{handle}: expected a number below {above}, where others join, and a mark of that; found the"
                f" number {number}, and {known or 'none'} in its table of marks. Check that its user may write"
                " there, and run this again"
            )


def unfinished(new: Servers, name: str) -> dict[TicketServer, int]:
    """The servers whose table still has the stride of before, and their numbers.

    While these rise, a client draws with the old configuration.

    Raises:
        TicketError: a server failed, or its numbers are none that the pool could take over.
    """
    found: dict[TicketServer, int] = {}
    for handle in handles(new, name):
        number = handle.run(_unfinished_number)
        if number is not None:
            found[handle.server] = number
    return found


def _old_context(context: StatementContext, name: str) -> StatementContext | None:
    """The server as its own metadata has it; None when that is as the pool has it, or not there.

    Raises:
        TicketTableError: the numbers of the pool's class were not all this server's.
    """
    metadata = metadata_in(context, name, tombstones.comments(context).get(name))
    if metadata is None or metadata.matches(
        TableMetadata(metadata.layout, context.stride, context.offset)
    ):
        return None
    if context.stride % metadata.stride or (context.offset - metadata.offset) % metadata.stride:
        raise TicketTableError(
            f"the ticket table {name!r} on {context.server} is numbered differently: expected {metadata.layout!r}"
            f" with a stride that {context.stride} is a multiple of, found {metadata}"
        )
    return replace(context, stride=metadata.stride, offset=metadata.offset)


def _unfinished_number(context: StatementContext, name: str) -> int | None:
    old = _old_context(context, name)
    state = None if old is None else tombstones.inspect(old, name)
    return (state.number or 0) if isinstance(state, ActiveTable) else None


def finish(new: Servers, name: str) -> list[int]:
    """Give the old servers' tables the stride of ``new``; no client can draw with the old one any more.

    The table itself refuses a client that tries: the column that its statements name is gone.

    Returns:
        By server, above what it never issued with the old stride.

    Raises:
        TicketError: a server failed. Call it again when that is repaired.
    """
    ended: list[int] = []
    for handle in handles(new, name):
        to = Destination("converting", new.name, name)
        tombstone = handle.run(_close_unfinished, to)
        if tombstone is None:
            continue
        above = tombstone.high_water
        before = tombstone.stride or new.stride
        issued = new._marks.of(name).issued_before(handle.server, before)
        if issued > above:  # it was set back, and no client has drawn from it since
            above = issued + new._marks.margin
        element = handle.element(
            above + 1,
            layout=tombstone.layout,
            bits=tombstone.bits,
            stub=tombstones.stub_column(new.stride, tombstone),
            path=tombstone.path,
        )
        handle.open(element, tombstone)
        ended.append(above)
    new._marks.of(name).prepare()
    return ended


def _close_unfinished(context: StatementContext, name: str, to: Destination) -> Tombstone | None:
    """Close a table that has the old stride; what was closed before is opened, too."""
    old = _old_context(context, name)
    if old is not None:
        return tombstones.close(old, name, to)
    state = tombstones.inspect(context, name)
    if isinstance(state, Tombstone) and state.kind == "converting":
        return state
    return None


def retire(pool: Servers, name: str, leaving: int, *, held: int = 0) -> int:
    """Close a sequence on the last servers of a pool, and raise the others above what they issued.

    Their high water stays, on their tombstones and below the others' numbers, so that a server that takes the
    residue class over begins above it. The pool keeps its stride.

    Args:
        pool: the pool with all its servers.
        name: the sequence's name.
        leaving: how many of its last servers go.
        held: the largest id on the shards, above which the others are raised, too.

    Returns:
        No number above this one was issued by a server that leaves.

    Raises:
        TicketArgumentError: none would be left.
        TicketTableError: a growth is under way.
        TicketError: a server failed. Call it again when that is repaired.
    """
    if not 1 <= leaving < len(pool.servers):
        raise TicketArgumentError(
            f"{leaving} of the {len(pool.servers)} servers of {pool.name!r} cannot retire: one has to stay"
        )
    refuse_during_resize(pool, name)
    tables = handles(pool, name)
    staying, going = tables[:-leaving], tables[-leaving:]
    for handle in staying:
        handle.active()
    high = 0
    for handle in going:
        state = handle.inspect()
        if state is not None:
            high = max(high, handle.close("dropped", pool.name, name, state).high_water)
    above = max(high, held)
    for handle in staying:
        handle.raise_above(above)
    pool._marks.of(name).write_raised(above, [handle.server for handle in staying])
    return high
