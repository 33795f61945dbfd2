"""More ticket servers for a pool, and fewer, while old and new clients draw.

A server can join at once where the stride has a residue class to spare. Where it has none, the stride is
multiplied, as MariaDB's manual tells for AUTO_INCREMENT: of the numbers of a server of stride 2, every
other one goes to a server that joins with stride 4. What keeps them apart while clients of the old
configuration go on, who still take them all, is distance: the servers that join begin a gap above.

1. `open_beside`: the sequence is opened on the servers that join, a gap above all others.
2. Clients get the new configuration, one after the other. Those draw from the servers that joined, as the
   note on the others' tables refuses them; those of the old configuration draw from the others.
3. `widen`, when nobody draws with the old configuration any more: the old servers get the new stride. No
   number of theirs is above the gap, and from now on they issue every other one only.

The proof: a server that joined has never issued a number below the gap, and none of its class above it
is issued by anybody else: not before step 3, because nobody comes so far, and not after, because the
stride skips them. Nobody is drawn so far; that nobody is raised so far, the old servers see to themselves,
which are told where the others begin before one of them is opened.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from sqlalchemy.engine.interfaces import DBAPICursor

from . import moves, tombstones
from .errors import TicketArgumentError, TicketTableError, TicketTableMissing
from .mark_statements import JOINED
from .note import Note, Tombstone
from .place import Place
from .statements import CreateTicketTable, largest_ticket
from .tombstones import Destination, Live, State

if TYPE_CHECKING:
    from .pool import TicketPool
    from .server import TicketServer

__all__ = ["GAP", "narrow", "open_beside", "retire", "widen"]

log = logging.getLogger(__name__)

#: How far above all others the servers that join begin: years, at ten thousand tickets a second.
GAP: Final = 10**12


def open_beside(old: TicketPool, new: TicketPool, name: str, *, gap: int = GAP) -> int:
    """Open a sequence on the servers that ``new`` has and ``old`` has not.

    Args:
        old: the pool as it is.
        new: the pool as it will be: the same servers first, the same stride or a multiple.
        name: of the sequence.
        gap: how far above the old servers the others begin, where the stride changes: more than they
            issue until `widen`.

    Returns:
        No server that joins issues this number or one below.

    Raises:
        TicketArgumentError: the pools do not fit, the table is too narrow for the gap, or it has no note and
            the stride changes.
        TicketTableError: an old server cannot be told where the others begin, or has just come that far.
        TicketError: a server failed. Call it again when that is mended.
    """
    _check_fit(old, new)
    states = {server: _live(server, name) for server in old.servers}
    if new.stride != old.stride:
        _check_notes(old, name, states)
    highest = max(state.number or 0 for state in states.values())
    model = next(iter(states.values()))
    bits = model.note.bits if model.note else 64
    joining = {server: _look(server, name) for server in new.servers[len(old.servers) :]}
    graves = [state.high_water for state in joining.values() if isinstance(state, Tombstone)]
    distance = moves.MARGIN if new.stride == old.stride else gap
    known = new.marks.prepare(name)  # of one whose place is taken, which may have come further
    above = max(highest + distance, *graves, known + moves.MARGIN if known else 0)
    if above + gap // 10 > largest_ticket(bits):
        raise TicketArgumentError(
            f"{name!r} has {bits} bits, which end at {largest_ticket(bits)}: servers that join at {above}"
            " would have hardly any numbers. Choose a smaller gap, or widen the tables to 64 bits"
        )
    if new.stride != old.stride and not any(isinstance(s, Live) for s in joining.values()):
        new.marks.join_above(name, above)
        _check_below(old, new, name, above)
    for server, state in joining.items():
        element = CreateTicketTable(
            name,
            layout=model.layout if server.engine.dialect.name in ("mysql", "mariadb") else None,
            stride=new.stride,
            offset=server.offset or 0,
            start=above + 1,
            bits=bits,
        )
        if isinstance(state, Tombstone):
            _open(server, element, state)
        elif state is None:
            server.create(element)
        else:
            log.info("%r is on %s already", name, server)
    return above


def _check_fit(old: TicketPool, new: TicketPool) -> None:
    same = [server.offset for server in old.servers] == [
        server.offset for server in new.servers[: len(old.servers)]
    ]
    if new.stride % old.stride or not same or len(new.servers) <= len(old.servers):
        raise TicketArgumentError(
            f"{old.name!r} cannot grow from a stride of {old.stride} to {new.stride}: the new stride is"
            " the old one or a multiple of it, the servers that are there come first, and others follow"
        )


def _check_notes(old: TicketPool, name: str, states: Mapping[TicketServer, Live]) -> None:
    """See that a table can refuse clients of the new configuration, and those of the old one later."""
    for server, state in states.items():
        if state.note is None:
            note = Note(state.layout, old.stride, server.offset or 0)
            raise TicketArgumentError(
                f"the ticket table {name!r} on {server} has no note, as another program has made it, so it could"
                " not tell clients of the old configuration from those of the new one. Write the note first:"
                f" ALTER TABLE `{name}` COMMENT='{note}'"
            )


def _check_below(old: TicketPool, new: TicketPool, name: str, above: int) -> None:
    """See that every old server is below the number, and knows that nobody may raise it above."""
    for server, known_as in zip(old.servers, new.servers, strict=False):
        known = (new.marks.kept_by(known_as, name) or {}).get(JOINED, 0)
        number = _live(server, name).number or 0
        if known < above or number > above:
            raise TicketTableError(
                f"{name!r} on {server} is to stay below {above}, above which others join: it stands at"
                f" {number}, and its table of marks says {known or 'nothing'}. May its user write there, or"
                " was the table raised just now? Call it again"
            )


def _look(server: TicketServer, name: str) -> State:
    return server.do(name, lambda cursor, place: tombstones.look(cursor, place, name))


def _live(server: TicketServer, name: str) -> Live:
    state = _look(server, name)
    if isinstance(state, Live) and state.number is not None:
        return state
    raise TicketTableMissing(
        f"{server} has no ticket table {name!r} that can be drawn from: mend that before the pool grows"
    )


def narrow(new: TicketPool, name: str) -> dict[TicketServer, int]:
    """The servers whose table still has the stride of before, and their numbers.

    While these rise, somebody draws with the old configuration.

    Raises:
        TicketError: a server failed, or its numbers are none that the pool could take over.
    """
    found: dict[TicketServer, int] = {}
    for server in new.servers:
        number = server.do(name, lambda cursor, place: _narrow_number(cursor, place, name))
        if number is not None:
            found[server] = number
    return found


def _place_of_old(cursor: DBAPICursor, place: Place, name: str) -> Place | None:
    """The server as its own note has it; None when that is as the pool has it, or not there.

    Raises:
        TicketTableError: the numbers of the pool's class were not all this server's.
    """
    note = tombstones.notes(cursor, place).get(name)
    if note is None or note.agrees_with(Note(note.layout, place.stride, place.offset)):
        return None
    if place.stride % note.stride or (place.offset - note.offset) % note.stride:
        raise TicketTableError(
            f"the ticket table {name!r} on {place.server} is numbered otherwise: expected {note.layout!r}"
            f" with a stride that {place.stride} is a multiple of, found {note}"
        )
    return place._replace(stride=note.stride, offset=note.offset)


def _narrow_number(cursor: DBAPICursor, place: Place, name: str) -> int | None:
    old = _place_of_old(cursor, place, name)
    state = None if old is None else tombstones.look(cursor, old, name)
    return (state.number or 0) if isinstance(state, Live) else None


def widen(new: TicketPool, name: str) -> list[int]:
    """Give the old servers' tables the stride of ``new``; nobody may draw with the old one any more.

    Whoever does it still is refused when its connections are ended, which is done here as far as the
    ticket user may: of its own, and with the privilege PROCESS of others.

    Returns:
        The high waters with which the old stride ended.

    Raises:
        TicketError: a server failed. Call it again when that is mended.
    """
    ended: list[int] = []
    for server in new.servers:
        grave = server.do(name, lambda cursor, place: _bury_narrow(cursor, place, new.name, name))
        if grave is None:
            continue
        server.do(name, _end_other_connections)
        element = CreateTicketTable(
            name,
            layout=grave.layout,
            stride=new.stride,
            offset=server.offset or 0,
            start=grave.high_water + 1,
            bits=grave.bits,
        )
        _open(server, element, grave)
        ended.append(grave.high_water)
    new.marks.prepare(name)
    return ended


def _bury_narrow(cursor: DBAPICursor, place: Place, pool: str, name: str) -> Tombstone | None:
    """Close a table that has the old stride; what was closed before is opened, too."""
    old = _place_of_old(cursor, place, name)
    if old is not None:
        return tombstones.bury(cursor, old, name, Destination("converting", pool, name))
    state = tombstones.look(cursor, place, name)
    if isinstance(state, Tombstone) and state.kind == "converting":
        return state
    return None


def _open(server: TicketServer, element: CreateTicketTable, grave: Tombstone) -> None:
    server.do(element.name, lambda cursor, place: tombstones.open_(cursor, place, element, grave))


def _end_other_connections(cursor: DBAPICursor, place: Place) -> None:
    """So that whoever knew the table looks at it again. A file has none to be ended."""
    for statement in _kills(cursor, place):
        with contextlib.suppress(Exception):  # it has ended by itself, or is another user's
            cursor.execute(statement)
            if cursor.description:
                cursor.fetchall()


def _kills(cursor: DBAPICursor, place: Place) -> Iterator[str]:
    if place.dialect.name in ("mysql", "mariadb"):
        cursor.execute(
            "SELECT ID FROM information_schema.PROCESSLIST"
            " WHERE DB = DATABASE() AND ID <> CONNECTION_ID()"
        )
        yield from [f"KILL {row[0]}" for row in cursor.fetchall()]
    elif place.dialect.name == "postgresql":
        yield (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def retire(pool: TicketPool, name: str, leaving: int) -> int:
    """Close a sequence on the last servers of a pool, and raise the others above what they issued.

    Their high water stays, on their tombstones and below the others' numbers, so that whoever takes the
    residue class over begins above it. The pool keeps its stride.

    Args:
        pool: with all its servers.
        name: of the sequence.
        leaving: how many of its last servers go.

    Returns:
        No number above this one was issued by a server that leaves.

    Raises:
        TicketArgumentError: none would be left.
        TicketError: a server failed. Call it again when that is mended.
    """
    if not 1 <= leaving < len(pool.servers):
        raise TicketArgumentError(
            f"{leaving} of the {len(pool.servers)} servers of {pool.name!r} cannot retire: one has to stay"
        )
    to = Destination("dropped", pool.name, name)
    staying, going = pool.servers[:-leaving], pool.servers[-leaving:]
    for server in staying:
        _live(server, name)
    high = 0
    for server in going:
        grave = server.do(name, lambda cursor, place: _drop(cursor, place, name, to))
        high = max(high, grave.high_water if grave else 0)
    for server in staying:
        server.do(name, lambda cursor, place: tombstones.raise_above(cursor, place, name, high))
    return high


def _drop(cursor: DBAPICursor, place: Place, name: str, to: Destination) -> Tombstone | None:
    state = tombstones.look(cursor, place, name)
    return None if state is None else tombstones.bury(cursor, place, name, to, state)
