"""Which releases of MySQL keep their counter over a restart, and what its drivers' errors mean."""

from __future__ import annotations

import pytest
from sqlalchemy.dialects import mysql

from sqla_tickets.dialects import ErrorKind, dialect_of


@pytest.mark.parametrize(("version", "kept"), [((5, 7, 44), False), ((8, 0, 11), True)])
def test_which_mysql_keeps_its_counter(version: tuple[int, ...], kept: bool) -> None:
    dialect = mysql.dialect()
    dialect.server_version_info = version
    assert dialect_of(dialect).keeps_counter() is kept


@pytest.mark.parametrize(
    ("name", "message", "kind"),
    [
        ("ReadTimeoutError", "The read operation timed out", ErrorKind.TIMEOUT),
        ("DatabaseError", "maximum statement execution time exceeded", ErrorKind.KILLED),
    ],
)
def test_who_ended_a_statement_that_took_too_long(name: str, message: str, kind: ErrorKind) -> None:
    """mysql-connector gives its own time-out the number that the server gives a statement it has killed."""
    errors = pytest.importorskip("mysql.connector.errors")
    error = getattr(errors, name)(errno=3024, msg=message)
    assert dialect_of(mysql.dialect()).error_kind(error) is kind


@pytest.mark.parametrize(
    "what", ["GET_LOCK", "LOCK TABLE/FLUSH TABLE <table> WITH READ LOCK/FOR EXPORT"]
)
def test_percona_xtradb_cluster_denies_locks(what: str) -> None:
    """By default. It says so with a code that means nothing (1105)."""
    text = f"Percona-XtraDB-Cluster prohibits use of {what} with pxc_strict_mode = ENFORCING"
    denied = dialect_of(mysql.dialect()).error_kind(OSError(1105, text))
    assert denied is ErrorKind.ACCESS_DENIED
