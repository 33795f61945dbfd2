"""The least privileges of the users of a ticket server, as SQL: to draw, to migrate, to look.

What is printed here is what the tests' users have, and what ``sqla-tickets doctor`` holds a user against::

    for statement in grants("mysql", "draw", user="tickets", database="tickets"):
        print(statement + ";")
"""

from __future__ import annotations

from typing import Final, Literal

from .errors import TicketArgumentError

__all__ = ["KINDS", "ROLES", "Kind", "Role", "everywhere", "grants", "on_tables"]

#: What a user is for: an application, the migrations, or somebody who only looks.
Role = Literal["draw", "migrate", "monitor"]
#: What kind of server: MySQL and MariaDB differ in what replication may be asked by whom.
Kind = Literal["mysql", "mariadb", "postgresql"]

ROLES: Final[tuple[Role, ...]] = ("draw", "migrate", "monitor")
KINDS: Final[tuple[Kind, ...]] = ("mysql", "mariadb", "postgresql")

# REPLACE is an INSERT and a DELETE; a counter, a mark and a lease are an UPDATE; a block locks.
_DRAW: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "LOCK TABLES")
_ON_TABLES: Final[dict[Role, tuple[str, ...]]] = {
    "draw": _DRAW,
    "migrate": (*_DRAW, "CREATE", "ALTER", "DROP"),
    "monitor": ("SELECT",),
}
# Whether a server is a replica, and whose replicas are connected.
_EVERYWHERE: Final[dict[str, tuple[str, ...]]] = {
    "mysql": ("PROCESS", "REPLICATION CLIENT"),
    "mariadb": ("PROCESS", "SLAVE MONITOR"),
    "postgresql": ("pg_read_all_stats",),
}


def on_tables(kind: str, role: Role) -> tuple[str, ...]:
    """The privileges that ``role`` needs on the tables of a ticket database."""
    if kind != "postgresql":
        return _ON_TABLES[role]
    # It has no REPLACE, and its counters are locked by their UPDATE; who creates a table owns it.
    return ("SELECT",) if role == "monitor" else ("SELECT", "INSERT", "UPDATE")


def everywhere(kind: str, role: Role) -> tuple[str, ...]:
    """The privileges on the whole server, on PostgreSQL the roles, that ``role`` needs beside those."""
    return _EVERYWHERE.get(kind, ()) if role == "monitor" else ()


def grants(
    kind: Kind,
    role: Role,
    *,
    user: str,
    database: str,
    host: str = "%",
    owner: str = "migrations",
    schema: str = "public",
) -> list[str]:
    """The statements that give a user who exists what ``role`` needs, and no more.

    An administrator runs them on every ticket server; on PostgreSQL while connected to the database.

    Args:
        kind: of the server.
        role: what the user is for.
        user: its name.
        database: of the tickets, on the server.
        host: from where the user comes, on MySQL and MariaDB.
        owner: who creates the ticket tables, on PostgreSQL: the user of the migrations.
        schema: of the ticket tables, on PostgreSQL.

    Raises:
        TicketArgumentError: there is no such kind or role, or a name that cannot be quoted.
    """
    if kind not in KINDS or role not in ROLES:
        raise TicketArgumentError(
            f"there are no grants to {role!r} on {kind!r}: expected one of {', '.join(ROLES)}"
            f" on one of {', '.join(KINDS)}"
        )
    if kind == "postgresql":
        return _of_postgresql(
            role, _quoted(user), _quoted(database), _quoted(owner), _quoted(schema)
        )
    account = f"{_quoted(user, chr(39))}@{_quoted(host, chr(39))}"
    places = {"*.*": everywhere(kind, role), f"{_quoted(database, '`')}.*": on_tables(kind, role)}
    return [f"GRANT {', '.join(what)} ON {on} TO {account}" for on, what in places.items() if what]


def _of_postgresql(role: Role, user: str, database: str, owner: str, schema: str) -> list[str]:
    begin = f"GRANT CONNECT ON DATABASE {database} TO {user}"
    if role == "migrate":
        return [begin, f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}"]
    what = ", ".join(on_tables("postgresql", role))
    return [
        begin,
        f"GRANT USAGE ON SCHEMA {schema} TO {user}",
        f"GRANT {what} ON ALL TABLES IN SCHEMA {schema} TO {user}",
        # those that a migration creates from now on, or puts in the place of another
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT {what} ON TABLES TO {user}",
        *(f"GRANT {name} TO {user}" for name in everywhere("postgresql", role)),
    ]


def _quoted(name: str, mark: str = '"') -> str:
    if not name or "\\" in name or not name.isprintable():
        raise TicketArgumentError(f"{name!r} is no name that a GRANT can have")
    return f"{mark}{name.replace(mark, 2 * mark)}{mark}"
