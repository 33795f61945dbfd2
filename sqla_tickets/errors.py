"""What can go wrong, as exceptions with one root.

Every message says which sequence and which server (never with a password), what was expected, what
was found, and what to do next. No driver error escapes from a draw: it is the ``__cause__``.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.exc import DontWrapMixin

__all__ = [
    "ClockMovedBack",
    "NoNodeLeft",
    "NoTicketPool",
    "NoTicketServer",
    "TicketArgumentError",
    "TicketError",
    "TicketServerError",
    "TicketTableError",
    "TicketTableMissing",
    "TicketTableMoved",
    "TicketViolation",
    "TicketWarning",
    "TicketsExhausted",
]


class TicketError(Exception, DontWrapMixin):
    """Root of all errors of this package.

    SQLAlchemy hands it to the caller unchanged when a column default raises it (``DontWrapMixin``).
    It is never a ``TimeoutError``, which SQLAlchemy would take for a cancellation and answer by
    invalidating the connection of the application's own database.

    Attributes:
        kind: one word for what has happened, as metrics and traces call it.
    """

    kind = "other"


class TicketArgumentError(TicketError, ValueError):
    """A pool, a sequence or a call that cannot be meant as it was written."""


class NoTicketPool(TicketError):
    """No pool of the wanted name is attached to the MetaData of the column."""


class TicketTableError(TicketError):
    """A ticket table that may not be drawn from: empty, of another shape, of another pool."""

    kind = "table"


class TicketTableMissing(TicketTableError):
    """A ticket server has no table for the sequence."""

    kind = "missing"


class TicketTableMoved(TicketTableError):
    """A tombstone stands where the sequence was: it is drawn from elsewhere, or will be in a moment.

    Attributes:
        pool: the name of the pool that has the sequence.
        sequence: its name there.
    """

    kind = "moved"

    def __init__(self, message: str, pool: str, sequence: str) -> None:
        super().__init__(message)
        self.pool, self.sequence = pool, sequence

    def __reduce__(self) -> tuple[type[TicketTableMoved], tuple[str, str, str]]:
        return type(self), (str(self), self.pool, self.sequence)


class TicketViolation(TicketError):
    """A ticket server broke a promise that uniqueness rests on; no ticket of that draw is used.

    Its ``kind`` is ``residue`` for a ticket of another server's, ``regression`` for one that is not above
    those before, ``conflict`` for one that the table holds already.
    """


class TicketsExhausted(TicketError):
    """No number is left that the ticket table, or the column, can hold."""

    kind = "exhausted"


class TicketServerError(TicketError):
    """One ticket server did not answer, or refused."""


class StaleConnection(TicketServerError):
    """A connection that was idle got no answer: it, and not the server, may have been cut off."""

    kind = "timeout"


class GivenUp(TicketServerError):
    """A server whose answer was not waited for any longer, as another one was there."""

    kind = "given_up"


class NoTicketServer(TicketError):
    """Every ticket server of the pool failed.

    Attributes:
        failures: the last error of each server, by the server's name.
    """

    def __init__(self, message: str, failures: Mapping[str, TicketError]) -> None:
        super().__init__(message)
        self.failures = dict(failures)

    def __reduce__(self) -> tuple[type[NoTicketServer], tuple[str, dict[str, TicketError]]]:
        return type(self), (str(self), self.failures)


class NoNodeLeft(TicketError):
    """Every node number of the pool has an owner."""


class ClockMovedBack(TicketError):
    """This machine's clock is behind the ids that this process has made, by more than is waited for."""


class TicketWarning(UserWarning):
    """A configuration that works, and gives less than it seems to."""
