"""The kinds of databases that can be ticket servers, one class for each.

Every statement about a ticket table is a method of `base.TicketDialect`, which a kind overrides: its lock is
`lock_table`, a draw `replace_ticket` or `advance_counter`; so is what its errors, time-outs and users are.

A new kind is one subclass in one file. It begins as a copy of ``sqlite.py``, the shortest; one that speaks another's protocol
is a subclass of that kind. In another package, its entry point in the group `sqla_tickets.dialects` has SQLAlchemy's name for the
dialect. In this package, `_OWN` has it instead. Nothing else knows
the kinds; only `connect.sockets` knows where drivers that have no ``fileno()`` keep their socket.

The tests it owes, wherever it lives: what it decides without a server, as by a version or a URL, like those of ``tests/unit/dialects``; and a
draw through its entry point, like that of ``test_registry.py`` there. A kind of this package also goes into ``KINDS`` of
``tests/support/servers/server_registry.py``, with a server to start and its way in ``shared()`` of ``server_fixtures.py``, and into ``tests/support/drivers.py``, with its drivers: then
every test of a draw and of a migration runs on it.

What a kind owes. `base` says how; a method that is not overridden does what PostgreSQL needs:

- Always: ``set_connect_defaults``, ``set_up_session``, ``comment_on``, ``describe_table``, ``list_tables``, and
  ``upsert_largest``, which `base.raised_on_conflict` writes where there is ``ON CONFLICT``.
- Its errors: ``error_codes`` and ``error_code``, or ``error_texts``. One that is not found is a lost connection.
- Drawing: ``advance_counter``, where it has no ``UPDATE ... RETURNING``; then ``returns_counter``, too. ``read_row``, where it has no
  ``FOR UPDATE``.
- Changing tables: ``lock_table``. It is None for a kind whose transactions, begun by ``begin``, keep all others out. A kind
  that cannot change tables in a transaction has ``begin = None``, and alters them: ``exclusive``, ``unlock_tables``, ``table_parts``, ``alter_to_tombstone``, ``replace_by_tombstone``,
  ``open_table``.
- Noticing a restart: ``identity``. Without it, a server that was restored while a process ran is found by its low numbers only. Also
  ``read_only``, ``durability``.
- Its SQL: ``now``, ``utc_of_milliseconds``, ``name_type``, ``ticket_type`` (and ``create_table``, ``create_tombstone``, ``drop_table``, where BIGINT or IF EXISTS is unknown), ``ping``, ``default_port``, ``is_embedded``.
- For operators: ``facts``, ``missing_grant``, ``grants`` with the privileges, ``maintenance_database``, ``synchronous_driver``.
- Flickr's table, where it has REPLACE: ``layouts``, ``replace_ticket``, ``replace_up_to``, ``keeps_counter``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from sqlalchemy import Dialect

from ..errors import TicketArgumentError
from .base import (
    LONGEST_COMMENT,
    STUB,
    ErrorKind,
    LayoutName,
    Statement,
    TableShape,
    TicketDialect,
)
from .facts import Grant, Role, ServerFacts
from .mysql import MariaDB, MySQL
from .postgresql import PostgreSQL
from .sqlite import SQLite

__all__ = [
    "ENTRY_POINTS",
    "LONGEST_COMMENT",
    "STUB",
    "ErrorKind",
    "Grant",
    "LayoutName",
    "Role",
    "ServerFacts",
    "Statement",
    "TableShape",
    "TicketDialect",
    "class_of",
    "dialect_of",
    "find_class",
    "find_dialect",
    "has_plpgsql",
]

#: The entry point group by which a package adds a kind of database, under SQLAlchemy's name for it.
ENTRY_POINTS: Final = "sqla_tickets.dialects"

_OWN: Final[dict[str, type[TicketDialect]]] = {
    "mysql": MySQL,
    "mariadb": MariaDB,
    "postgresql": PostgreSQL,
    "sqlite": SQLite,
}


def dialect_of(sqlalchemy: Dialect) -> TicketDialect:
    """The `TicketDialect` of the database that an engine leads to.

    Args:
        sqlalchemy: the engine's dialect.

    Raises:
        TicketArgumentError: no dialect is registered for this kind of database.
    """
    return class_of(sqlalchemy.name).of(sqlalchemy)


def class_of(name: str) -> type[TicketDialect]:
    """The class for the dialects that SQLAlchemy calls ``name``.

    Raises:
        TicketArgumentError: no dialect is registered for this kind of database.
    """
    return _OWN.get(name) or _added(name)


def find_class(name: str) -> type[TicketDialect] | None:
    """As `class_of`, for an application's database, which may be of any kind; None of an unknown one."""
    try:
        return class_of(name)
    except TicketArgumentError:
        return None


def find_dialect(sqlalchemy: Dialect) -> TicketDialect | None:
    """As `dialect_of`, for an application's database, which may be of any kind; None of an unknown one."""
    known = find_class(sqlalchemy.name)
    return None if known is None else known.of(sqlalchemy)


def has_plpgsql(sqlalchemy: Dialect) -> bool:
    """Whether an application's database has functions in PL/pgSQL."""
    known = find_dialect(sqlalchemy)
    return known is not None and known.has_plpgsql


@lru_cache
def _added(name: str) -> type[TicketDialect]:
    from importlib.metadata import entry_points  # noqa: PLC0415  # milliseconds, which hardly anybody needs

    for entry_point in entry_points(group=ENTRY_POINTS, name=name):
        found = entry_point.load()
        if isinstance(found, type) and issubclass(found, TicketDialect):
            return found
        raise TicketArgumentError(
            f"the entry point {name!r} of the group {ENTRY_POINTS!r} is {found!r}: expected a subclass of"
            " sqla_tickets.dialects.TicketDialect"
        )
    raise TicketArgumentError(
        f"{name} cannot be a ticket server: expected one of {', '.join(_OWN)}. A package adds another kind of"
        f" database by an entry point of the group {ENTRY_POINTS!r}"
    )
