"""Looking at a ticket table before it is drawn from: how that is done, and how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import tables
from .layouts import Layout, layout_of
from .ticket_table import Look, TicketTable

if TYPE_CHECKING:
    from .connections import Connection
    from .server import TicketServer

__all__ = ["find", "recall"]


def find(server: TicketServer, connection: Connection, table: TicketTable) -> Layout:
    """The layout of a table, of which nothing is taken for granted; what else it shows is remembered.

    Raises:
        TicketTableError: it is missing, has moved, or is not this pool's.
        Exception: the driver's.
    """
    place, cursor = server.place, connection.cursor
    server.warn_if_forgetful(connection)
    # before the rest: what is altered meanwhile is found out by the next one who compares
    defined = tables.definition(cursor, place, table.name)
    layout, table.note = tables.find(cursor, place, table.name)
    last = tables.last_ticket(cursor, place, table.name, layout)
    if table.note is None:
        tables.check_residue(place, table.name, last)
    table.shows(last)
    found = table.layout
    if found is None or found.name != layout:
        found = layout_of(layout, table.name, place.dialect, place.stride, place.offset)
        table.layout = found
    table.look = (
        Look(found, defined.text, connection.identity)
        if defined is not None and connection.identity is not None
        else None
    )
    connection.known_tables.add(table.name)
    return found


def recall(server: TicketServer, connection: Connection, table: TicketTable) -> Layout | None:
    """The layout of a table that is still as this run of the server has shown it; else None.

    When a server comes back all its clients connect anew at once. A whole look at each table takes
    it several times as long as a draw, and a look that waits in vain is begun again.

    Raises:
        Exception: the driver's.
    """
    look, layout, identity = table.look, table.layout, connection.identity
    if look is None or layout is None or look.layout is not layout or identity is None:
        return None
    if not identity.is_same_run(look.identity):
        return None
    known, cursor = table.known, connection.cursor
    defined = tables.definition(cursor, server.place, table.name)
    if defined is None or defined.text != look.text:
        return None
    follows = defined.follows
    if layout.name == "counter":  # read without the lock that `tables.follows` would queue for
        follows = (tables.number(cursor, server.place, table.name, layout.name) or 0) + 1
    if follows is None or follows <= known:
        return None
    connection.known_tables.add(table.name)
    return layout
