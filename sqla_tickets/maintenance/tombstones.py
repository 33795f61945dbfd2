"""Tombstones: tables without tickets that close a ticket table, or redirect its clients.

A tombstone has the table's name and none of its columns. So a statement of a client that found the table a moment ago
fails, whatever its layout. Its comment shows a client that inspects it where the sequence went. It is created and
removed in one atomic step: the number is read, and the table altered, while every other client is locked out (``LOCK
TABLES`` on MySQL and MariaDB, a transaction elsewhere).
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from ..concurrency import random_bytes
from ..dialects import STUB, ErrorKind, Role
from ..errors import TicketArgumentError, TicketTableError, TicketTableMissing
from ..high_water.statements import MARKS, smallest_joined
from ..tables import inspection
from ..tables.context import StatementContext
from ..tables.inspection import ActiveTable
from ..tables.metadata import Path, Tombstone, TombstoneKind
from ..tables.new_table import NewTable, seed, stub_of

#: The object that a server has under the name of a sequence.
FoundTable = ActiveTable | Tombstone | None


class Destination(NamedTuple):
    """The content of a tombstone: why it exists, and which sequence to draw from instead."""

    kind: TombstoneKind
    pool: str
    sequence: str


def inspect(context: StatementContext, name: str) -> FoundTable:
    """Inspect what the server has under that name, including a table's number.

    Raises:
        TicketTableError: the table is not a ticket table of this pool.
    """
    found = inspection.describe(context, name)
    if isinstance(found, Tombstone):
        _check_offset(context, name, found)
    if found is None or isinstance(found, Tombstone):
        return found
    number = inspection.number(context, name, found.layout, found.stub)
    return found._replace(number=number)


def _check_offset(context: StatementContext, name: str, found: Tombstone) -> None:
    """Check that a tombstone that is to be opened has this server's offset."""
    is_kept = found.kind == "converting" and found.stride and found.offset
    if is_kept and (found.offset - context.offset) % found.stride:
        raise TicketTableError(
            f"the ticket table {name!r} on {context.server} is numbered differently: expected the offset"
            f" {context.offset}, found {found.offset} on its tombstone. Check the address and the order of the "
            "pool's servers"
        )


def stub_column(stride: int, *before: FoundTable) -> str:
    """The name of the stub column of a table that is opened.

    Args:
        stride: the stride with which it is opened.
        before: the tables and tombstones that the sequence has had, here and elsewhere.

    Returns:
        ``stub``; or a name with the stride if it has ever changed, as clients with an earlier stride may be left.
    """
    changed = any(
        state.stub != STUB
        or (isinstance(state, Tombstone) and state.layout and state.stride != stride)
        for state in before
        if state is not None
    )
    return stub_of(stride) if changed else STUB


def comments(context: StatementContext) -> dict[str, str]:
    """The comments that have this package's name, by table."""
    rows = context.rows(context.dialect.list_tables())
    return {str(name): str(comment) for name, comment in rows}


def close(
    context: StatementContext,
    name: str,
    to: Destination,
    seen: FoundTable = None,
) -> Tombstone:
    """Replace a ticket table with a tombstone; every ticket that it issued is at most the high water.

    A tombstone ``seen`` gets the new content, and keeps its high water.

    Raises:
        TicketTableMissing: there is no table.
        TicketTableError: another migration has replaced what was seen.
    """
    with context.dialect.exclusive(context.cursor, name):
        state = inspect(context, name)
        if state is None:
            raise TicketTableMissing(
                f"{context.server} has no ticket table {name!r}: create it first"
            )
        if isinstance(state, Tombstone):
            tombstone = state._replace(kind=to.kind, pool=to.pool, sequence=to.sequence)
            if tombstone != state:
                if state != seen:
                    raise _changed(context, name, seen, state)
                tombstone = tombstone._replace(nonce=_nonce())
                context.send_all(context.dialect.replace_by_tombstone(name, str(tombstone)))
            return tombstone
        if isinstance(seen, Tombstone):
            raise _changed(context, name, seen, state)
        if context.dialect.begin is None:
            return _close_by_alter(context, name, state, to)
        high = inspection.last_ticket(context, name, state.layout, state.stub)
        bits = state.metadata.bits if state.metadata else 64
        tombstone = _tombstone(context, state, to, high, bits)
        context.send_all(context.dialect.replace_by_tombstone(name, str(tombstone)))
        return tombstone


class _Rehearsed(Exception):
    """Rolls a rehearsal back."""


def rehearse(context: StatementContext, name: str) -> None:
    """Check that this user may replace a ticket table with a tombstone; changes nothing.

    Raises:
        TicketTableMissing: there is no table.
        Exception: the driver's: a privilege is missing, or a view depends on the table.
    """
    with contextlib.suppress(_Rehearsed), context.dialect.exclusive(context.cursor, name):
        state = inspect(context, name)
        if not isinstance(state, ActiveTable):
            raise TicketTableMissing(
                f"{context.server} has no ticket table {name!r}: create it first"
            )
        if context.dialect.begin is None:
            if state.metadata is not None:  # every ALTER TABLE needs the same privileges
                context.send_all(context.dialect.comment_on(name, str(state.metadata)))
            return
        context.send(context.dialect.drop_table(name))
        raise _Rehearsed


def rehearse_creation(context: StatementContext, name: str, database: str | None) -> None:
    """Check that this user may create a ticket table; changes nothing.

    Raises:
        TicketTableError: a privilege is missing.
        Exception: the driver's: a privilege is missing.
    """
    if inspect(context, name) is not None:
        return
    dialect = context.dialect
    if dialect.begin is not None:
        with contextlib.suppress(_Rehearsed), dialect.transaction(context.cursor):
            context.send_all(dialect.create_tombstone(name, ""))
            raise _Rehearsed
        return
    lacking = lacking_privileges(context, name, database, "migrate")
    if lacking:
        raise TicketTableError(
            f"{context.server}: this user may not create the ticket table {name!r}: expected the privileges of "
            f"sqla-tickets grants migrate, found none for {', '.join(lacking)}. Grant them, and run this again"
        )


def lacking_privileges(
    context: StatementContext, name: str, database: str | None, role: Role
) -> list[str]:
    """The privileges of a role that this user lacks on a table; empty if they are unknown, or come by roles."""
    grants = context.dialect.user_grants(context.cursor, database)
    if grants is None:
        return []
    has = {p for g in grants if g.covers(database, name) for p in g.privileges}
    needed = context.dialect.table_privileges(role)
    return [p for p in needed if not {p, "ALL PRIVILEGES", "ALL"} & has]


def _close_by_alter(
    context: StatementContext, name: str, state: ActiveTable, to: Destination
) -> Tombstone:
    rows = context.rows(context.dialect.table_parts(name))
    parts = [(str(kind), str(part)) for kind, part in rows]
    bits = 32 if any(kind == "type" and part.startswith("int") for kind, part in parts) else 64
    if state.layout == "replace":
        high = _draw_last(context, name, state)
    else:
        high = inspection.last_ticket(context, name, state.layout, state.stub)
    tombstone = _tombstone(context, state, to, high, bits)
    keys = [part for kind, part in parts if kind == "key"]
    checks = [part for kind, part in parts if kind == "check"]
    altered = context.dialect.alter_to_tombstone(name, str(tombstone), state.stub, keys, checks)
    context.send(altered)
    return tombstone


def _tombstone(
    context: StatementContext, state: ActiveTable, to: Destination, high: int, bits: int
) -> Tombstone:
    """The tombstone that replaces a ticket table."""
    return Tombstone(
        to.kind,
        to.pool,
        to.sequence,
        high,
        state.layout,
        bits,
        _nonce(),
        context.stride,
        state.stub,
        path_of(state),
        context.offset,
    )


def path_of(state: FoundTable) -> Path:
    """The path of a sequence that a server has recorded."""
    if isinstance(state, ActiveTable):
        return state.metadata.path if state.metadata else ()
    return () if state is None else state.path


def _nonce() -> str:
    """Guards against ABA: a stalled migration must not take a later tombstone for its own."""
    return random_bytes(6).hex()


def _draw_last(context: StatementContext, name: str, state: ActiveTable) -> int:
    """Draw a last ticket, which is above all others; the row of Flickr's table may not be."""
    try:
        context.send(
            context.dialect.replace_ticket(name, context.stride, context.offset, state.stub)
        )
    except Exception as error:
        if context.dialect.error_kind(error) in (ErrorKind.EXHAUSTED, ErrorKind.DUPLICATE_NUMBER):
            return state.largest
        raise
    return int(context.cursor.lastrowid or 0)


def place_tombstone(
    context: StatementContext, name: str, to: Destination, seen: FoundTable, high_water: int = 0
) -> Tombstone:
    """Create a tombstone where nothing is, or change the tombstone ``seen``.

    Args:
        context: the server's context.
        name: the sequence's name.
        to: the tombstone's content.
        seen: what was found there.
        high_water: the high water of a tombstone that is created, as far as it is known.

    Raises:
        TicketTableError: there is a ticket table, or another tombstone.
    """
    state = inspect(context, name)
    if state is None:
        tombstone = Tombstone(to.kind, to.pool, to.sequence, high_water, nonce=_nonce())
        with context.dialect.transaction(context.cursor):
            context.send_all(context.dialect.create_tombstone(name, str(tombstone)))
        return tombstone
    if isinstance(state, ActiveTable):
        raise TicketTableError(
            f"another process has just created or opened the ticket table {name!r} on {context.server}: run this again"
        )
    if (state.kind, state.pool, state.sequence) == (to.kind, to.pool, to.sequence):
        return state
    if state != seen:
        raise _changed(context, name, seen, state)
    return close(context, name, to, seen)


def open_table(context: StatementContext, new: NewTable, expected: Tombstone) -> None:
    """Replace the tombstone ``expected`` with a ticket table; a table that another run opened is raised.

    Raises:
        TicketTableError: the tombstone is not the one that was seen when the table's first number was chosen.
    """
    name = new.name
    with context.dialect.exclusive(context.cursor, name):
        state = inspect(context, name)
        if state == expected:
            context.send_all(context.dialect.open_table(new.shape(context.dialect)))
            return
    if isinstance(state, ActiveTable):
        raise_above(context, name, new.start - 1)
        return
    raise _changed(context, name, expected, state)


def _changed(context: StatementContext, name: str, seen: object, found: object) -> TicketTableError:
    return TicketTableError(
        f"the ticket table {name!r} on {context.server} was changed by another client: expected {seen}, found "
        f"{found}. Run this migration again when no other migration is running."
    )


def raise_above(
    context: StatementContext, name: str, above: int, *, is_joining: bool = False
) -> int:
    """Raise the table, so that every ticket from now on is larger than ``above``; never lowers a number.

    A table that has lost its row gets a new one.

    Args:
        context: the server's context.
        name: the sequence's name.
        above: the number.
        is_joining: whether the caller then writes where servers with a larger stride join, above the number.

    Returns:
        The table's number before.

    Raises:
        TicketTableError: there is no table that can be drawn from, or servers with a larger stride have joined below
            the number.
    """
    number = seed(above + 1, context.stride, context.offset)
    number_now = _number_below(context, name, above)
    if number_now >= number:
        return number_now
    keeps_marks = _joins_known(context, name) is not None
    with context.dialect.exclusive(context.cursor, name, MARKS if keeps_marks else None):
        found = inspection.active_table(context, name)  # another client may have converted it
        stands = inspection.number(context, name, found.layout, found.stub)
        if keeps_marks and not is_joining:  # read again, as others cannot write it now
            _refuse_to_meet(context, name, stands or 0, number)
        if stands is None:
            context.send(context.dialect.insert_row(name, found.layout, number, found.stub))
        elif found.layout == "counter":
            context.send(context.dialect.raise_counter(name, number, found.stub))
        else:
            _draw_up_to(context, name, number, found.stub)
        return stands or 0


def check_raise(context: StatementContext, name: str, above: int) -> None:
    """Check that `raise_above` can raise the table above a number, and change nothing.

    Raises:
        TicketTableError: as `raise_above` raises it.
    """
    number = seed(above + 1, context.stride, context.offset)
    number_now = _number_below(context, name, above)
    if number_now < number and _joins_known(context, name) is not None:
        _refuse_to_meet(context, name, number_now, number)


def _number_below(context: StatementContext, name: str, above: int) -> int:
    """The table's number; raises if its column cannot hold a larger one than ``above``."""
    found = inspection.active_table(context, name)
    if above >= found.largest:
        raise TicketArgumentError(
            f"the numbers of {name!r} on {context.server} end at {found.largest}: it cannot be raised above"
            f" {above}. Widen its column first"
        )
    return inspection.number(context, name, found.layout, found.stub) or 0


def joined_above(context: StatementContext, name: str) -> int | None:
    """The number above which servers with a larger stride joined; None if none has, or there is no table of marks."""
    return min(_joins_known(context, name) or [], default=None)


def _joins_known(context: StatementContext, name: str) -> list[int] | None:
    """The same as `_joins`; None if no marks can be read."""
    try:
        return _joins(context, name)
    except Exception as error:
        if context.dialect.error_kind(error) in (ErrorKind.TABLE_MISSING, ErrorKind.ACCESS_DENIED):
            return None
        raise


def _joins(context: StatementContext, name: str) -> list[int]:
    """Select the number above which servers with a larger stride joined, if any."""
    rows = context.rows(smallest_joined(context.stride, name))
    return [int(joined) for (joined,) in rows if joined is not None]


def _refuse_to_meet(context: StatementContext, name: str, stands: int, number: int) -> None:
    """Check that a table stays far below joined servers, which use some numbers of its class."""
    for joined in _joins(context, name):
        if number <= (stands + joined) // 2:
            continue
        raise TicketTableError(
            f"the ticket table {name!r} on {context.server} is at {stands} and cannot be raised to {number}: servers "
            f"that joined with a larger stride than {context.stride} issue numbers of its residue class above {joined}, "
            "so tickets would repeat. Run sqla-tickets grow --finish, then raise the sequence with "
            "a pool of all servers"
        )


def _draw_up_to(context: StatementContext, name: str, number: int, stub: str) -> None:
    context.send(context.dialect.replace_ticket(name, context.stride, context.offset, stub))
    drawn = int(context.cursor.lastrowid or 0)
    if drawn < number:
        up_to = context.dialect.replace_up_to(name, context.stride, context.offset, stub)
        context.send(up_to, span=number - drawn)
