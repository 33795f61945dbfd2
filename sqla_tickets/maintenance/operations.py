# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""Create, raise, drop, convert, rename and move: what migrations do to a sequence's ticket tables.

Each function inspects every server before it changes one, and skips finished steps. So after a lost connection or a
killed process, calling it again finishes the work.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Mapping

from ..arguments import name_of_sequence, whole_number
from ..connect.engines import address_of
from ..dialects import LayoutName
from ..draw.server import TicketServer
from ..errors import TicketArgumentError, TicketError, TicketTableError, TicketTableMissing
from ..tables.inspection import ActiveTable, check_locks
from ..tables.metadata import TableMetadata, Tombstone, has_metadata, leads_elsewhere
from ..tables.new_table import NewTable, largest_ticket, seed
from . import tombstones
from .handle import Servers, TableHandle, bits_for, handles
from .tombstones import Destination, FoundTable
from .transfer import Transfer

log = logging.getLogger(__name__)


def table_states(pool: Servers, name: str) -> dict[TicketServer, FoundTable | TicketError]:
    """The state of each server's table of that name, or why that is unknown."""
    found: dict[TicketServer, FoundTable | TicketError] = {}
    for handle in handles(pool, name):
        try:
            found[handle.server] = handle.inspect()
        except TicketError as error:
            found[handle.server] = error
    return found


def names(pool: Servers, *, with_moved: bool = False, with_renamed: bool = False) -> set[str]:
    """The sequences whose tables carry metadata on any server that answers.

    Args:
        pool: the servers' pool.
        with_moved: whether to include sequences that a tombstone closes, or redirects to another pool; and earlier
            names whose tombstone a server lacks.
        with_renamed: whether to include earlier names that a tombstone redirects.
    """
    listed: list[dict[str, str]] = []
    for server in pool.servers:
        try:
            listed.append(server.do("", tombstones.comments))
        except TicketError as error:
            log.warning("cannot list the ticket tables on %s: %s", server, error)

    def is_wanted(name: str, comment: str) -> bool:
        if has_metadata(comment):
            return True
        is_lacking = any(name not in comments for comments in listed)
        left = None if with_renamed or is_lacking else pool.name
        return (with_moved or with_renamed) and leads_elsewhere(comment, left)

    return {
        name
        for comments in listed
        for name, comment in comments.items()
        if is_wanted(name, comment)
    }


# -- create, raise, drop


def create(
    pool: Servers,
    name: str,
    *,
    layout: LayoutName | None = None,
    start: int | None = None,
    above: int = 0,
    bits: int = 64,
    engine: str = "InnoDB",
) -> bool:
    """Create the sequence's table on every server, and verify existing ones.

    If the sequence has moved or been renamed, a server that has nothing of it gets the tombstone that redirects clients.

    Args:
        pool: the pool of the servers.
        name: the sequence's name.
        layout: the layout; None for the one that the sequence has on other servers, or else each server's default.
        start: the smallest ticket of a new table; an existing table must not be below it.
        above: every ticket from now on is larger than this: an existing table is raised.
        bits: 64 or 32.
        engine: the storage engine, on MySQL and MariaDB.

    Returns:
        False if the sequence has since moved or been renamed.

    Raises:
        TicketError: a server failed, or has another table of that name. Call it again after the repair: finished
            steps are kept.
    """
    tables = handles(pool, name)
    # invalid arguments are refused before any server is asked
    tables[0].element(1 if start is None else start, layout=layout, bits=bits, engine=engine)
    if above:
        check_none_absent(pool, name)
    states = {handle: handle.inspect() for handle in tables}
    if _is_elsewhere(name, states):
        moved = moved_to(states.values())
        if moved is not None:
            redirect(pool, name, Destination("moved", moved.pool, moved.sequence))
        return False
    _refuse_foreign_in_part(states)
    first = _first(states, start or 1, above)
    is_lost = _is_lost(states)
    known = pool._marks.of(name).prepare(opens_above=first if is_lost else None)
    before: list[FoundTable] = [*states.values()]
    earlier = _of_other_strides(pool, name, states)
    if earlier is not None:
        # no tombstone is left, and another stride was in use, which nothing records
        before.append(Tombstone("dropped", pool.name, name, earlier, "counter"))
    lost = _lost_above(pool, states, first, known if is_lost else 0, earlier or 0)
    if lost >= first:
        log.warning(
            "%r is missing on a server of the pool %r, although other servers know it: the new table begins "
            "above %d. If the server had issued larger tickets, raise the sequence above them.",
            name,
            pool.name,
            lost,
        )

    raised = max(above, lost, first - 1) if is_lost else above
    if raised:
        refuse_to_meet(pool, name, raised, joined_above(pool, name))
    stub = tombstones.stub_column(pool.stride, *before)
    path = next((tombstones.path_of(s) for s in states.values() if isinstance(s, ActiveTable)), ())

    def made(handle: TableHandle, start: int, layout: LayoutName | None = layout) -> NewTable:
        return handle.element(start, layout=layout, bits=bits, engine=engine, stub=stub, path=path)

    for handle, state in states.items():
        if isinstance(state, Tombstone) and state.kind == "converting":
            raise handle.closed_error(state)
        if isinstance(state, ActiveTable):
            handle.server.create(made(handle, first))
            _check_start(handle, state, start)
    for handle, state in states.items():
        element = made(handle, max(first, lost + 1), layout or _layout_of_others(handle, states))
        if state is None:
            handle.server.create(element)
        elif isinstance(state, Tombstone):
            handle.open(element, state)
        # another process may since have created a lower one
        least = above if isinstance(state, ActiveTable) else element.start - 1
        if least:
            handle.raise_above(least)
    if above:
        pool._marks.of(name).write_raised(above)
    elif lost:  # a table that is lost again before a draw must not begin there again
        opened = [handle.server for handle, s in states.items() if not isinstance(s, ActiveTable)]
        pool._marks.of(name).write_raised(lost, opened)
    return True


def redirect(pool: Servers, name: str, to: Destination) -> None:
    """Write the tombstone of a sequence that has moved on the servers that have nothing of it, or have retired.

    Raises:
        TicketTableError: a server has an open table of that name, as one that was away during the move.
        TicketError: a server failed. Call it again when that is repaired.
    """
    states = {handle: handle.inspect() for handle in handles(pool, name)}
    for handle, state in states.items():
        if isinstance(state, ActiveTable):
            raise TicketTableError(
                f"{handle} still issues tickets, although the sequence has moved to {to.sequence!r} of the pool {to.pool!r}: "
                "drop this table, or give the server an empty database, and run this again"
            )
    for handle, state in states.items():
        if has_ended(state):
            handle.place_tombstone(to, state, max(_numbers(states), default=0))


def has_ended(state: FoundTable) -> bool:
    """Whether there is no table, and no tombstone of one that goes on elsewhere."""
    return state is None or (isinstance(state, Tombstone) and bool(state.end))


def moved_to(states: Iterable[FoundTable]) -> Tombstone | None:
    """The tombstone of a sequence that has moved or been renamed; None if no server shows one."""
    found = (state for state in states if isinstance(state, Tombstone))
    return next((tombstone for tombstone in found if tombstone.kind == "moved"), None)


def _layout_of_others(
    handle: TableHandle, states: Mapping[TableHandle, FoundTable]
) -> LayoutName | None:
    """The layout that the sequence has on other servers, if a table on this one can have it."""
    for state in states.values():
        if isinstance(state, ActiveTable) and handle.layout_for(state.layout):
            return state.layout
    return None


def _refuse_foreign_in_part(states: Mapping[TableHandle, FoundTable]) -> None:
    """Check that a table without metadata is on all servers, since its clients may count by a smaller stride.

    Raises:
        TicketTableError: another server has no table.
    """
    missing = [handle for handle, state in states.items() if not isinstance(state, ActiveTable)]
    foreign = {
        handle: state
        for handle, state in states.items()
        if isinstance(state, ActiveTable) and state.metadata is None
    }
    if missing and foreign:
        tables = " and ".join(map(str, foreign))
        statements = ", and ".join(
            f"on {handle.server}, {metadata_statement(handle, state)}"
            for handle, state in foreign.items()
        )
        raise TicketTableError(
            f"another program created the ticket table {tables}, without metadata, and {missing[0].server} has no "
            f"table. If every client counts by {missing[0].stride} from each server's offset, write that down: "
            f"{statements}. Then run this again"
        )


def metadata_statement(handle: TableHandle, state: ActiveTable) -> str:
    """The statement with which a user writes the metadata of a table that another program created."""
    metadata = TableMetadata(state.layout, handle.stride, handle.offset)
    return f"ALTER TABLE `{handle.sequence}` COMMENT='{metadata}'"


def begins_above(pool: Servers, name: str, *, start: int = 1) -> int:
    """The number above which `create` would open missing tables now. Changes nothing.

    If clients draw until then, `create` opens them above a larger one.

    Raises:
        TicketTableError: only some servers have a table, and it has no metadata.
        TicketError: a server failed.
    """
    states = {handle: handle.inspect() for handle in handles(pool, name)}
    _refuse_foreign_in_part(states)
    first = _first(states, start, 0)
    known = pool._marks.of(name).verified().largest if _is_lost(states) else 0
    earlier = _of_other_strides(pool, name, states)
    return max(first - 1, _lost_above(pool, states, first, known, earlier or 0))


def _first(states: Mapping[TableHandle, FoundTable], start: int, above: int) -> int:
    """The smallest ticket of a new table, by the arguments and the tombstones."""
    dropped = [state.high_water for state in states.values() if isinstance(state, Tombstone)]
    return max(start, above + 1, *(high + 1 for high in dropped))


def _is_lost(states: Mapping[TableHandle, FoundTable]) -> bool:
    """Whether a server has no table that can be drawn from."""
    return any(not isinstance(state, ActiveTable) for state in states.values())


def _of_other_strides(
    pool: Servers, name: str, states: Mapping[TableHandle, FoundTable]
) -> int | None:
    """The largest mark of other strides, where no server has anything of the sequence; None if there is none."""
    return None if any(states.values()) else pool._marks.of(name).of_other_strides()


def _lost_above(
    pool: Servers,
    states: Mapping[TableHandle, FoundTable],
    first: int,
    known: int,
    earlier: int,
) -> int:
    """The number above which a lost table begins, by the other servers and the marks; 0 if nothing was lost.

    Args:
        pool: the servers' pool.
        states: their tables.
        first: the smallest ticket of a table that was not lost.
        known: the largest mark.
        earlier: the largest mark of another stride; 0 if there is none.
    """
    is_missing = None in states.values()
    by_marks = known if known >= first or is_missing else 0
    of_others = _numbers(states) if is_missing else []
    if not (of_others or by_marks or earlier):
        return 0
    # a lost server may have been ahead of all that is known of it by the margin
    return max(*of_others, by_marks, earlier) + pool._marks.margin


def _numbers(states: Mapping[TableHandle, FoundTable]) -> list[int]:
    """The numbers of the servers that have the table, or its tombstone."""
    return [number_of(state) for state in states.values() if state is not None]


def number_of(state: ActiveTable | Tombstone) -> int:
    """The number of a table, or of its tombstone."""
    return state.number or 0 if isinstance(state, ActiveTable) else state.high_water


def _check_start(handle: TableHandle, state: ActiveTable, start: int | None) -> None:
    if start is None or state.number is None:
        return
    if state.number < seed(start, handle.stride, handle.offset):
        raise TicketTableError(
            f"the ticket table {handle} exists and is at {state.number}, below start={start}: raise it above "
            f"{start - 1}, or omit start"
        )


def _is_elsewhere(name: str, states: Mapping[TableHandle, FoundTable]) -> bool:
    """Whether the sequence has moved or been renamed, as when a migration runs for another shard; logs where.

    Raises:
        TicketTableError: it has moved on some servers only.
    """
    found = _elsewhere(states)
    if found is not None:
        where = f"{found.sequence!r} of the pool {found.pool!r}"
        log.info("%r is left unchanged: it is now %s", name, where)
    return found is not None


def _elsewhere(states: Mapping[TableHandle, FoundTable]) -> Tombstone | None:
    """The tombstone that leads to where the sequence has moved; None if it has not.

    Raises:
        TicketTableError: it has moved on some servers only.
    """
    for handle, state in states.items():
        if isinstance(state, Tombstone) and state.kind in ("moved", "opening"):
            if any(isinstance(each, ActiveTable) for each in states.values()):
                raise handle.closed_error(state)
            return state
    return None


def raise_above(pool: Servers, name: str, above: int) -> None:
    """Raise a sequence, so that every server's next ticket is larger than ``above``; never lowers a number.

    Raises:
        TicketArgumentError: no ticket can be that large.
        TicketTableError: the pool lacks a server of the sequence.
        TicketError: a server failed, or has no table that can be drawn from.
    """
    name = name_of_sequence(name)
    whole_number(f"the sequence {name!r}: above", above, 0, largest_ticket(64) - 1)
    check_raise(pool, name, above)
    for handle in handles(pool, name):
        handle.raise_above(above)
    pool._marks.of(name).write_raised(above)


def check_raise(pool: Servers, name: str, above: int) -> None:
    """Check that every server can be raised above a number, and change nothing.

    Raises:
        TicketError: as `raise_above` raises it.
    """
    check_none_absent(pool, name)
    refuse_to_meet(pool, name, above, joined_above(pool, name))
    for handle in handles(pool, name):
        handle.run(tombstones.check_raise, above)


def joined_above(pool: Servers, name: str) -> int:
    """The number above which servers with a larger stride joined, as any server shows it; 0 if none has."""
    return min((n for n in pool._marks.of(name).larger_joined().values() if n), default=0)


def refuse_to_meet(pool: Servers, name: str, above: int, joined: int) -> None:
    """Check that a raise stays below servers that joined, even on a server that was restored and does not know them.

    Args:
        pool: the pool.
        name: the sequence's name.
        above: the number to raise it above.
        joined: the number of `joined_above`.

    Raises:
        TicketTableError: it does not.
    """
    if joined and above + pool.stride > joined:
        raise TicketTableError(
            f"{name!r} cannot be raised above {above}: servers that joined with a larger stride than {pool.stride} "
            f"issue the numbers above {joined}. Run sqla-tickets grow --finish, then raise it with a pool of all servers"
        )


def drop(pool: Servers, name: str) -> Tombstone | None:
    """Replace the table on every server with a tombstone, so that no more tickets are issued.

    The tombstone keeps the high water, and `create` begins above it.

    Returns:
        None; or the tombstone that leads to the sequence, if it has since moved or been renamed and nothing was
        dropped.

    Raises:
        TicketError: a server failed. Call it again when that is repaired.
    """
    states = {handle: handle.inspect() for handle in handles(pool, name)}
    elsewhere = _elsewhere(states)
    if elsewhere is not None:
        return elsewhere  # a table made from this tombstone later would begin too low
    for handle, state in states.items():
        if state is not None:
            handle.close("dropped", pool.name, name, state)
    return None


# -- convert, rename, move


def convert(pool: Servers, name: str, layout: LayoutName) -> None:
    """Convert the table on every server to another layout; its tickets continue above the old ones.

    It converts one server at a time, while clients draw from the others.

    Raises:
        TicketArgumentError: a server cannot have this layout.
        TicketTableError: a server is in a cluster, which this layout does not suit.
        TicketError: a server failed, or has no table. Call it again when that is repaired.
    """
    tables = handles(pool, name)
    for handle in tables:
        if layout not in handle.server.context.dialect.layouts:
            raise TicketArgumentError(
                f"layout={layout!r}: {handle.server} does not have this layout; expected"
                f" {' or '.join(map(repr, handle.server.context.dialect.layouts))}"
            )
    states = {handle: handle.inspect() for handle in tables}
    if _is_elsewhere(name, states):
        return
    for handle, state in states.items():
        if state is None:
            raise TicketTableMissing(f"there is no ticket table {handle}: create it first")
        if isinstance(state, Tombstone) and state.kind != "converting":
            raise handle.closed_error(state)
    for handle in tables:
        handle.run(check_locks, layout)
    for handle, state in states.items():
        if isinstance(state, ActiveTable) and state.layout == layout:
            continue
        tombstone = handle.close("converting", pool.name, name, state)
        start, bits = tombstone.high_water + 1, bits_for(tombstone, tombstone.high_water)
        stub = tombstones.stub_column(pool.stride, tombstone)
        element = handle.element(start, layout=layout, bits=bits, stub=stub, path=tombstone.path)
        handle.open(element, tombstone)


def rename(pool: Servers, old: str, new: str) -> None:
    """Rename a sequence; clients of the old name are redirected.

    Raises:
        TicketError: a server failed, has no table ``old``, or has tables of both names. Call it again after the
            repair.
    """
    if old == new:
        raise TicketArgumentError(
            f"cannot rename {old!r}: the new name equals the old one. Choose another name"
        )
    transfer = Transfer(handles(pool, old), handles(pool, new))
    is_to_be_done = transfer.is_to_be_done()
    if is_to_be_done:
        check_all_servers(pool, old)
    transfer.finish(is_to_be_done, pool._marks.of(old), pool._marks.of(new), pool._marks.margin)


def move(source: Servers, name: str, target: Servers) -> None:
    """Move a sequence to the servers of another pool, while clients draw from it.

    Raises:
        TicketError: as `check_move` raises it, or a server failed. Call it again when that is repaired.
    """
    transfer, is_to_be_done = _checked_move(source, name, target)
    before, after = source._marks.of(name), target._marks.of(name)
    transfer.finish(is_to_be_done, before, after, target._marks.margin)


def check_move(source: Servers, name: str, target: Servers) -> Transfer | None:
    """Check that a sequence can move to the servers of another pool, and change nothing.

    Returns:
        The move; None if the sequence has moved already.

    Raises:
        TicketArgumentError: the pools share a server, or differ in their stride.
        TicketTableError: a server of the target is in a cluster, where the table could not be drawn from.
        TicketError: a server failed, the source has no table, or the target has one.
    """
    transfer, is_to_be_done = _checked_move(source, name, target)
    return transfer if is_to_be_done else None


def _checked_move(source: Servers, name: str, target: Servers) -> tuple[Transfer, bool]:
    """A move that was checked, and whether something is left to do."""
    if source.stride != target.stride:
        raise TicketArgumentError(
            f"{name!r} cannot move from the pool {source.name!r} (stride {source.stride}) to {target.name!r} (stride "
            f"{target.stride}): give both pools the same stride"
        )
    if source.name == target.name:
        raise TicketArgumentError(
            f"{name!r} cannot move from the pool {source.name!r} to itself. If it is in another pool, name that one as the "
            f"source: sqla-tickets move {shlex.quote(name)} --pool NAME --to {shlex.quote(target.name)}"
        )
    addresses = [
        {address_of(server.engine) for server in pool.servers} for pool in (source, target)
    ]
    if addresses[0] & addresses[1]:
        raise TicketArgumentError(
            f"{name!r} cannot move from the pool {source.name!r} to {target.name!r}: the pools share servers. Name "
            "two pools without a common server"
        )
    transfer = Transfer(handles(source, name), handles(target, name))
    is_to_be_done = transfer.is_to_be_done()
    if is_to_be_done:
        check_all_servers(source, name)
        transfer.refuse_to_lock()
    return transfer, is_to_be_done


def absent_servers(pool: Servers, name: str) -> dict[int, int]:
    """The servers that issue the sequence's tickets and are not in the pool, as far as its servers answer.

    Returns:
        The largest mark of each, by offset.
    """
    return pool._marks.of(name).verified().absent


def absent_error(pool: Servers, name: str, absent: Mapping[int, int]) -> TicketTableError:
    """The error about some of `absent_servers`."""
    issued = ", ".join(f"offset {offset}: up to {mark}" for offset, mark in absent.items())
    return TicketTableError(
        f"{name!r}: the pool {pool.name!r} lacks servers that issue its tickets ({issued}). First add each to the "
        f"configuration, also those that sqla-tickets grow has just added. If one is gone for good, run sqla-tickets "
        f"retire {shlex.quote(name)} --gone {min(absent)}"
    )


def check_none_absent(pool: Servers, name: str) -> None:
    """Check that the pool lacks no server that issues the sequence's tickets with its stride.

    Raises:
        TicketTableError: it does.
    """
    absent = absent_servers(pool, name)
    if absent:
        raise absent_error(pool, name, absent)


def check_all_servers(pool: Servers, name: str) -> None:
    """Check that the pool has all servers of the sequence: no others have joined, with its stride or a larger one.

    Raises:
        TicketTableError: it has not.
        TicketError: a server failed.
    """
    check_none_absent(pool, name)
    for handle in handles(pool, name):
        joined = handle.run(tombstones.joined_above)
        if joined is not None:
            raise TicketTableError(
                f"{handle} is being resized: servers with a larger stride than {pool.stride} have joined above "
                f"{joined}. First run sqla-tickets grow --finish with the new configuration, which has all "
                "servers"
            )
