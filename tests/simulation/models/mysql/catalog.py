"""What MySQL and MariaDB say of themselves and of their tables: information_schema and SHOW."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.simulation.models.expressions import Parameters, Value
from tests.simulation.models.mysql.rows import counter_of
from tests.simulation.models.mysql.session import MySQLSession
from tests.simulation.models.protocol import Result
from tests.simulation.models.storage import Table
from tests.simulation.runtime import ServerError

__all__ = [
    "comments",
    "counters",
    "describe",
    "first_of",
    "identity",
    "parts",
    "processes",
    "show_grants",
    "show_status",
    "show_variables",
]


def _looked_at(session: MySQLSession, name: str) -> Table | None:
    """A table whose definition nobody changes at this moment."""
    key = session.key_of(name)
    if session.server.is_mariadb:
        # MySQL has a dictionary, MariaDB opens the table
        session.release_table(session.metadata_lock(key, "SH"), "SH")
    return session.store.tables.get(key)


def first_of(p: Parameters) -> Value:
    """The first of the parameters."""
    return next(iter(p.values() if isinstance(p, Mapping) else p))


def describe(session: MySQLSession, p: Parameters) -> Result:
    """A row per column: name, whether unique, whether it counts, the table's comment, the type."""
    table = _looked_at(session, str(first_of(p)))
    columns = ("COLUMN_NAME", "unique", "counts", "TABLE_COMMENT", "type")
    if table is None:
        return Result((), columns)
    unique = {key.columns[0] for key in table.keys if key.name == "PRIMARY"}
    unique |= {key.columns[0] for key in table.keys if len(key.columns) == 1}
    rows = tuple(
        (column.name, int(n in unique), int(column.counts), table.comment, column.type_)
        for n, column in enumerate(table.columns)
    )
    return Result(rows, columns, len(rows))


def comments(session: MySQLSession) -> Result:
    """The tables whose comment names the package."""
    rows = tuple(
        (table.key[1], table.comment)
        for key, table in sorted(session.store.tables.items())
        if key[0] == session.database and "sqla_tickets" in table.comment
    )
    return Result(rows, ("TABLE_NAME", "TABLE_COMMENT"), len(rows))


def counters(session: MySQLSession) -> Result:
    """The tables with their engines and their counters."""
    rows = tuple(
        (table.key[1], table.engine, None if table.counting is None else counter_of(table))
        for key, table in sorted(session.store.tables.items())
        if key[0] == session.database
    )
    return Result(rows, ("TABLE_NAME", "ENGINE", "AUTO_INCREMENT"), len(rows))


def show_status(session: MySQLSession) -> Result:
    """SHOW STATUS: of connections alone, which are not encrypted."""
    server = session.server
    rows: list[tuple[Value, ...]] = [
        ("Max_used_connections", str(len(server.sessions))),
        ("Ssl_cipher", ""),
        ("Threads_connected", str(len(server.sessions))),
    ]
    if not server.is_mariadb:
        rows.insert(0, ("Innodb_redo_log_enabled", "ON"))
    return Result(tuple(rows), ("Variable_name", "Value"), len(rows))


def show_grants(session: MySQLSession) -> Result:
    """SHOW GRANTS: everything on the database."""
    user = session.login.user
    rows: list[tuple[Value, ...]] = [
        (f"GRANT USAGE ON *.* TO `{user}`@`%`",),
        (f"GRANT ALL PRIVILEGES ON `{session.database}`.* TO `{user}`@`%`",),
    ]
    return Result(tuple(rows), ("Grants",), len(rows))


def parts(session: MySQLSession, name: str) -> Result:
    """What a tombstone takes from a table: its keys, its CHECKs; and the type of its number."""
    table = _looked_at(session, name)
    rows: list[tuple[Value, ...]] = []
    if table is not None:
        rows += [("key", key.name) for key in table.keys]
        rows += [("check", check.name) for check in table.checks]
        rows += [("type", c.type_) for c in table.columns if c.name.lower() == "id"]
    return Result(tuple(rows), ("key", "INDEX_NAME"), len(rows))


def processes(session: MySQLSession, p: Parameters) -> Result:
    """The numbers of the sessions that use a database."""
    database = first_of(p)
    rows = tuple(
        (other.id,)
        for other in session.server.sessions.values()
        if isinstance(other, MySQLSession) and other.database == database
    )
    return Result(rows, ("id",), len(rows))


def identity(session: MySQLSession, text: str) -> Result:
    """Which server it is, and when it was started, in whole seconds."""
    server = session.server
    wants_uuid = "@@server_uuid" in text
    if wants_uuid and server.is_mariadb:
        raise ServerError(1193, "Unknown system variable 'server_uuid'")
    if not wants_uuid and not server.is_mariadb:
        raise ServerError(1109, "Unknown table 'global_status' in information_schema")
    now = session.runtime.now()
    since = float(int(now) - int(now - server.started_at))
    return Result(((server.identity, since, None, ""),), ("name", "since", "cluster", "view"), 1)


def show_variables(session: MySQLSession, names: Sequence[str] | None) -> Result:
    """SHOW GLOBAL VARIABLES, all or some: switches as ON and OFF."""
    server = session.server
    rows = tuple(
        (name, _shown(name, server.variables[name]))
        for name in sorted(server.variables if names is None else names)
        if name in server.variables and server.has_variable(name)
    )
    return Result(rows, ("Variable_name", "Value"), len(rows))


_SWITCHES = ("autocommit", "innodb_read_only", "log_bin", "read_only", "super_read_only")


def _shown(name: str, value: Value) -> str:
    if name in _SWITCHES:
        return "ON" if value else "OFF"
    return str(value)
