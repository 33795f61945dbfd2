"""The circuit breaker of a server, or of one of its tables: closed, open or half-open."""

from __future__ import annotations

import re
from typing import Final, Literal

from ..concurrency import random, time
from ..errors import TicketError
from .timing import TIMING

_NUMBERS: Final = re.compile(r"\d+")
CircuitState = Literal["closed", "half_open", "open"]


class CircuitBreaker:
    """Closed while all is well; open after a failure, until an attempt succeeds.

    The wait for the next attempt grows, with jitter. So clients do not all ask a server at once when it comes back.

    Attributes:
        reason: the error that opened it last; None while it is closed.
        timed_out: whether the server was unresponsive; another attempt may then cost a time-out.
        refused: whether the server refused the connection; the error then applies to all its tables.
        failures: the number of failures since the last success.
        opened_at: when it opened last, by ``time.monotonic()``; further failures do not count.
    """

    def __init__(self) -> None:
        self.reason: TicketError | None = None
        self.timed_out = self.refused = False
        self._tripped_at = self._next_attempt = 0.0
        self.failures = 0
        self.opened_at = self._asked_at = 0.0
        self._found: tuple[float, TicketError] | None = None
        self._reported: str | None = None

    @property
    def is_closed(self) -> bool:
        """Whether its server or table may be asked."""
        return self.reason is None

    @property
    def state(self) -> CircuitState:
        """Closed, open, or half-open, when the wait for the next attempt is over."""
        if self.reason is None:
            return "closed"
        return "half_open" if time.monotonic() >= self._next_attempt else "open"

    @property
    def is_due_for_forced_trial(self) -> bool:
        """Whether it is open and the shortest wait is over, so that it may be tried if nothing else answers."""
        return (
            self.reason is not None
            and time.monotonic() - self._tripped_at > TIMING.first_wait_seconds
        )

    def record_failure(
        self, reason: TicketError, *, timed_out: bool = False, refused: bool = False
    ) -> None:
        """Open after a failure; each wait doubles the last one, up to ``longest_wait_seconds``.

        Draws that fail together count once: no attempt begins as early after a failure.
        """
        now = time.monotonic()
        is_first = self.reason is None
        if is_first:
            self.opened_at = now
        if is_first or now - self._tripped_at >= TIMING.first_wait_seconds / 2:
            wait = TIMING.first_wait_seconds * 2.0 ** min(self.failures, 16)
            self.failures += 1
            self._tripped_at = now
            self._next_attempt = now + min(TIMING.longest_wait_seconds, wait) * _jitter()
        self.timed_out, self.refused, self.reason = timed_out, refused, reason

    def is_news(self, error: TicketError) -> bool:
        """Whether an error differs, in more than numbers, from the last one that was reported since a success.

        It counts as reported from now on.
        """
        text = _NUMBERS.sub("", str(error))
        is_news, self._reported = text != self._reported, text
        return is_news

    def postpone(self) -> None:
        """Postpone the next attempt by the shortest wait, since one has just begun."""
        if self.reason is not None:
            self._next_attempt = time.monotonic() + TIMING.first_wait_seconds * _jitter()

    def admits_trial(self) -> bool:
        """Whether a forced trial is due now, rather than the shared result of the last one."""
        if not self.refused:  # then an attempt costs no connection
            return True
        now = time.monotonic()
        if now - self._asked_at < TIMING.one_trial_seconds:
            return False
        self._asked_at = now  # two at the same moment do no harm
        return True

    def share_result(self, asked_at: float, failure: TicketError) -> None:
        """Share the result of a forced trial with the draws that wait for it."""
        if self.refused and failure is self.reason:
            self._found = asked_at, failure

    def shared_result(self, began: float) -> TicketError | None:
        """The error of the latest forced trial that began after ``began``, if any."""
        found = self._found if self.refused else None
        return found[1] if found is not None and found[0] >= began else None

    def admit(self) -> None:
        """Close on trial: if the server fails again at once, the next wait is longer than the last one."""
        if self.reason is not None:
            self._close()

    def record_success(self) -> None:
        """Close after a success."""
        if self.failures:
            self._close()
            self._reported = None
            self.failures = 0  # last: after an interrupt before it, the next success completes this

    def _close(self) -> None:
        self.timed_out = self.refused = False
        self.reason = self._found = None  # an error keeps the variables of all its callers


def _jitter() -> float:
    return random.uniform(0.5, 1.0)  # spreads attempts, guards no secret
