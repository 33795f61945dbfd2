"""Whether a server, or one table of it, is to be asked at the moment."""

from __future__ import annotations

import math
import random
import time
from typing import Final, Literal

from .errors import TicketError

__all__ = ["Breaker", "BreakerState"]

BreakerState = Literal["closed", "open", "quarantined"]

FIRST_WAIT: Final = 0.25
LONGEST_WAIT: Final = 5.0
#: Seconds for which only one of the draws without another hope asks a server that lets nobody in.
ONE_AT_A_TIME: Final = 0.05


class Breaker:
    """Closed while all is well; open after a failure, until an attempt succeeds.

    When to make the next attempt is told by waits that grow, and are jittered, so that a server is
    not met by all its clients at once when it comes back.

    Attributes:
        reason: the error that opened it last; None while it is closed.
        slow: whether that error was a silence, so that another attempt may cost a time-out.
        shut: whether nobody was let in, so that the error is everybody's, and no single table's.
    """

    def __init__(self) -> None:
        self.reason: TicketError | None = None
        self.slow = self.shut = False
        self._tripped_at = self._next_attempt = 0.0
        self._failures = 0
        self._quarantine: TicketError | None = None
        self._asked_at = 0.0
        self._found: tuple[float, TicketError] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether what it guards is to be asked."""
        return self.reason is None

    @property
    def state(self) -> BreakerState:
        """Closed, open, or quarantined, which no time and no success ends."""
        if self._quarantine is not None:
            return "quarantined"
        return "closed" if self.reason is None else "open"

    @property
    def is_due(self) -> bool:
        """Whether it is open and the wait for the next attempt is over."""
        return self.reason is not None and time.monotonic() >= self._next_attempt

    @property
    def is_due_in_need(self) -> bool:
        """Whether it is open and to be tried where nothing else answers: the shortest wait is over."""
        return self.state == "open" and time.monotonic() - self._tripped_at > FIRST_WAIT

    def trip(self, reason: TicketError, *, slow: bool = False, shut: bool = False) -> None:
        """Open after a failure; the next attempt is twice as far away as the last time."""
        if self.state == "quarantined":
            return
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._tripped_at = now = time.monotonic()
        self._next_attempt = now + wait * _jitter()
        self.slow, self.shut, self.reason = slow, shut, reason
        self._stay_quarantined()

    def postpone(self) -> None:
        """Put the next attempt off by the shortest wait, since one has just begun."""
        if self.state == "open":
            self._next_attempt = time.monotonic() + FIRST_WAIT * _jitter()
            self._stay_quarantined()

    def admits_one(self) -> bool:
        """Whether a draw without another hope is to ask, and not to wait for what the last one finds."""
        if not self.shut:  # then to ask costs no connection
            return True
        now = time.monotonic()
        if now - self._asked_at < ONE_AT_A_TIME:
            return False
        self._asked_at = now  # two at the same moment do no harm
        return True

    def has_found(self, asked_at: float, failure: TicketError) -> None:
        """Tell the draws that wait what became of the one that asked."""
        if self.shut and failure is self.reason:
            self._found = asked_at, failure

    def found_since(self, began: float) -> TicketError | None:
        """What somebody who asked after that was told, while nobody is let in."""
        found = self._found if self.shut else None
        return found[1] if found is not None and found[0] >= began else None

    def admit(self) -> None:
        """Close on trial: a server that fails again at once waits for longer than before."""
        if self.state == "open":
            self._close()
            self._stay_quarantined()

    def reset(self) -> None:
        """Close after a success; a quarantine stays."""
        if self._failures and self.state != "quarantined":
            self._failures = 0
            self._close()
            self._stay_quarantined()

    def quarantine(self, reason: TicketError) -> None:
        """Open for good: what happened calls for a person."""
        self._quarantine = reason
        self._stay_quarantined()

    def _stay_quarantined(self) -> None:
        """A draw that ends at the same moment, well or not, changes nothing."""
        if self._quarantine is not None:
            self.reason, self._next_attempt = self._quarantine, math.inf

    def release(self) -> None:
        """Close, whatever it was open for: a person has seen to it."""
        self._quarantine = None
        self._failures, self._next_attempt = 0, 0.0
        self._close()

    def _close(self) -> None:
        self.slow = self.shut = False
        self.reason = self._found = None  # an error keeps the variables of all who were under way


def _jitter() -> float:
    return random.uniform(0.5, 1.0)  # noqa: S311  # spreads attempts, guards no secret
