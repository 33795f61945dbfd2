"""What a fault means to whoever reads the error: which kind it is, what was found, what to do."""

from __future__ import annotations

import re

from sqlalchemy import URL

from .errors import (
    TicketArgumentError,
    TicketError,
    TicketServerError,
    TicketsExhausted,
    TicketTableError,
    TicketTableMissing,
    TicketViolation,
)
from .faults import Fault, missing_grant

__all__ = ["concerns_table", "failure_of"]

#: OpenSSL, libpq where the name differs, and MariaDB's library in C.
_NOT_VERIFIED = re.compile(
    r"certificate[ _]verify|certificate for .* does not match|TLS/SSL error: (?!.*alert).*certificate",
    re.IGNORECASE,
)
_OF_THE_SERVER = {
    Fault.READ_ONLY: "was it demoted? Tickets need a server that takes writes.",
    Fault.DENIED: "are the user and the password of its URL right?",
    Fault.FULL: "raise its max_connections, or have fewer processes.",
}
_OF_THE_TABLE: dict[Fault, tuple[type[TicketError], str]] = {
    Fault.BUSY: (TicketServerError, "does a backup, or an open transaction, hold it?"),
    Fault.MISSING: (
        TicketTableMissing,
        "run the migration that creates it, or pool.create_table().",
    ),
    Fault.EXHAUSTED: (TicketsExhausted, "move the sequence to a table of 64 bits."),
    Fault.CONFLICT: (TicketViolation, "it is exhausted, or its counter was set back."),
    Fault.SHAPE: (TicketTableError, "it is no ticket table."),
    Fault.DENIED: (
        TicketTableError,
        "grant the ticket user SELECT, INSERT, DELETE, UPDATE and LOCK TABLES on it.",
    ),
}


def concerns_table(fault: Fault) -> bool:
    """Whether it is a table's fault, and not its server's, when it comes up while a table is used."""
    return fault in _OF_THE_TABLE


def failure_of(
    fault: Fault, error: Exception | None, server: str, url: URL, table: str | None
) -> TicketError:
    """The error that a caller sees; the password is taken out of what the driver said.

    Args:
        fault: what has happened.
        error: what the driver raised, if it did.
        server: the server's name.
        url: of the server.
        table: the name of the sequence; None when no table was used yet.
    """
    said = f" ({_without_password(error, url)})" if error else ""
    if fault is Fault.NAME:
        return TicketArgumentError(f"{server} cannot have a ticket table {table!r}{said}")
    if table is None or not concerns_table(fault):
        advice = _OF_THE_SERVER.get(fault, "is it running, and reachable from here?")
        if fault is Fault.LOST and _NOT_VERIFIED.search(said):
            advice = "is its certificate one of the authority, and for the host, of its URL?"
        return TicketServerError(f"{server}: {fault.value}{said}: {advice}")
    kind, advice = _OF_THE_TABLE[fault]
    if fault is Fault.DENIED and error is not None:
        advice = missing_grant(error, url.database, url.username) or advice
    return kind(f"the ticket table {table!r} on {server}: {fault.value}{said}: {advice}")


def _without_password(error: Exception, url: URL) -> str:
    said = str(error)
    if error.__cause__ is not None and str(error.__cause__) not in said:  # aiomysql keeps it back
        said = f"{said}: {error.__cause__}"
    return said.replace(str(url.password), "***") if url.password else said
