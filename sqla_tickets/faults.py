"""What a driver's error means for a draw.

Codes are those of the servers' manuals: MySQL "Server Error Message Reference", MariaDB "MariaDB
Error Codes", PostgreSQL Appendix A; SQLite has names only from Python 3.11 on, hence its texts.
"""

from __future__ import annotations

import enum
import re

__all__ = ["Fault", "fault_of", "missing_grant"]


class Fault(enum.Enum):
    """What to do about an error: the server's, the table's, or nobody's."""

    AGAIN = "a deadlock"
    BUSY = "somebody else holds the ticket table"
    DENIED = "a missing privilege"
    EXHAUSTED = "no number is left"
    CONFLICT = "the server issued a number that its table holds already"
    FULL = "the server lets in no more connections"
    LOST = "the connection, or the server, is gone"
    MISSING = "there is no such table"
    NAME = "no table can have such a name"
    READ_ONLY = "the server takes no writes"
    SHAPE = "the table has other columns than it had"
    SYNTAX = "the statement was not understood"
    TIMEOUT = "no answer in time"


_MYSQL = {
    1213: Fault.AGAIN,
    1205: Fault.BUSY,  # lock wait timeout
    1060: Fault.AGAIN,  # the same change of the table, made by somebody else at the same time
    1061: Fault.AGAIN,
    1068: Fault.AGAIN,
    1091: Fault.AGAIN,
    1040: Fault.FULL,
    1203: Fault.FULL,  # max_user_connections
    1044: Fault.DENIED,
    1045: Fault.DENIED,
    1142: Fault.DENIED,
    1143: Fault.DENIED,
    167: Fault.EXHAUSTED,  # MariaDB: out of range for an AUTO_INCREMENT column
    1264: Fault.EXHAUSTED,  # out of range value
    1467: Fault.EXHAUSTED,  # failed to read auto-increment value
    1690: Fault.EXHAUSTED,  # BIGINT value is out of range
    3819: Fault.EXHAUSTED,  # MySQL: CHECK of the counter row
    4025: Fault.EXHAUSTED,  # MariaDB: CHECK of the counter row
    4084: Fault.EXHAUSTED,  # MariaDB: sequence has run out
    1062: Fault.CONFLICT,
    1059: Fault.NAME,  # identifier too long
    1103: Fault.NAME,  # incorrect table name
    1146: Fault.MISSING,
    1054: Fault.SHAPE,  # unknown column
    1364: Fault.SHAPE,  # no default value: a REPLACE on a counter row
    1036: Fault.READ_ONLY,  # the table is, by innodb_read_only
    1290: Fault.READ_ONLY,
    1792: Fault.READ_ONLY,
    1836: Fault.READ_ONLY,
    1874: Fault.READ_ONLY,  # InnoDB is in read-only mode
    1881: Fault.READ_ONLY,  # innodb_force_recovery
    1064: Fault.SYNTAX,
}
_LAST_NUMBERS = (2**32 - 1, 2**63 - 1, 2**64 - 1)
_POSTGRESQL = {
    "40001": Fault.AGAIN,
    "40P01": Fault.AGAIN,
    "55P03": Fault.BUSY,
    "53300": Fault.FULL,
    "42501": Fault.DENIED,
    "22003": Fault.EXHAUSTED,  # bigint out of range
    "23514": Fault.EXHAUSTED,  # CHECK of the counter row
    "42P01": Fault.MISSING,
    "42703": Fault.SHAPE,
    "42602": Fault.NAME,
    "42622": Fault.NAME,
    "25006": Fault.READ_ONLY,
    "42601": Fault.SYNTAX,
}
_SQLITE = {
    "database is locked": Fault.BUSY,
    "check constraint failed": Fault.EXHAUSTED,
    "no such table": Fault.MISSING,
    "no such column": Fault.SHAPE,
    "readonly database": Fault.READ_ONLY,
}
# No code tells a silence from a loss. 110 is ETIMEDOUT; `wait_timeout` has ended idle connections.
_SILENCE = re.compile(r"timed out|\btimeout\b|system error: 110\b")
# HA_ERR_TABLE_READONLY, in what InnoDB refuses under innodb_read_only: a lock, a new table.
_READ_ONLY = re.compile(r"errno: 165\b")
# Nor does libpq tell the code of an error that comes before a connection is open.
_FULL = re.compile(r"too many (clients|connections)|remaining connection slots")


def fault_of(error: BaseException) -> Fault:
    """What ``error``, raised by a driver, means; ``LOST`` when nothing better is known.

    The DBAPI does not say where a server's code stands: PyMySQL, mysqlclient, asyncmy and aiomysql
    put it first in ``args``, mysql-connector and mariadb into ``errno``, psycopg and asyncpg a
    SQLSTATE into ``sqlstate``, psycopg2 into ``pgcode``.
    """
    if isinstance(error, TimeoutError):
        return Fault.TIMEOUT
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state in _POSTGRESQL:
        return _POSTGRESQL[state]
    code = getattr(error, "errno", None) or (error.args[0] if error.args else None)
    if code == 1062 and any(f"'{end}'" in str(error) for end in _LAST_NUMBERS):
        return Fault.EXHAUSTED  # MySQL stays at the last number and finds it taken
    text = str(error).lower()
    if isinstance(code, int):
        fault = _MYSQL.get(code, Fault.LOST)
    else:
        fault = next((fault for part, fault in _SQLITE.items() if part in text), Fault.LOST)
    if fault is not Fault.LOST:
        return fault
    if _FULL.search(text):
        return Fault.FULL
    if _READ_ONLY.search(text):
        return Fault.READ_ONLY
    return Fault.TIMEOUT if _SILENCE.search(text) else fault


def missing_grant(error: BaseException, database: str | None, user: str | None) -> str | None:
    """The GRANT without which a server has denied a statement, as far as it said."""
    denied = re.search(r"([A-Z][A-Z, ]*) command denied", str(error))
    if denied:
        return f"GRANT {denied[1]} ON {database}.* TO {user!r}"
    if error.args and error.args[0] == 1044:  # this, of all privileges, MySQL does not name
        return f"GRANT LOCK TABLES ON {database}.* TO {user!r}"
    schema = re.search(r"permission denied for schema (\S+)", str(error))
    return f"GRANT CREATE ON SCHEMA {schema[1]} TO {user}" if schema else None
