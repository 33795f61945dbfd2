"""The least privileges of the users of a ticket server, as SQL: to draw, to migrate, to monitor.

The tests' users have these privileges, and ``sqla-tickets doctor`` compares each user's with them::

    for statement in grants("mysql", "draw", user="tickets", database="tickets"):
        print(statement + ";")
"""

from __future__ import annotations

from typing import Final

from ..dialects import Role, class_of
from ..errors import TicketArgumentError

ROLES: Final[tuple[Role, ...]] = ("draw", "migrate", "monitor")


def grants(
    kind: str,
    role: Role,
    *,
    user: str,
    database: str,
    host: str = "%",
    owner: str = "migrations",
    schema: str = "public",
) -> list[str]:
    """The statements that give an existing user what ``role`` needs, and no more.

    An administrator runs them on every ticket server; on PostgreSQL while connected to the database.

    Args:
        kind: the kind of server: ``"mysql"``, ``"mariadb"``, ``"postgresql"``, or one that a package has added.
        role: what the user is for.
        user: its name.
        database: the server's database of tickets.
        host: the host that the user connects from, on MySQL and MariaDB.
        owner: the user that creates the ticket tables, on PostgreSQL: that of the migrations.
        schema: the schema of the ticket tables, on PostgreSQL.

    Raises:
        TicketArgumentError: there is no such kind or role, or a name cannot be quoted.
    """
    if role not in ROLES:
        raise TicketArgumentError(
            f"no grants for the role {role!r}: expected one of {', '.join(ROLES)}"
        )
    return class_of(kind).grants(
        role, user=user, database=database, host=host, owner=owner, schema=schema
    )
