"""Translates a driver's error to one of this package: its class, its cause, and what to do."""

from __future__ import annotations

import re

from sqlalchemy import URL

from ..dialects import ErrorKind, TicketDialect
from ..errors import (
    TicketArgumentError,
    TicketError,
    TicketIntegrityError,
    TicketServerError,
    TicketsExhausted,
    TicketTableError,
    TicketTableMissing,
)

#: OpenSSL, libpq where the name differs, and MariaDB's library in C.
_NOT_VERIFIED = re.compile(
    r"certificate[ _]verify|certificate for .* does not match|TLS/SSL error: (?!.*alert).*certificate",
    re.IGNORECASE,
)
#: How many characters make a password that is no part of a common word.
_LONG_PASSWORD = 8
#: The advice where nothing better is known.
IS_IT_RUNNING = "check that it is running, and reachable from here."
_OF_THE_SERVER = {
    ErrorKind.DATABASE_MISSING: "load its backup, or create the database.",
    ErrorKind.READ_ONLY: "check whether it was demoted: a ticket server must take writes.",
    ErrorKind.ACCESS_DENIED: (
        "check the user, the password and the database in its URL. On a new server, create its users, and grant them"
        " what `sqla-tickets grants` prints."
    ),
    ErrorKind.TOO_MANY_CONNECTIONS: "raise its max_connections, or run fewer processes.",
    ErrorKind.DISK_FULL: "free some.",
    ErrorKind.KILLED: "find what kills statements there, such as a statement time limit.",
}
_OF_THE_TABLE: dict[ErrorKind, tuple[type[TicketError], str]] = {
    ErrorKind.LOCK_TIMEOUT: (
        TicketServerError,
        "find the backup or the open transaction that holds it.",
    ),
    ErrorKind.OVERLOADED: (
        TicketServerError,
        "draw blocks, or draw in fewer threads or tasks at once.",
    ),
    ErrorKind.KILLED: (
        TicketServerError,
        "find what kills statements there, such as a statement time limit.",
    ),
    ErrorKind.DISK_FULL: (
        TicketServerError,
        "free some; draws then resume within seconds.",
    ),
    ErrorKind.TABLE_MISSING: (
        TicketTableMissing,
        "run the migration that creates it, or pool.create_table().",
    ),
    ErrorKind.EXHAUSTED: (TicketsExhausted, "move the sequence to a table of 64 bits."),
    ErrorKind.DUPLICATE_NUMBER: (
        TicketIntegrityError,
        (
            "the table is used up, or its counter was set back. This process has quarantined the table: it no longer"
            " draws from it."
        ),
    ),
    ErrorKind.SCHEMA_MISMATCH: (TicketTableError, "it is not a ticket table."),
    ErrorKind.IN_USE: (TicketTableError, "drop that object first."),
    ErrorKind.ACCESS_DENIED: (
        TicketTableError,
        "grant the ticket user {} on it.",
    ),
}


def concerns_table(kind: ErrorKind) -> bool:
    """Whether an error of this kind concerns one table rather than the whole server."""
    return kind in _OF_THE_TABLE


def failure_of(
    kind: ErrorKind,
    error: Exception | None,
    server: str,
    url: URL,
    table: str | None,
    dialect: TicketDialect,
) -> TicketError:
    """The error that a caller sees; the driver's message is quoted without the password.

    Args:
        kind: the kind of error.
        error: the driver's error, if there is one.
        server: the server's name.
        url: the server's URL.
        table: the name of the sequence; empty for the work on all tables, None when no table was used yet.
        dialect: the server's dialect.
    """
    text = _text_of(error) if error else ""  # a time-out of asyncio's says nothing
    said = f" ({without_password(text, url)})" if text else ""
    if kind is ErrorKind.INVALID_NAME:
        return TicketArgumentError(f"{server} cannot have a ticket table {table!r}{said}")
    if table is None or not concerns_table(kind):
        advice = _OF_THE_SERVER.get(kind, IS_IT_RUNNING)
        if kind is ErrorKind.DISCONNECTED and _NOT_VERIFIED.search(said):
            advice = "its certificate does not name the host in its URL, or is not from the authority named there."
        what = "the server refuses this user" if kind is ErrorKind.ACCESS_DENIED else kind.value
        return TicketServerError(f"{server}: {what}{said}: {advice}")
    error_class, advice = _OF_THE_TABLE[kind]
    if kind is ErrorKind.ACCESS_DENIED:
        missing = None
        if error and url.database and url.username:
            missing = dialect.missing_grant(error, url.database, url.username)
        advice = missing or advice.format(dialect.drawing_privileges())
    tables = f"the ticket table {table!r}" if table else "the ticket tables"
    return error_class(f"{tables} on {server}: {kind.value}{said}: {advice}")


def _text_of(error: Exception) -> str:
    said = str(error)
    if error.__cause__ is not None and str(error.__cause__) not in said:  # aiomysql hides it
        said = f"{said}: {error.__cause__}"
    return said


def without_password(text: str, url: URL) -> str:
    """A driver's message with ``***`` for the password of a URL.

    A short password may be a part of other words, so it is replaced as a whole word only. A password may also be a
    part of the user's name, the host or the database: these stay.
    """
    if not url.password:
        return text
    password = str(url.password)
    text = text.replace(url.render_as_string(hide_password=False), url.render_as_string())
    hidden = re.escape(password)
    if len(password) < _LONG_PASSWORD:
        hidden = rf"(?<!\w){hidden}(?!\w)"
    parts = [part for part in (url.username, url.host, url.database) if part and part != password]
    names = "|".join(re.escape(part) for part in parts if password in part) or "(?!)"
    return re.sub(rf"(?P<name>{names})|{hidden}", lambda found: found["name"] or "***", text)
