"""The exceptions of the package, with one root.

A message says what was expected, what was found and what to do next. It names the sequence and the server, never with
a password. No driver error escapes from a draw: it is the ``__cause__``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy

from sqlalchemy.exc import DontWrapMixin

__all__ = [
    "ClockMovedBack",
    "NoTicketServer",
    "NodeIdsExhausted",
    "PoolNotAttached",
    "TicketArgumentError",
    "TicketError",
    "TicketIntegrityError",
    "TicketServerError",
    "TicketTableError",
    "TicketTableMissing",
    "TicketTableMoved",
    "TicketWarning",
    "TicketsExhausted",
]


class TicketError(Exception, DontWrapMixin):
    """Root of all errors of this package.

    SQLAlchemy raises it unchanged when a column default raises it (``DontWrapMixin``).
    It is never a ``TimeoutError``, which SQLAlchemy would take for a cancellation and answer by
    invalidating the connection of the application's own database.

    Attributes:
        kind: one word for the error, in metrics and traces.
    """

    kind = "other"


class TicketArgumentError(TicketError, ValueError):
    """An invalid argument of a pool, a sequence or a call."""


class PoolNotAttached(TicketError):
    """No pool of the wanted name is attached to the MetaData of the column."""


class TicketTableError(TicketError):
    """A ticket table that may not be drawn from: it is empty, has other columns, or is another pool's."""

    kind = "table"


class TicketTableMissing(TicketTableError):
    """A ticket server has no table for the sequence."""

    kind = "table_missing"


class TicketTableMoved(TicketTableError):
    """The sequence has moved, or is being moved: a tombstone is in its table's place.

    Its ``kind`` is ``moved``, or ``closed`` while a move or a conversion has not ended.

    Attributes:
        pool: the name of the pool that has the sequence.
        sequence: its name there.
    """

    kind = "moved"

    def __init__(self, message: str, pool: str, sequence: str, kind: str = "moved") -> None:
        super().__init__(message)
        self.pool, self.sequence, self.kind = pool, sequence, kind

    def __reduce__(self) -> tuple[type[TicketTableMoved], tuple[str, str, str, str]]:
        return type(self), (str(self), self.pool, self.sequence, self.kind)


class TicketIntegrityError(TicketError):
    """A ticket server broke a promise that keeps ids unique; no ticket of that draw is used.

    Its ``kind`` is ``residue`` for another server's number, ``regression`` for a number that is not above earlier
    ones, ``duplicate_number`` for one that the table already holds.
    """


class TicketsExhausted(TicketError):
    """The ticket table or the column can hold no further number, or servers with a larger stride issue the next ones."""

    kind = "exhausted"


class TicketServerError(TicketError):
    """One ticket server did not answer, or refused."""


class StaleConnection(TicketServerError):
    """An idle connection got no answer: it may have been cut off while the server is healthy."""

    kind = "timeout"


class Crowded(TicketServerError):
    """A draw waited too long for a ticket table that served others: its queue is long, but moves."""

    kind = "lock_timeout"


class Deadlocked(TicketServerError):
    """A server ended a draw to resolve a deadlock, or a conflict in a cluster: it is healthy, and its table is busy."""

    kind = "deadlock"


class DrawAbandoned(TicketServerError):
    """A draw stopped waiting for a server: another one has answered it, or another draw waits for this server."""

    kind = "abandoned"


class OutOfStep(ConnectionError):
    """A connection returned the answer to a different statement. It is treated as a driver's error."""


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


class NodeIdsExhausted(TicketError):
    """Every node number of the pool has an owner."""


class ClockMovedBack(TicketError):
    """This machine's clock is further behind this process's ids than a generator waits."""


class TicketWarning(UserWarning):
    """A configuration that works, but protects less than it seems to."""


def reasons_of(failures: Iterable[TicketError]) -> str:
    """The messages of several servers' errors as one sentence."""
    return "; ".join(str(failure).removesuffix(".") for failure in failures)


def copy_of(error: TicketError) -> TicketError:
    """The same error for another caller, as each that is raised keeps the frames of its callers."""
    copied = copy(error)
    copied.__cause__ = error.__cause__
    return copied
