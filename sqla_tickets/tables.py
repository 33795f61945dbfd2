"""The ticket table of one sequence on one server: found, read, created, dropped.

Plain statements over a cursor in autocommit. Nothing here draws a ticket.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final, NamedTuple

from sqlalchemy.engine.interfaces import DBAPICursor

from .compiled import Compiled
from .errors import TicketTableError, TicketTableMissing, TicketTableMoved
from .faults import Fault, fault_of
from .layouts import counter_is_kept
from .note import LayoutName, Note, Tombstone
from .place import Place
from .statements import (
    CreateTicketTable,
    DropTicketTable,
    FindTicketTable,
    LastTicket,
    LockTicketTable,
    NoteTicketTable,
    SeedTicketTable,
    UnlockTables,
)

__all__ = [
    "Definition",
    "catch_up",
    "check_locks",
    "create",
    "definition",
    "drop",
    "exists",
    "find",
    "follows",
    "last_ticket",
    "look",
    "number",
]


# Of the table's options, which begin a line: a comment may say the same.
_FOLLOWS: Final = re.compile(r"^\)(?: .*?)? ENGINE=\w+ +AUTO_INCREMENT=(\d+)", re.MULTILINE)


class Definition(NamedTuple):
    """A table as its server writes it down.

    Attributes:
        text: all of it but the number that follows; the note is in it.
        follows: the least number that the next ticket of Flickr's layout can have; None of a counter.
    """

    text: str
    follows: int | None


def exists(cursor: DBAPICursor, place: Place, name: str) -> bool:
    """Whether the server shows this user a table of that name, of whatever kind."""
    place.send(cursor, FindTicketTable(name), table=name)
    return bool(cursor.fetchall())


def _tombstone(place: Place, name: str, text: str | None) -> Tombstone | None:
    try:
        return Tombstone.found_in(text)
    except ValueError as error:
        raise TicketTableError(
            f"the tombstone of {name!r} on {place.server} cannot be read ({error}): compare it with"
            " the other servers'"
        ) from error


def find(cursor: DBAPICursor, place: Place, name: str) -> tuple[LayoutName, Note | None]:
    """Find out which layout the table has, and that it is numbered as the pool numbers.

    Returns:
        The layout, and the note beside the number; None for a foreign table.

    Raises:
        TicketTableMoved: there is a tombstone, which says where the sequence went.
        TicketTableError: it is missing, no ticket table, or another pool's.
    """
    found = look(cursor, place, name)
    if isinstance(found, Tombstone):
        raise _gone(place, name, found)
    if found is None:
        raise TicketTableMissing(
            f"{place.server} has no ticket table {name!r} that this user can see: run the migration"
            f" that creates it (a stamped database has run none) or pool.create_table({name!r}), or"
            " grant the ticket user SELECT, INSERT, DELETE, UPDATE and LOCK TABLES on it"
        )
    _check_memory(place, name, found[0])
    check_locks(cursor, place, name, found[0])
    return found


def look(
    cursor: DBAPICursor, place: Place, name: str
) -> tuple[LayoutName, Note | None] | Tombstone | None:
    """What stands under that name: a table as `find` tells it, a tombstone, or nothing.

    Raises:
        TicketTableError: a table that is no ticket table, or another pool's.
    """
    place.send(cursor, FindTicketTable(name), table=name)
    rows = cursor.fetchall()
    if not rows:
        return None
    grave = _tombstone(place, name, rows[0][3])
    if grave is not None:
        return grave
    layout = _layout(
        place, name, {str(row[0]).lower(): (bool(row[1]), bool(row[2])) for row in rows}
    )
    try:
        note = Note.found_in(rows[0][3])
    except ValueError as error:
        raise TicketTableError(
            f"the note beside the number of {name!r} on {place.server} cannot be read ({error}):"
            " compare it with the other servers'"
        ) from error
    expected = Note(layout, place.stride, place.offset)
    if note is not None and not note.agrees_with(expected):
        raise TicketTableError(
            f"the ticket table {name!r} on {place.server} is numbered otherwise: expected {expected},"
            f" found {note}. Are the pool's servers in another order, or was its stride changed?"
        )
    return layout, note


def _check_memory(place: Place, name: str, layout: LayoutName) -> None:
    """Refuse a counter that is not on disk: started again, it goes on from the row.

    The row may be behind it, as whoever took a number first need not be the last one to write it.
    """
    version = place.dialect.server_version_info
    if layout == "replace" and version and not counter_is_kept(place.dialect):
        raise TicketTableError(
            f"{place.server} (version {'.'.join(map(str, version))}) has its AUTO_INCREMENT counter in"
            f" memory only, and repeats tickets of {name!r} after a restart: use MySQL from 8.0 or"
            " MariaDB from 10.2.4 on, or a table of the layout 'counter'"
        )


def check_locks(cursor: DBAPICursor, place: Place, name: str, layout: LayoutName) -> None:
    """Refuse Flickr's table where others write on other machines, whom ``LOCK TABLES`` does not lock out.

    MariaDB manual, "MariaDB Galera Cluster - Known Limitations"; MySQL manual, "Group Replication
    Limitations".

    Raises:
        TicketTableError: the layout is Flickr's, and others write.
    """
    if layout != "replace":
        return
    for variable, value in _cluster(cursor, place).items():
        if (variable, value) != ("group_replication_single_primary_mode", "ON"):
            raise TicketTableError(
                f"{place.server} is in a cluster that takes writes on every node ({variable} = {value}),"
                f" and cannot issue the tickets of {name!r} by the layout 'replace': LOCK TABLES holds"
                " off nobody on the other nodes. Create the table with the layout 'counter', or convert"
                f" it (op.convert_ticket_table({name!r}, layout='counter'))"
            )


def catch_up(cursor: DBAPICursor, place: Place) -> None:
    """Have what follows on this connection see every commit that the server's cluster has agreed on.

    A node of a Galera cluster shows what another one has committed a little later, unless it is asked
    to wait (MariaDB manual, ``wsrep_sync_wait``: 1 for what only reads).
    """
    if "wsrep_on" in _cluster(cursor, place):
        cursor.execute("SET SESSION wsrep_sync_wait = 1", ())


def _cluster(cursor: DBAPICursor, place: Place) -> dict[str, str]:
    """The variable that tells of a cluster, of Galera's or Group Replication's, if there is one."""
    if place.dialect.name not in ("mysql", "mariadb"):
        return {}
    with contextlib.suppress(Exception):  # what stands in for MySQL need not answer that
        cursor.execute(
            "SHOW GLOBAL VARIABLES WHERE Variable_name = 'group_replication_single_primary_mode'"
            " OR Variable_name = 'wsrep_on' AND Value = 'ON'",
            (),
        )
        return {str(variable): str(value) for variable, value in cursor.fetchall()}
    return {}


def _gone(place: Place, name: str, grave: Tombstone) -> TicketTableError:
    there = f"the ticket table {name!r} on {place.server}"
    if grave.kind == "dropped":
        return TicketTableMissing(
            f"{there} was dropped by a migration, at {grave.high_water}: create it again, and it"
            " begins above that"
        )
    what = {
        "moved": f"has moved: the sequence is now {grave.sequence!r} of the pool {grave.pool!r}",
        "opening": f"is not open yet: {grave.sequence!r} of the pool {grave.pool!r} is being moved here",
        "converting": "is being converted to another layout",
    }[grave.kind]
    advice = (
        "attach that pool too"
        if grave.kind == "moved"
        else "if that lasts, run the migration again"
    )
    return TicketTableMoved(f"{there} {what}: {advice}", grave.pool, grave.sequence)


def _layout(place: Place, name: str, columns: dict[str, tuple[bool, bool]]) -> LayoutName:
    """Tell the layout from the columns, each with whether it is unique and whether it counts."""
    if set(columns) == {"id", "stub"} and columns["stub"][0]:
        if columns["id"] == (True, True):
            return "replace"
        if columns["id"] == (False, False):
            return "counter"
    raise TicketTableError(
        f"the table {name!r} on {place.server} is no ticket table: expected the columns id and stub,"
        " stub unique, id either AUTO_INCREMENT and unique (replace) or neither of it (counter);"
        f" found {sorted(columns)}. Is the sequence named after a table of the application?"
    )


def last_ticket(cursor: DBAPICursor, place: Place, name: str, layout: LayoutName) -> int:
    """The largest ticket that the table shows.

    Raises:
        TicketTableError: it has no row.
    """
    found = number(cursor, place, name, layout)
    if found is None:
        raise TicketTableError(
            f"the ticket table {name!r} on {place.server} is empty: its number is lost, or it never"
            f" had one. pool.create_table({name!r}, start=N) gives it one; N must be above every id"
            " that was ever issued"
        )
    return found


def check_residue(place: Place, name: str, last: int) -> None:
    """See that a foreign table, which has no note, has issued this server's numbers so far.

    Raises:
        TicketTableError: its last ticket is another server's.
    """
    if (last - place.offset) % place.stride:
        raise TicketTableError(
            f"the ticket table {name!r} on {place.server} is numbered otherwise: expected a last ticket"
            f" that is {place.offset % place.stride} modulo {place.stride}, found {last}. Are the"
            " pool's servers in another order, or has the pool another stride than the table's other"
            " clients?"
        )


def number(cursor: DBAPICursor, place: Place, name: str, layout: LayoutName) -> int | None:
    """The number in the table's row; None when there is no row."""
    try:
        return _read(cursor, place, name, layout)
    except Exception as error:
        if layout != "replace" or fault_of(error) is not Fault.BUSY:
            raise
        # behind those who draw blocks a reader waits for ever, and only who asks for their lock has his turn
        try:
            place.send(cursor, LockTicketTable(name))
        except Exception as refused:
            if fault_of(refused) is Fault.DENIED:  # who only reads need not be let do more
                raise error from None
            raise
    try:
        return _read(cursor, place, name, layout)
    finally:
        place.send(cursor, UnlockTables(name))


def _read(cursor: DBAPICursor, place: Place, name: str, layout: LayoutName) -> int | None:
    place.send(cursor, LastTicket(name, layout))
    rows = cursor.fetchall()
    return int(rows[0][0]) if rows else None


def follows(cursor: DBAPICursor, place: Place, name: str, layout: LayoutName) -> int | None:
    """The least number that the next ticket can have, as the server itself knows it; None if unknown.

    A plain SELECT may show less: a proxy that sends it to a replica, a row of Flickr's table that
    was written by whoever drew earlier. Nor does information_schema know: it shows what was true a day
    ago (MySQL manual, ``information_schema_stats_expiry``).
    """
    if layout == "counter":
        statement = Compiled(LastTicket(name, layout), place.dialect)
        lock = "" if place.dialect.name == "sqlite" else " FOR UPDATE"
        cursor.execute(statement.text + lock, statement.parameters())
        rows = cursor.fetchall()
        return int(rows[0][0]) + 1 if rows else None
    return _definition(cursor, place, name).follows


def definition(cursor: DBAPICursor, place: Place, name: str) -> Definition | None:
    """What `find` rests on, in one short statement; None where it cannot be had.

    On MySQL it takes a sixth of the time of a whole look (measured), and it waits for nobody's
    ``LOCK TABLES``: its metadata lock is compatible with that one (MySQL manual, "Metadata Locking").
    """
    if place.dialect.name not in ("mysql", "mariadb"):
        return None
    try:
        return _definition(cursor, place, name)
    except Exception as error:
        if fault_of(error) is Fault.TIMEOUT:
            raise
        return None  # there is no such table, or what stands in for MySQL does not tell


def _definition(cursor: DBAPICursor, place: Place, name: str) -> Definition:
    table = place.dialect.identifier_preparer.quote_identifier(name)
    cursor.execute(f"SHOW CREATE TABLE {table}", ())
    (row,) = cursor.fetchall()
    text = str(row[1])
    found = _FOLLOWS.search(text)
    if found is None:
        return Definition(text, None)
    return Definition(text[: found.start(1)] + text[found.end(1) :], int(found[1]))


def create(cursor: DBAPICursor, place: Place, element: CreateTicketTable) -> None:
    """Create the table with its row; of a table that is there, see that it is the one meant.

    A table that has lost its row is given one only where ``start`` says above what.

    Raises:
        TicketTableError: there is another table of that name, or an empty one.
    """
    name = element.name
    wanted = element.note(place.dialect.name).layout
    if not exists(cursor, place, name):
        _check_memory(place, name, wanted)
        check_locks(cursor, place, name, wanted)
        _send_creation(cursor, place, element)
    layout, _ = find(cursor, place, name)
    if element.layout is not None and layout != wanted:
        raise TicketTableError(
            f"the ticket table {name!r} on {place.server} has the layout {layout!r}, not {wanted!r}:"
            " leave the layout out, or convert the table"
        )
    if element.start > 1 and number(cursor, place, name, layout) is None:
        _seed(cursor, place, element, layout)
    last_ticket(cursor, place, name, layout)


def _seed(
    cursor: DBAPICursor, place: Place, element: CreateTicketTable, layout: LayoutName
) -> None:
    """Give an empty table its row, unless somebody else does it at the same time."""
    try:
        place.send(cursor, SeedTicketTable(element.name, layout, element.seed))
    except Exception:
        if number(cursor, place, element.name, layout) is None:
            raise


def _send_creation(cursor: DBAPICursor, place: Place, element: CreateTicketTable) -> None:
    """Never show an unfinished table: one statement on MySQL, one transaction elsewhere."""
    try:
        if place.dialect.name in ("mysql", "mariadb"):
            place.send(cursor, element)
            return
        note = element.note(place.dialect.name)
        cursor.execute("BEGIN", ())
        place.send(cursor, element)
        place.send(cursor, SeedTicketTable(element.name, note.layout, element.seed))
        if place.dialect.supports_comments:
            place.send(cursor, NoteTicketTable(element.name, note))
        cursor.execute("COMMIT", ())
    except Exception:
        if place.dialect.name not in ("mysql", "mariadb"):
            cursor.execute("ROLLBACK", ())
        if not exists(cursor, place, element.name):  # else somebody was quicker
            raise


def drop(cursor: DBAPICursor, place: Place, name: str) -> None:
    """Drop the table, if it is there."""
    place.send(cursor, DropTicketTable(name))
