"""Tombstones: what makes a ticket table one that nobody draws from, and a ticket table again.

A tombstone has the table's name and none of its columns, so that the statement of a client which
found the table a moment ago fails, whatever layout it knew; and it has a note that tells a client
which looks again where the sequence went. It comes and goes in one atomic step: the number is read,
and the table altered, while every other client is locked out (``LOCK TABLES`` on MySQL and MariaDB, a
transaction elsewhere).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import NamedTuple

from sqlalchemy.engine.interfaces import DBAPICursor

from . import tables
from .alterations import (
    BuryTicketTable,
    CreateTombstone,
    ListTicketTables,
    LockForMigration,
    NoteTombstone,
    OpenTicketTable,
    RaiseCounter,
    SeedTombstone,
    TicketTableParts,
)
from .errors import TicketTableError, TicketTableMissing
from .faults import Fault, fault_of
from .mark_statements import MARKS, ReadJoined
from .note import LayoutName, Note, Tombstone, TombstoneKind
from .place import Place
from .statements import (
    CreateTicketTable,
    DropTicketTable,
    LockTicketTable,
    NoteTicketTable,
    ReplaceTicket,
    ReplaceUpTo,
    SeedTicketTable,
    UnlockTables,
    largest_ticket,
    seed,
)

__all__ = [
    "Destination",
    "Live",
    "State",
    "bury",
    "erect",
    "look",
    "names",
    "notes",
    "open_",
    "raise_above",
]


class Live(NamedTuple):
    """A ticket table that can be drawn from.

    Attributes:
        layout: how.
        note: what stands beside the number; None for a foreign table.
        number: the largest ticket that it shows; None when it has lost its row.
    """

    layout: LayoutName
    note: Note | None
    number: int | None


#: What a server has under the name of a sequence.
State = Live | Tombstone | None


class Destination(NamedTuple):
    """What a tombstone says: why it is there, and which sequence to draw from instead."""

    kind: TombstoneKind
    pool: str
    sequence: str


def look(cursor: DBAPICursor, place: Place, name: str) -> State:
    """See what the server has under that name.

    Raises:
        TicketTableError: a table that is no ticket table of this pool.
    """
    found = tables.look(cursor, place, name)
    if found is None or isinstance(found, Tombstone):
        return found
    layout, note = found
    return Live(layout, note, tables.number(cursor, place, name, layout))


def names(cursor: DBAPICursor, place: Place) -> list[str]:
    """The tables with a note, which are this package's and no tombstones."""
    return list(notes(cursor, place))


def notes(cursor: DBAPICursor, place: Place) -> dict[str, Note]:
    """The notes of all tables that have one, whatever stride they have."""
    place.send(cursor, ListTicketTables())
    found = {str(row[0]): Note.found_in(row[1]) for row in cursor.fetchall()}
    return {name: note for name, note in found.items() if note is not None}


def bury(
    cursor: DBAPICursor, place: Place, name: str, to: Destination, seen: State = None
) -> Tombstone:
    """Put a tombstone where a ticket table is; every ticket of it is at most the high water.

    What stands on the tombstone ``seen`` is replaced, and its high water kept.

    Raises:
        TicketTableMissing: there is no table.
        TicketTableError: there is something else than was seen: another migration has put it there.
    """
    with _alone(cursor, place, name):
        state = look(cursor, place, name)
        if state is None:
            raise TicketTableMissing(f"{place.server} has no ticket table {name!r}")
        if isinstance(state, Tombstone):
            grave = state._replace(kind=to.kind, pool=to.pool, sequence=to.sequence)
            if grave != state:
                if state != seen:
                    raise _changed(place, name, seen, state)
                grave = grave._replace(nonce=_nonce())
                _write_on(cursor, place, name, grave)
            return grave
        if isinstance(seen, Tombstone):
            raise _changed(place, name, seen, state)
        if place.dialect.name in ("mysql", "mariadb"):
            return _bury_by_alter(cursor, place, name, state, to)
        high = tables.last_ticket(cursor, place, name, state.layout)
        bits = state.note.bits if state.note else 64
        grave = Tombstone(to.kind, to.pool, to.sequence, high, state.layout, bits, _nonce())
        _write_on(cursor, place, name, grave)
        return grave


def _bury_by_alter(
    cursor: DBAPICursor, place: Place, name: str, state: Live, to: Destination
) -> Tombstone:
    place.send(cursor, TicketTableParts(name))
    parts = [(str(kind), str(part)) for kind, part in cursor.fetchall()]
    bits = 32 if any(kind == "type" and part.startswith("int") for kind, part in parts) else 64
    if state.layout == "replace":
        high = _draw_last(cursor, place, name, bits)
    else:
        high = tables.last_ticket(cursor, place, name, state.layout)
    grave = Tombstone(to.kind, to.pool, to.sequence, high, state.layout, bits, _nonce())
    keys = [part for kind, part in parts if kind == "key"]
    # MariaDB's stand in the column, and go with it
    named = not getattr(place.dialect, "is_mariadb", False)
    checks = [part for kind, part in parts if kind == "check" and named]
    place.send(cursor, BuryTicketTable(name, grave, keys, checks))
    return grave


def _nonce() -> str:
    """For whoever was stopped for long, and goes on where all looks as he left it."""
    return os.urandom(6).hex()


def _draw_last(cursor: DBAPICursor, place: Place, name: str, bits: int) -> int:
    """Draw a last ticket: it is above all others, which the row of Flickr's table need not be."""
    try:
        place.send(cursor, ReplaceTicket(name, place.stride, place.offset))
    except Exception as error:
        if fault_of(error) in (Fault.EXHAUSTED, Fault.CONFLICT):
            return largest_ticket(bits)
        raise
    return int(cursor.lastrowid or 0)


def erect(cursor: DBAPICursor, place: Place, name: str, to: Destination, seen: State) -> Tombstone:
    """Put a tombstone where nothing is, or change what stands on the tombstone ``seen``.

    Raises:
        TicketTableError: there is a ticket table, or another tombstone.
    """
    state = look(cursor, place, name)
    if state is None:
        grave = Tombstone(to.kind, to.pool, to.sequence, 0, nonce=_nonce())
        with _transaction(cursor, place):
            _send_tombstone(cursor, place, name, grave)
        return grave
    if isinstance(state, Live):
        raise TicketTableError(f"{place.server} has a ticket table {name!r} that is drawn from")
    if (state.kind, state.pool, state.sequence) == (to.kind, to.pool, to.sequence):
        return state
    if state != seen:
        raise _changed(place, name, seen, state)
    return bury(cursor, place, name, to, seen)


def open_(
    cursor: DBAPICursor, place: Place, element: CreateTicketTable, expected: Tombstone
) -> None:
    """Make a ticket table of the tombstone ``expected``; one that was opened meanwhile is raised.

    Raises:
        TicketTableError: another tombstone is there than the one that was seen when the number that
            the table is to begin with was found out.
    """
    name = element.name
    with _alone(cursor, place, name):
        state = look(cursor, place, name)
        if state == expected:
            _open_alone(cursor, place, element)
            return
    if isinstance(state, Live):
        raise_above(cursor, place, name, element.start - 1)
        return
    raise _changed(place, name, expected, state)


def _changed(place: Place, name: str, seen: object, found: object) -> TicketTableError:
    return TicketTableError(
        f"the ticket table {name!r} on {place.server} was changed meanwhile: expected {seen}, found"
        f" {found}. Does another migration run? Run this one again when it has ended."
    )


def _open_alone(cursor: DBAPICursor, place: Place, element: CreateTicketTable) -> None:
    name, note = element.name, element.note(place.dialect.name)
    if place.dialect.name in ("mysql", "mariadb"):
        cursor.execute(
            f"DELETE FROM {place.dialect.identifier_preparer.quote_identifier(name)}", ()
        )
        place.send(cursor, SeedTombstone(name, note.layout, element.seed))
        place.send(cursor, OpenTicketTable(element))
        return
    place.send(cursor, DropTicketTable(name))
    place.send(cursor, element)
    place.send(cursor, SeedTicketTable(name, note.layout, element.seed))
    if place.dialect.supports_comments:
        place.send(cursor, NoteTicketTable(name, note))


def raise_above(cursor: DBAPICursor, place: Place, name: str, above: int) -> None:
    """See that no ticket from now on is ``above`` or below; a number is never lowered.

    A table that has lost its row is given one.

    Raises:
        TicketTableError: there is no table that can be drawn from, or the number is one of those with
            which servers of a larger stride have joined.
    """
    number = seed(above + 1, place.stride, place.offset)
    layout, _ = tables.find(cursor, place, name)
    if (tables.number(cursor, place, name, layout) or 0) >= number:
        return
    marks = _keeps_marks(cursor, place, name)
    with _alone(cursor, place, name, MARKS if marks else None):
        layout, _ = tables.find(cursor, place, name)  # others may have converted or widened it
        stands = tables.number(cursor, place, name, layout)
        if marks:
            _refuse_to_meet(cursor, place, name, stands or 0, number)
        if stands is None:
            place.send(cursor, SeedTicketTable(name, layout, number))
        elif layout == "counter":
            place.send(cursor, RaiseCounter(name, number))
        else:
            _draw_up_to(cursor, place, name, number)


def _keeps_marks(cursor: DBAPICursor, place: Place, name: str) -> bool:
    try:
        _joined(cursor, place, name)
    except Exception as error:
        if fault_of(error) in (Fault.MISSING, Fault.DENIED):
            return False
        raise
    return True


def _joined(cursor: DBAPICursor, place: Place, name: str) -> int | None:
    """Above what servers with a larger stride have joined, if any have."""
    place.send(cursor, ReadJoined(place.stride), sequence=name)
    ((joined,),) = cursor.fetchall()
    return None if joined is None else int(joined)


def _refuse_to_meet(cursor: DBAPICursor, place: Place, name: str, stands: int, number: int) -> None:
    """See that a table stays far below the servers that joined, some of whose numbers are of its class."""
    joined = _joined(cursor, place, name)
    if joined is not None and number > (stands + joined) // 2:
        raise TicketTableError(
            f"the ticket table {name!r} on {place.server} stands at {stands} and cannot be raised to"
            f" {number}: servers that joined with a larger stride than {place.stride} issue numbers of its"
            f" class above {joined}, which it would meet. End the growth (sqla-tickets grow --finish), then"
            " raise it by a pool of all servers"
        )


def _draw_up_to(cursor: DBAPICursor, place: Place, name: str, number: int) -> None:
    place.send(cursor, ReplaceTicket(name, place.stride, place.offset))
    drawn = int(cursor.lastrowid or 0)
    if drawn < number:
        up_to = ReplaceUpTo(name, place.stride, place.offset)
        place.send(cursor, up_to, span=number - drawn)


def _write_on(cursor: DBAPICursor, place: Place, name: str, grave: Tombstone) -> None:
    """Put the tombstone in the place of the table, or of another tombstone."""
    if place.dialect.name in ("mysql", "mariadb"):
        place.send(cursor, NoteTombstone(name, grave))
    else:
        place.send(cursor, DropTicketTable(name))
        _send_tombstone(cursor, place, name, grave)


def _send_tombstone(cursor: DBAPICursor, place: Place, name: str, grave: Tombstone) -> None:
    place.send(cursor, CreateTombstone(name, grave))
    if place.dialect.name == "postgresql":
        place.send(cursor, NoteTombstone(name, grave))


@contextlib.contextmanager
def _alone(
    cursor: DBAPICursor, place: Place, name: str, reads: str | None = None
) -> Generator[None]:
    """Wait for the clients that use the table, and keep the others out until the end.

    Args:
        cursor: of a connection in autocommit.
        place: the server.
        name: of the sequence.
        reads: another table that is read meanwhile, and that nobody may write to.
    """
    if place.dialect.name not in ("mysql", "mariadb"):
        with _transaction(cursor, place):
            if place.dialect.name == "postgresql":
                cursor.execute("SET LOCAL lock_timeout = '1s'", ())
                place.send(cursor, LockForMigration(name))
            yield
        return
    place.send(cursor, LockTicketTable(name, reads))
    try:
        yield
    except TicketTableError:  # after any other error the connection is thrown away
        place.send(cursor, UnlockTables(name))
        raise
    place.send(cursor, UnlockTables(name))


@contextlib.contextmanager
def _transaction(cursor: DBAPICursor, place: Place) -> Generator[None]:
    """A transaction where the server has one for changes of tables."""
    if place.dialect.name in ("mysql", "mariadb"):
        yield
        return
    cursor.execute("BEGIN IMMEDIATE" if place.dialect.name == "sqlite" else "BEGIN", ())
    try:
        yield
        cursor.execute("COMMIT", ())
    except BaseException:
        with contextlib.suppress(Exception):  # what is raised is what matters
            cursor.execute("ROLLBACK", ())
        raise
