"""The kinds of databases that can be ticket servers, one class for each.

`base.TicketDialect` has a method for each statement about a ticket table: a draw is `replace_ticket` or `advance_counter`, a lock
`lock_table`. A kind overrides methods; others say how it connects, what its errors mean and which grants its users need.
`mysql` has MySQL and MariaDB, `postgresql` and `sqlite` one kind each; `facts` is what a server reports to the doctor.

A new kind is one subclass in one file. Copy ``sqlite.py``, the shortest; for a server that speaks another's protocol, derive from that
kind. In another package, an entry point of the group `sqla_tickets.dialects` registers the class under SQLAlchemy's name for the
dialect. In this package, `_OWN` does. No other code decides by the kind. Three lists name the kinds for people: "Supported" in the
README, ``--on`` of ``sqla-tickets grants`` and `cli.inspection.ServerInspection`. A driver gets an extra in ``pyproject.toml``, and a line
in `connect.sockets` if its connections have no ``fileno()``.

The tests that it needs, wherever it lives: its decisions without a server, by a version or a URL, as in
``tests/unit/dialects``; and a draw through its entry point, as in ``test_registry.py`` there. A kind of this package
needs a server in ``tests/support``, too:

- ``servers/``: a module that starts one, as ``postgres.py`` does; its name in ``KINDS`` and ``new_...()`` in ``server_registry.py``; its way in
  ``shared()`` of ``server_fixtures.py``.
- ``drivers.py``: its drivers in ``MODULES``, and what their URLs lead to in ``_KINDS``.

Then each test of a draw or a migration that names no kind runs on it. Some write SQL for each kind, or have a list of their own:
``git grep '"postgresql"' tests`` finds them.

What a kind must provide; `base` says how. A method that is not overridden sends SQL like PostgreSQL's, or nothing
(None).

- Always: ``set_connect_defaults``, ``set_up_session``, ``comment_on``, ``describe_table``, ``list_tables``, and
  ``upsert_largest``, which `base.raised_on_conflict` writes where there is ``ON CONFLICT``.
- Which class: ``of``, where one SQLAlchemy name stands for several kinds; then ``kind``, too.
- Its errors: ``error_codes`` and ``error_code``, or ``error_texts``; ``error_kind``, where a code alone is not enough. One that is not found
  counts as a lost connection.
- Connections: ``address`` and ``default_port``, ``is_in_memory``, ``is_embedded``, ``dbapi_module``, ``encryption_advice``.
- Drawing: ``advance_counter``, where it has no ``UPDATE ... RETURNING``; then ``returns_counter``, too. ``read_row``, where it has no
  ``FOR UPDATE``.
- Changing tables: ``lock_table``. It is None for a kind whose transactions, begun by ``begin``, keep all others out. A kind
  that cannot change tables in a transaction has ``begin = None``, and alters them: ``exclusive``, ``unlock_tables``, ``table_parts``,
  ``alter_to_tombstone``, ``replace_by_tombstone``, ``open_table``.
- Noticing a restart: ``identity``. Without it, a server that was restored while a process ran is found by its low numbers only.
  ``show_definition`` and ``split_definition`` then save inspections of tables that are as before.
- Clusters: ``group_name``, ``cluster_variables``, ``catch_up``.
- Its SQL: ``now``, ``utc_of_milliseconds``, ``name_type``, ``ticket_type``, ``integers_have_64_bits``, ``table_options``, ``ping``, ``has_plpgsql``.
  Where BIGINT, CHECK or IF EXISTS is unknown: ``create_table``, ``create_tombstone``, ``drop_table``.
- For operators: ``facts``, ``read_only`` with ``read_only_variables``, ``durability`` with ``lossy_variables``, ``make_durable``, ``replica_takes_writes``, ``has_read_timeout``, ``set_global``;
  ``user_grants``; ``grants`` with ``table_privileges``, ``server_privileges``, ``grant_target`` and ``missing_grant``.
- For `insert_from_select` into an application's database: ``failure_ends_transaction``, ``insert_prefixes``, ``begin_insert``, ``inserted_rows``,
  ``count_as_insert``, ``check_undoes_inserts``, ``failing``, ``row_counter``, ``insert_limit``.
- Where a command creates databases: ``maintenance_database``, ``drop_database``, ``synchronous_driver``.
- Flickr's table, where it has REPLACE: ``layouts``, ``replace_ticket``, ``replace_up_to``, ``keeps_counter`` with ``counter_kept_since``.
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
    """The same as `class_of`, for an application's database; None for an unknown kind."""
    try:
        return class_of(name)
    except TicketArgumentError:
        return None


def find_dialect(sqlalchemy: Dialect) -> TicketDialect | None:
    """The same as `dialect_of`, for an application's database; None for an unknown kind."""
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
        f"{name} cannot be a ticket server: expected one of {', '.join(_OWN)}. A package can add another kind with "
        f"an entry point of the group {ENTRY_POINTS!r}"
    )
