# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""Resizing a pool: add or retire ticket servers while old and new clients draw.

A server can join at once if the stride has a spare residue class. If not, the stride is multiplied, as MariaDB's
manual describes for AUTO_INCREMENT: every other number of a server with stride 2 goes to a server that joins with
stride 4. While clients of the old configuration still take all numbers, distance keeps the servers apart: those that
join begin a gap above.

1. `begin`: the sequence is opened on the servers that join, a gap above all others. 2. Clients get the new
configuration one by one. They then draw from the servers that joined, since the metadata of the other tables refuses
them. Clients of the old configuration draw from the others. 3. `finish`, when no client draws with the old
configuration any more: the old servers get the new stride. None of their numbers is above the gap, and from now on
they issue only every other one. The renamed stub column makes the table refuse a client that still has the old
configuration.

The proof: a server that joined issues no number below the gap. No other server issues a number of its class above the
gap. Before step 3, clients read where the others begin, with the high-water marks, and discard tickets above that;
afterwards the stride skips it. Nor can a raise reach it: the old servers refuse that, since they know where the others
begin before one of those is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ..draw.server import TicketServer
from ..errors import TicketArgumentError, TicketTableError
from ..high_water.sequence_marks import VerifiedMarks
from ..high_water.statements import GAP_NUMBERS, JOINED
from ..tables.context import StatementContext
from ..tables.inspection import ActiveTable, metadata_in
from ..tables.metadata import TableMetadata, Tombstone
from ..tables.new_table import largest_ticket, stub_of
from . import tombstones
from .handle import MARGIN_NUMBERS, Servers, TableHandle, bits_for, handles
from .operations import (
    absent_error,
    absent_servers,
    check_all_servers,
    joined_above,
    metadata_statement,
    number_of,
    refuse_to_meet,
)
from .tombstones import Destination, FoundTable

__all__ = [
    "GAP_NUMBERS",
    "begin",
    "begins_above",
    "check_left_out",
    "earlier_gap",
    "finish",
    "marks_of_absent",
    "retire",
    "retire_absent",
    "unfinished",
]

log = logging.getLogger(__name__)


def begin(old: Servers, new: Servers, name: str, *, gap: int = GAP_NUMBERS, held: int = 0) -> int:
    """Open a sequence on the servers that ``new`` has and ``old`` has not.

    Args:
        old: the pool as it is.
        new: the pool as it will be: the same servers first, the same stride or a multiple.
        name: the sequence's name.
        gap: how far above the old servers the others begin if the stride changes: more than the old ones issue until
            `finish`.
        held: the largest id on the shards, from whatever source.

    Returns:
        The number that all tickets of the joining servers are above; after a void gap, those from now on.

    Raises:
        TicketArgumentError: the pools do not match, the table is too narrow for the gap, or it has no metadata and
            the stride changes.
        TicketTableError: an old server cannot store where the others begin, or has just reached that; its table could
            not refuse the old configuration later; or a joining server has another table of that name.
        TicketError: a server failed. Call it again when that is repaired.
    """
    _check_fit(old, new)
    states = {handle: handle.active() for handle in handles(old, name)}
    widens = new.stride != old.stride
    if widens:
        _check_metadata(states)
    added = handles(new, name, new.servers[len(old.servers) :])
    joining = {handle: handle.inspect() for handle in added}
    _check_free(old, name, joining)
    stub = tombstones.stub_column(new.stride, *states.values(), *joining.values())
    if widens:  # the old servers' tables will have it, too
        stub = stub_of(new.stride)
    else:
        _claim(old, new, name, joining)
    known = new._marks.of(name).prepare(opens_above=0)
    earlier = earlier_gap(old, new, name)
    is_void = earlier is not None and earlier.is_void
    highest, above = _opening(old, new, name, states, joining, gap, held, known, earlier)
    model = next(iter(states.values()))
    _check_room(name, model, above, (gap if widens else MARGIN_NUMBERS) // 10)
    if is_void:
        _open_gap(old, new, name, joining, highest, above)
    elif widens:
        _keep_gap(old, new, name, joining, earlier, above, gap)
    for handle, state in joining.items():
        _open(handle, state, above, model, stub)
        if isinstance(state, ActiveTable) and not widens:  # another pool may have left it
            handle.raise_above(above)
    if not widens:
        _record_joined(new, name, above, joining)
    _check_still_open(states, len(new.servers))
    return above if is_void or not widens else min([above, *_joined(joining)])


def _check_room(name: str, model: ActiveTable, above: int, least: int) -> None:
    """Check that servers that join above a number have at least so many numbers left."""
    if above + least > model.largest:
        raise TicketArgumentError(
            f"the numbers of {name!r} end at {model.largest}: servers that join at {above} would have almost none "
            "left. Choose a smaller gap, or widen the tables to 64 bits"
        )


def _check_still_open(tables: Iterable[TableHandle], servers: int) -> None:
    """Check that no other command has closed a table of the old servers meanwhile, which did not know the new ones."""
    for handle in tables:
        if not isinstance(handle.inspect(), ActiveTable):
            raise TicketTableError(
                f"{handle} was closed by another command while servers joined: run that command again, with all "
                f"{servers} servers"
            )


def _open(
    handle: TableHandle, state: FoundTable, above: int, model: ActiveTable, stub: str
) -> None:
    """Open a joining server's table like those of the old servers, unless an earlier run has done so."""
    element = handle.element(
        above + 1,
        layout=handle.layout_for(model.layout),
        bits=32 if model.largest <= largest_ticket(32) else 64,
        stub=stub,
        path=tombstones.path_of(model),
    )
    if isinstance(state, Tombstone):
        handle.open(element, state)
    elif state is None:
        handle.server.create(element)
    else:
        log.info("%s has joined already", handle)


def begins_above(old: Servers, new: Servers, name: str, *, gap: int, held: int = 0) -> int:
    """The number that `begin` would return now. Changes nothing.

    If clients draw until then, `begin` returns a larger one.

    Raises:
        TicketError: a server failed.
    """
    states = {handle: handle.active() for handle in handles(old, name)}
    joining = {
        handle: handle.inspect() for handle in handles(new, name, new.servers[len(old.servers) :])
    }
    _check_free(old, name, joining)
    known = new._marks.of(name).verified().largest
    earlier = earlier_gap(old, new, name)
    _, above = _opening(old, new, name, states, joining, gap, held, known, earlier)
    opens_above = new.stride == old.stride or (earlier and earlier.is_void)
    return above if opens_above else min([above, *_joined(joining)])


def _check_free(old: Servers, name: str, joining: Mapping[TableHandle, FoundTable]) -> None:
    """Check that no server issues the numbers of one that joins, and that none is left out.

    Raises:
        TicketTableError: a server does that the old pool does not have, as an earlier growth added it.
    """
    # what has a claim, or was opened by an earlier run, has reached its mark
    joined = {
        handle.offset: number_of(state)
        for handle, state in joining.items()
        if isinstance(state, ActiveTable) or (state is not None and state.end)
    }
    absent = {o: n for o, n in absent_servers(old, name).items() if joined.get(o, -1) < n}
    if absent:
        raise absent_error(old, name, absent)


def _claim(old: Servers, new: Servers, name: str, joining: dict[TableHandle, FoundTable]) -> None:
    """Leave a tombstone on joining servers that have nothing of a sequence, before their offsets count as taken.

    By it, another run tells them from other servers with these offsets.
    """
    retired = old._marks.of(name).verified().retired
    to = Destination("retired", new.name, name)
    for handle, state in joining.items():
        if state is None:
            joining[handle] = handle.place_tombstone(to, None, retired.get(handle.offset, 0))


def _joined(joining: Mapping[TableHandle, FoundTable]) -> list[int]:
    """The numbers of the joining servers that an earlier run has opened."""
    return [state.number or 0 for state in joining.values() if isinstance(state, ActiveTable)]


def _opening(
    old: Servers,
    new: Servers,
    name: str,
    states: Mapping[TableHandle, ActiveTable],
    joining: Mapping[TableHandle, FoundTable],
    gap: int,
    held: int,
    known: int,
    earlier: EarlierGap | None,
) -> tuple[int, int]:
    """The highest number in use, and the number above which the joining servers open.

    Args:
        old: the pool as it is.
        new: the pool as it will be.
        name: the sequence's name.
        states: the tables of the old servers.
        joining: those of the others.
        gap: how far above the old servers the others begin if the stride changes.
        held: the largest id on the shards.
        known: the largest credible mark of the new stride: that of a replaced server may be higher.
        earlier: the gap of an earlier run, if any.
    """
    issued = old._marks.of(name).verified().largest  # a server that was set back shows less
    highest, least = max(held, issued, *(state.number or 0 for state in states.values())), 0
    if earlier is not None:
        least = earlier.above + (new._marks.margin if earlier.is_void else 0)
    if earlier is not None and earlier.is_void:
        # the old servers are raised above all numbers, and the others a gap above that
        highest = max(highest, known, *_joined(joining)) + new._marks.margin
    closed = [state.high_water for state in joining.values() if isinstance(state, Tombstone)]
    distance = MARGIN_NUMBERS if new.stride == old.stride else gap
    if new.stride == old.stride and _are_above(highest, new, name, joining):
        return highest, min(_joined(joining))  # an earlier run has opened them
    above = max(highest + distance, least, *closed, known + new._marks.margin if known else 0)
    return highest, above


def _are_above(
    highest: int, new: Servers, name: str, joining: Mapping[TableHandle, FoundTable]
) -> bool:
    """Whether every joining server has a table that is not below its marks, and whose next ticket is above a number."""
    marks = new._marks.of(name)
    return all(
        isinstance(state, ActiveTable)
        and (state.number or 0) + handle.stride > highest
        and (state.number or 0) >= marks.issued_before(handle.server, handle.stride)
        for handle, state in joining.items()
    )


class EarlierGap(NamedTuple):
    """The gap above which an earlier run let servers with a larger stride join.

    Attributes:
        above: the number above which they issue tickets.
        reached: the largest number of the old servers.
        has_joined: whether a joining server has a table.
    """

    above: int
    reached: int
    has_joined: bool

    @property
    def is_void(self) -> bool:
        """Whether a new gap is needed: it is used up, or what was issued above it is unknown."""
        return not self.has_joined or self.reached > self.above


def earlier_gap(old: Servers, new: Servers, name: str) -> EarlierGap | None:
    """The gap that an earlier run of `begin` has left, if any.

    Raises:
        TicketTableError: that run had another stride.
        TicketError: a server failed.
    """
    if new.stride == old.stride:
        return None
    others = old._marks.of(name).larger_strides() - {new.stride}
    if others:
        given_up = min(others)
        raise TicketTableError(
            f"{name!r} cannot grow to a stride of {new.stride}: servers have joined with a stride of {given_up} before, "
            f"and what they issued is known by that stride only. Grow to a stride of {given_up} first (--to-stride)"
        )
    above = new._marks.of(name).read_joined()
    if not above:
        return None
    joining = handles(new, name, new.servers[len(old.servers) :])
    reached = max(handle.active().number or 0 for handle in handles(old, name))
    return EarlierGap(above, reached, any(isinstance(h.inspect(), ActiveTable) for h in joining))


def _open_gap(
    old: Servers,
    new: Servers,
    name: str,
    joining: Mapping[TableHandle, FoundTable],
    below: int,
    above: int,
) -> None:
    """Open a new gap in place of a void one: all servers continue above every number.

    The number where the others join is written after all tables are raised. Until then, clients of the old configuration issue
    nothing, and another run does all of it again.
    """
    marks = new._marks.of(name)
    given_up = marks.verified().absent
    joined = [handle for handle, state in joining.items() if isinstance(state, ActiveTable)]
    for handle in joined:
        number = handle.raise_above(above)
        if below < number < above:
            raise TicketTableError(
                f"{handle}: expected a number of at most {below}, found {number}: clients are drawing from this "
                "table. Stop all clients, and run this again"
            )
    for handle in handles(old, name):
        handle.raise_above(below, is_joining=True)
    old._marks.of(name).write_raised(below)
    if joined:
        marks.write_raised(above, [handle.server for handle in joined])
    marks.write_joined(above)
    _check_below(old, new, name, above, (above - below) // 2)
    marks.write_retired(given_up.keys(), above)


def _keep_gap(
    old: Servers,
    new: Servers,
    name: str,
    joining: Mapping[TableHandle, FoundTable],
    earlier: EarlierGap | None,
    above: int,
    gap: int,
) -> None:
    """Record a first gap, or an earlier run's again, as an old server may have been restored since."""
    _check_same_growth(new, name)
    bound = above if earlier is None else earlier.above
    _check_joined(joining, bound)
    new._marks.of(name).write_joined(bound)
    _check_below(old, new, name, bound, 0 if earlier else min(gap // 2, old._marks.lead))


def _record_joined(new: Servers, name: str, above: int, joining: Iterable[TableHandle]) -> None:
    """Write the marks of servers that have joined, as one may be lost before anybody has drawn from it.

    Raises:
        TicketTableError: a server keeps marks, and did not store these.
    """
    refused = new._marks.of(name).write_raised(above, [handle.server for handle in joining])
    if refused:
        raise TicketTableError(
            f"{', '.join(map(str, refused))} did not store where others have joined {name!r}: let the user of this "
            "command write the table of marks, and run this again"
        )


def _check_same_growth(new: Servers, name: str) -> None:
    """Check that an earlier run of this growth did not have more servers."""
    offset = max(new._marks.of(name).verified().absent, default=0)
    if offset:
        raise TicketTableError(
            f"{name!r}: an earlier run of this growth also had a server with the offset {offset}: give the new pool {offset} "
            "servers, in the same order. In place of one that is gone, add an empty one"
        )


def _check_joined(joining: Mapping[TableHandle, FoundTable], bound: int) -> None:
    """Check that no table of a joining server can issue a ticket that is not above the old servers' last one."""
    for handle, state in joining.items():
        if isinstance(state, ActiveTable) and (state.number or 0) + handle.stride <= bound:
            raise TicketTableError(
                f"the ticket table {handle} exists already: expected its next ticket above {bound}, where servers "
                f"join, found it at {state.number}. Drop it if no client has ever drawn from it, else raise it above "
                f"{bound}, and run this again"
            )


def _check_fit(old: Servers, new: Servers) -> None:
    same = [server.offset for server in old.servers] == [
        server.offset for server in new.servers[: len(old.servers)]
    ]
    if new.stride % old.stride or not same or len(new.servers) <= len(old.servers):
        raise TicketArgumentError(
            f"{old.name!r} cannot grow from a stride of {old.stride} to {new.stride}: expected the old stride or a "
            "multiple of it, and a list of the old servers followed by the new ones"
        )


def _check_metadata(states: Mapping[TableHandle, ActiveTable]) -> None:
    """Check that a table can refuse clients of the new configuration now, and of the old one later."""
    for handle, state in states.items():
        if state.metadata is None:
            raise TicketArgumentError(
                f"the ticket table {handle} has no metadata, as another program created it, so it cannot refuse "
                f"clients of the old configuration. First write the metadata: {metadata_statement(handle, state)}"
            )
        handle.run(tombstones.rehearse)


def _check_below(old: Servers, new: Servers, name: str, above: int, lead: int) -> None:
    """Check that every old server is far below the number, and has a mark that lets it refuse a raise above it.

    Clients may issue ``lead`` numbers more before they have read that mark.
    """
    for handle, known_as in zip(handles(old, name), new.servers, strict=False):
        known = (new._marks.of(name).kept_by(known_as) or {}).get(JOINED, 0)
        number = handle.active().number or 0
        if known < above:
            raise TicketTableError(
                f"{handle}: expected its table of marks to hold {above}, above which other servers join; found "
                f"{known or 'none'}. Check that its user may write that table, and run this again"
            )
        if number + lead > above:
            raise TicketTableError(
                f"{handle}: expected a number below {above - lead}, as others join at {above}; found {number}. Clients "
                "use up this gap too soon, and stop at its end. Run this again with a larger gap"
            )


def unfinished(new: Servers, name: str) -> dict[TicketServer, int]:
    """The servers whose table still has the old stride, and their numbers.

    While these rise, a client draws with the old configuration.

    Raises:
        TicketError: a server failed, or its numbers do not fit the pool.
    """
    found: dict[TicketServer, int] = {}
    for handle in handles(new, name):
        number = handle.run(_unfinished_number)
        if number is not None:
            found[handle.server] = number
    return found


def _old_context(context: StatementContext, name: str) -> StatementContext | None:
    """The server's context by its own metadata; None if that is the pool's, or missing.

    Raises:
        TicketTableError: this server did not own all numbers of the pool's class.
    """
    metadata = metadata_in(context, name, tombstones.comments(context).get(name))
    if metadata is None or metadata.matches(
        TableMetadata(metadata.layout, context.stride, context.offset)
    ):
        return None
    if context.stride % metadata.stride or (context.offset - metadata.offset) % metadata.stride:
        raise TicketTableError(
            f"the ticket table {name!r} on {context.server} is numbered differently: expected a stride that "
            f"divides {context.stride}, and an offset that equals {context.offset} modulo that stride, found "
            f"{metadata.numbering}"
        )
    return replace(context, stride=metadata.stride, offset=metadata.offset)


def _unfinished_number(context: StatementContext, name: str) -> int | None:
    old = _old_context(context, name)
    state = None if old is None else tombstones.inspect(old, name)
    return (state.number or 0) if isinstance(state, ActiveTable) else None


def finish(new: Servers, name: str) -> list[int]:
    """Give the old servers' tables the stride of ``new``, so that no client can draw with the old one.

    The table itself refuses such a client: the column in its statements is gone.

    Returns:
        The largest number that each server can have issued with the old stride.

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
            bits=bits_for(tombstone, above),
            stub=tombstones.stub_column(new.stride, tombstone),
            path=tombstone.path,
        )
        handle.open(element, tombstone)
        ended.append(above)
    new._marks.of(name).prepare()
    new._marks.of(name).end_smaller_strides()
    return ended


def _close_unfinished(context: StatementContext, name: str, to: Destination) -> Tombstone | None:
    """Close a table that has the old stride; returns its tombstone, or the one that an earlier run left."""
    old = _old_context(context, name)
    if old is not None:
        return tombstones.close(old, name, to)
    state = tombstones.inspect(context, name)
    if isinstance(state, Tombstone) and state.kind == "converting":
        return state
    return None


def retire(pool: Servers, name: str, leaving: int, *, held: int = 0) -> int:
    """Retire a sequence on the last servers of a pool, and raise the others above what they issued.

    Their tombstones keep the high water, so that a server that takes over the residue class begins above it. The pool
    keeps its stride.

    Args:
        pool: the pool with all its servers.
        name: the sequence's name.
        leaving: how many of its last servers go.
        held: the largest id on the shards, above which the others are raised, too.

    Returns:
        The number above which the others continue: nothing that a leaving server has issued is above it.

    Raises:
        TicketArgumentError: no server would be left.
        TicketTableError: a growth is under way, or the pool lacks a server of the sequence.
        TicketError: a server failed. Call it again when that is repaired.
    """
    if not 1 <= leaving < len(pool.servers):
        raise TicketArgumentError(
            f"{leaving} of the {len(pool.servers)} servers of {pool.name!r} cannot retire: at least one must stay"
        )
    check_all_servers(pool, name)
    tables = handles(pool, name)
    staying, going = tables[:-leaving], tables[-leaving:]
    offsets = {handle.offset for handle in going}
    states = {handle: handle.inspect() for handle in going}
    marks = pool._marks.of(name)
    _check_raise(staying, _above_retired(pool, marks.verified(), offsets, held, states.values()))
    closed = [
        handle.close("retired", pool.name, name, state)
        for handle, state in states.items()
        if state is not None
    ]
    above = _above_retired(pool, marks.verified(), offsets, held, closed)
    _go_on_without(pool, name, staying, offsets, above)
    return above


def retire_absent(pool: Servers, name: str, offset: int, *, held: int = 0) -> int:
    """Retire a sequence on a server that is gone for good, and raise the others above what it may have issued.

    Args:
        pool: the pool, without that server.
        name: the sequence's name.
        offset: the server's offset.
        held: the largest id on the shards, above which the others are raised, too.

    Returns:
        The number above which the others continue.

    Raises:
        TicketArgumentError: no server with that offset is missing from the pool.
        TicketError: a server failed. Call it again when that is repaired.
    """
    known = marks_of_absent(pool, [name], offset)[name]
    above = _above_retired(pool, known, {offset}, held, ())
    refuse_to_meet(pool, name, above, joined_above(pool, name))
    staying = handles(pool, name)
    _check_raise(staying, above)
    _go_on_without(pool, name, staying, {offset}, above)
    return above


def _above_retired(
    pool: Servers, known: VerifiedMarks, offsets: set[int], held: int, retired: Iterable[FoundTable]
) -> int:
    """The number above which the others continue: nothing that the retired servers have issued is above it.

    The marks count, too, with a margin, as any server may have been set back.

    Args:
        pool: the pool.
        known: the sequence's marks.
        offsets: the offsets of the servers that retire.
        held: the largest id on the shards.
        retired: their tables.
    """
    for _, _, text in known.refuted:
        raise TicketTableError(text)
    least = max([held, *(number_of(state) for state in retired if state)])
    above = max(least, known.largest) + pool._marks.margin
    if offsets <= known.retired.keys():  # an earlier run has raised the others, and their marks
        return min(above, max(least, *(known.retired[offset] for offset in offsets)))
    return above


def _check_raise(tables: Iterable[TableHandle], above: int) -> None:
    for handle in tables:
        handle.active()
        handle.run(tombstones.check_raise, above)


def _go_on_without(
    pool: Servers, name: str, staying: Iterable[TableHandle], offsets: set[int], above: int
) -> None:
    """Raise the staying servers, and record which others have retired."""
    for handle in staying:
        handle.raise_above(above)
    marks = pool._marks.of(name)
    marks.write_raised(above, [handle.server for handle in staying])
    marks.write_retired(offsets, above)


def check_left_out(pool: Servers, offset: int) -> None:
    """Check that a pool lacks the server that is gone.

    Raises:
        TicketArgumentError: it does not.
    """
    for server in pool.servers:
        if server.offset == offset:
            raise TicketArgumentError(
                f"the pool {pool.name!r} still has a server with the offset {offset}: {server}. If it is gone for good, first "
                "take it out of the configuration, and keep the stride"
            )


def marks_of_absent(pool: Servers, names: Iterable[str], offset: int) -> dict[str, VerifiedMarks]:
    """The marks of those sequences of which a missing server has issued tickets, retired or not.

    Args:
        pool: the pool, without that server.
        names: the sequences' names.
        offset: the server's offset.

    Raises:
        TicketArgumentError: there is no such sequence, or the server is not missing.
    """
    check_left_out(pool, offset)
    known = {name: pool._marks.of(name).verified() for name in names}
    having = {n: m for n, m in known.items() if offset in m.absent or offset in m.retired}
    if not having:
        absent = sorted({offset for marks in known.values() for offset in marks.absent})
        raise TicketArgumentError(
            f"the pool {pool.name!r} lacks no server with the offset {offset} that issues tickets: it has retired already, or "
            f"never had any. Offsets that are missing: {', '.join(map(str, absent)) or 'none'}"
        )
    return having
