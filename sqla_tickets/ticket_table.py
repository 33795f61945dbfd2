"""What one process knows of one sequence's table on one server."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from .health import Breaker

if TYPE_CHECKING:
    from .identity import Identity
    from .layouts import Layout
    from .note import Note

__all__ = ["Look", "TicketTable"]

#: How many blocks of a table are compared with one that comes late.
REMEMBERED: Final = 128


class Look(NamedTuple):
    """How a table was found.

    Attributes:
        layout: how it is drawn from.
        text: of its definition.
        identity: in which run of the server that was.
    """

    layout: Layout
    text: str
    identity: Identity


class TicketTable:
    """One sequence's table on one server, as this process has seen it.

    Attributes:
        name: of the sequence.
        layout: how it is drawn from; None until it was found, and after it changed.
        note: what stands beside the number; None for a foreign table.
        high_water: the largest ticket that this process has received, or been told of by the server's
            peers; 0 before the first.
        seen: the largest number that its row has shown in this epoch. InnoDB shows what is committed before
            it is on disk: a crash may take it back, which nobody had received then.
        received: the last blocks that this process has received. Of two draws under way at the same time, the
            high water does not tell that they were given the same ones.
        mark: the largest ticket that the server's peers have told of.
        write_at: the high water from which on the peers are to know it soon.
        stood: the number that its row had when it was looked at last.
        look: how it was found by that; None where a server does not tell enough to compare it.
        epoch: in which of the server's it was met.
        met: when, by ``time.monotonic()``.
        draws: how many draws were answered.
        errors: how many failed.
        answered: when it last answered a draw, by ``time.monotonic()``.
        crowded: until when single tickets queue for the table's lock, too, by ``time.monotonic()``.
        breaker: for what is wrong with this table alone.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.layout: Layout | None = None
        self.look: Look | None = None
        self.note: Note | None = None
        self.high_water = self.seen = self.mark = self.write_at = self.stood = 0
        self.received: deque[range] = deque(maxlen=REMEMBERED)
        self.epoch = 0
        self.met = 0.0
        self.draws = self.errors = 0
        self.answered = self.crowded = 0.0
        self.breaker = Breaker()
        self._lock = threading.Lock()

    @property
    def known(self) -> int:
        """Above what the next ticket has to be."""
        return max(self.high_water, self.seen)

    def shows(self, number: int) -> None:
        """Its row has this number."""
        with self._lock:
            self.stood = number
            self.seen = max(self.seen, number)

    def learn(self, mark: int) -> None:
        """Take it from a peer of its server that a ticket was issued: the next draws have to be above it."""
        with self._lock:
            self.mark = max(self.mark, mark)
            self.high_water = max(self.high_water, mark)

    def receive(self, blocks: list[range]) -> bool:
        """Remember new tickets, which every later one has to be above.

        Returns:
            False, and nothing is remembered, when another draw was given one of them at the same time.
        """
        with self._lock:
            if blocks[0][0] <= self.high_water and self._has(blocks):
                return False
            self.received.extend(blocks)
            self.high_water = max(self.high_water, blocks[-1][-1])
            self.draws += 1
            return True

    def _has(self, blocks: list[range]) -> bool:
        """Whether a ticket of these was received before, as far as that is remembered."""
        # dense progressions of one residue class share a number when they overlap
        return any(b[0] <= r[-1] and r[0] <= b[-1] for r in self.received for b in blocks)

    def forget_parent(self) -> None:
        """In a fork: what the parent has drawn is not counted here; a thread of its may hold the lock."""
        self.draws = self.errors = 0
        self._lock = threading.Lock()
