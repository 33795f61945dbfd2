"""Which database server a connection has led to, and since when that one runs.

A URL may lead to another server tomorrow: a replica that was promoted, a copy that was restored. And a
server that was started again may have lost what it did last.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Dialect
from sqlalchemy.engine.interfaces import DBAPICursor

__all__ = ["Identity", "identify"]

#: How many seconds two readings of one server's start may lie apart: its uptime has whole seconds.
SLACK: Final = 2.0

_UPTIME = "UNIX_TIMESTAMP() - VARIABLE_VALUE FROM {}.global_status WHERE VARIABLE_NAME = 'Uptime'"
# MariaDB has no server_uuid, and its server_uid is that of the machine.
_MARIADB = "SELECT CONCAT_WS(' ', @@hostname, @@port, @@server_id, @@datadir), " + _UPTIME.format(
    "information_schema"
)
_MYSQL = "SELECT @@server_uuid, " + _UPTIME.format("performance_schema")
_POSTGRESQL = (
    "SELECT CAST(system_identifier AS TEXT), CAST(EXTRACT(EPOCH FROM pg_postmaster_start_time())"
    " AS DOUBLE PRECISION) FROM pg_control_system()"
)


class Identity(NamedTuple):
    """One run of one database server.

    Attributes:
        name: what tells it from others.
        since: when it was started, in seconds by its own clock.
    """

    name: str
    since: float

    def is_same_run(self, other: Identity | None) -> bool:
        """Whether the other one was read from the same server, which was not started again since."""
        return (
            other is not None and self.name == other.name and abs(self.since - other.since) <= SLACK
        )


def identify(cursor: DBAPICursor, dialect: Dialect) -> Identity | None:
    """Ask a server who it is: one round trip; None of a file, and of one that does not tell."""
    if dialect.name in ("mysql", "mariadb"):
        question = _MARIADB if getattr(dialect, "is_mariadb", False) else _MYSQL
    elif dialect.name == "postgresql":
        question = _POSTGRESQL
    else:
        return None
    try:
        cursor.execute(question, ())
        ((name, since),) = cursor.fetchall()
        return Identity(str(name), float(since))
    except Exception:  # noqa: BLE001  # what stands in for a server need not have any of it
        return None
