"""What is in hand: tickets that were drawn and not yet needed.

Whatever asks, each ticket leaves once. What guards that is a lock, held for a few instructions and never while
a server is asked; and for single tickets ``deque.popleft()``, which Python promises to be atomic.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count as count_from_0
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakSet

from .arrivals import Arrivals
from .clock import elapsed
from .forks import mark

if TYPE_CHECKING:
    from .events import DiscardReason

__all__ = ["Block", "Hand", "Stream", "count", "divide", "drop_everything"]

#: How many blocks a draw takes at most while one is used up sooner than the next can be drawn.
AT_ONCE: Final = 64
#: How many times longer than its draw what was drawn should last, then.
TIMES_ITS_DRAW: Final = 4
#: How many tickets are laid out at once, when they are taken faster than one in so many seconds.
RUN, FAST = 1000, 1e-4
#: Seconds after which a fetch that never came back, as its event loop was closed, is forgotten.
LOST: Final = 10.0
#: Seconds that a fetch ahead waits after one that failed.
PAUSE: Final = 1.0


class Block(NamedTuple):
    """Tickets, and when they become too old, by ``clock.elapsed()``."""

    tickets: range
    expires: float


def count(blocks: Iterable[Block]) -> int:
    """How many tickets there are in some blocks."""
    return sum([len(tickets) for tickets, _ in blocks])


def divide(blocks: Iterable[Block], n: int) -> tuple[list[Block], list[Block]]:
    """The first ``n`` tickets of some blocks, and the rest."""
    first: list[Block] = []
    rest: list[Block] = []
    for tickets, expires in blocks:
        if tickets[:n]:
            first.append(Block(tickets[:n], expires))
        if tickets[n:]:
            rest.append(Block(tickets[n:], expires))
        n = max(0, n - len(tickets))
    return first, rest


def _tell_nobody(*_: object) -> None:
    pass


_expiry = attrgetter("expires")


class Stream:
    """What is in hand of one sequence.

    Args:
        discarded: is told how many tickets were dropped, and why.

    Attributes:
        arrivals: what is on its way here.
        is_low: whether it may be time to fetch the next block, as the last `lay_out` saw it.
        pop: takes one of the tickets that are laid out, and raises ``IndexError`` when there is none.
        turn: counts the draws, of which each begins with the next server.
    """

    __slots__ = (
        "_arrived",
        "_blocks",
        "_discarded",
        "_expires",
        "_is_open",
        "_laid_out",
        "_laid_out_at",
        "_lock",
        "_no_fetch_before",
        "_ordered",
        "_run",
        "_size",
        "_took",
        "arrivals",
        "is_low",
        "pop",
        "turn",
    )

    def __init__(self, discarded: Callable[[int, DiscardReason], object] = _tell_nobody) -> None:
        self._lock, self._discarded, self._is_open = threading.Lock(), discarded, True
        self.arrivals = Arrivals()
        self._laid_out: deque[int] = deque()
        #: The oldest first: whoever takes a block need not look at those behind it.
        self._blocks: list[Block] = []
        self.pop, self.turn = self._laid_out.popleft, count_from_0().__next__
        self._expires = self._laid_out_at = 0.0
        self._size = self._run = 0
        self._ordered = self._took = self._no_fetch_before = 0.0
        self._arrived = self.is_low = False

    # -- taking

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in hand."""
        return not self._laid_out and not self._blocks

    def take(self, n: int) -> list[Block]:
        """Up to ``n`` tickets, the oldest first."""
        if self.is_empty:
            return []
        with self._lock:
            dropped = self._drop_the_old(elapsed())
            taken = [Block(b, self._expires) for b in _as_blocks(self._pop_some(n))]
            missing = n - count(taken)
            while missing > 0 and self._blocks:
                taken.append(self._cut_off(missing))
                missing -= len(taken[-1].tickets)
        if dropped:
            self._discarded(dropped, "age")
        return taken

    def _cut_off(self, most: int) -> Block:
        """Take so many tickets of the oldest block at most."""
        tickets, expires = oldest = self._blocks[0]
        if len(tickets) > most:
            self._blocks[0] = Block(tickets[most:], expires)
            return Block(tickets[:most], expires)
        del self._blocks[0]
        return oldest

    def _pop_some(self, n: int) -> Iterator[int]:
        try:
            for _ in range(n):
                yield self.pop()
        except IndexError:
            return

    def lay_out(self) -> bool:
        """Have the next tickets ready for `pop`; False when there are none.

        Nobody looks at the age of a ticket that lies there: so it is a single one, except while they
        are taken so fast that looking would cost more than the ticket.
        """
        now = elapsed()
        with self._lock:
            if self._laid_out:
                return True
            dropped = self._drop_the_old(now)
            there = bool(self._blocks)
            if there:
                self._lay_out(now)
            self.is_low = self._is_low()
        if dropped:
            self._discarded(dropped, "age")
        return there

    def _lay_out(self, now: float) -> None:
        fast = now - self._laid_out_at < FAST * self._run
        self._run = max(1, min(RUN, self._size // 4)) if fast else 1
        self._laid_out_at = now
        tickets, self._expires = self._cut_off(self._run)
        self._laid_out.extend(tickets)

    def put(self, blocks: Sequence[Block]) -> None:
        """Keep blocks, unless nothing is to be held any more."""
        with self._lock:
            is_open = self._is_open
            for block in blocks if is_open else ():
                insort(self._blocks, block, key=_expiry)
        if not is_open:
            self._discarded(count(blocks), "dropped")

    def count(self) -> int:
        """How many tickets are in hand."""
        with self._lock:
            dropped = self._drop_the_old(elapsed())
            left = self._count()
        self._discarded(dropped, "age")
        return left

    def _count(self) -> int:
        return len(self._laid_out) + count(self._blocks)

    def _drop_the_old(self, now: float) -> int:
        """How many tickets were dropped as they were too old."""
        dropped = 0
        if self._expires <= now:
            dropped += len(self._laid_out)
            self._laid_out.clear()
        while self._blocks and self._blocks[0].expires <= now:
            dropped += len(self._blocks.pop(0).tickets)
        return dropped

    def _is_low(self) -> bool:
        """Whether half of a block is left, or less; of many blocks, as many are counted as it takes."""
        left, half = len(self._laid_out), self._size // 2
        for tickets, _ in self._blocks:
            if left > half:
                break
            left += len(tickets)
        return left <= half

    def close(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            dropped, self._is_open = self._count(), False
            self._laid_out.clear()
            self._blocks.clear()
        self._discarded(dropped, "dropped")

    # -- drawing

    def order(self, least: int, most: int, lasts: float) -> int:
        """How many tickets to draw for the hand now.

        Twice as many as the last time when those did not last for ``lasts`` seconds, half as many when
        they lasted for more than twice that (Leaf's rule), within the bounds. A fixed size is multiplied,
        too, by `AT_ONCE` at most, while the tickets last no longer than a few draws take.
        """
        now = monotonic()
        with self._lock:
            if least == most:
                most, lasts = AT_ONCE * least, TIMES_ITS_DRAW * self._took
            lasted = now - self._ordered
            if not self._arrived:  # others draw at this moment, too: that tells nothing
                pass
            elif lasted < lasts:
                self._size *= 2
            elif lasted > 2 * lasts:
                self._size //= 2
            if self._arrived or not self._size:
                self._arrived, self._ordered = False, now
            self._size = min(max(self._size, least), most)
            return self._size

    def has_arrived(self, took: float) -> None:
        """A draw for the hand was answered, after so many seconds."""
        with self._lock:
            self._arrived, self._took = True, took

    def begin_fetch(self) -> bool:
        """Whether the next block is to be fetched now: there is little left, and nobody fetches."""
        now = monotonic()
        with self._lock:
            if now < self._no_fetch_before or not self._is_low():
                return False
            self._no_fetch_before = now + LOST
            return True

    def end_fetch(self, *, failed: bool) -> None:
        """The next block may be fetched; after a failure, in a while."""
        with self._lock:
            self._no_fetch_before = monotonic() + PAUSE if failed else 0.0


class Hand:
    """What one process has in hand: a fork begins with an empty hand of its own.

    Args:
        discarded: is told of which sequence how many tickets were dropped, and why.

    Attributes:
        streams: by the names of their sequences.
        here: its byte 0 is 0 in a fork. Look at it last: a ticket that was popped before is the parent's.
    """

    def __init__(
        self, discarded: Callable[[str, int, DiscardReason], object] = _tell_nobody
    ) -> None:
        self.here, self._discarded = mark(), discarded
        self.streams: dict[str, Stream] = {}
        _hands.add(self)

    def stream(self, sequence: str) -> Stream:
        """What is in hand of a sequence."""
        stream = self.streams.get(sequence)
        if stream is None:
            new = Stream(partial(self._discarded, sequence))
            stream = self.streams.setdefault(sequence, new)
        return stream

    def has(self, stream: Stream, sequence: str) -> bool:
        """Whether that is still what is in hand of a sequence: it was not dropped, and this is no fork."""
        return self.streams.get(sequence) is stream and bool(self.here[0])

    def count(self, sequence: str) -> int:
        """How many tickets of a sequence are in hand."""
        stream = self.streams.get(sequence)
        return stream.count() if stream else 0

    def drop(self, sequence: str) -> None:
        """Drop what is in hand of one sequence, and what is on its way there."""
        stream = self.streams.pop(sequence, None)
        if stream is not None:
            stream.close()

    def drop_all(self) -> None:
        """Drop what is in hand of all sequences."""
        for sequence in list(self.streams):
            self.drop(sequence)


_hands: WeakSet[Hand] = WeakSet()


def drop_everything() -> None:
    """Drop what every pool of this process has in hand.

    A server that issues numbers twice has seldom one bad table, and a block cannot tell by which name,
    through which pool, it was drawn.
    """
    while True:
        try:
            hands = list(_hands)
            break
        except RuntimeError:  # another thread has just made a pool
            pass
    for hand in hands:
        if hand.here[0]:
            hand.drop_all()


def _as_blocks(tickets: Iterable[int]) -> list[range]:
    """Tickets as ascending progressions, in their order."""
    blocks: list[range] = []
    for ticket in tickets:
        if blocks and len(blocks[-1]) == 1 and ticket > blocks[-1][0]:
            first = blocks[-1][0]
            blocks[-1] = range(first, ticket + 1, ticket - first)
        elif blocks and ticket == blocks[-1].stop - 1 + blocks[-1].step:
            blocks[-1] = range(blocks[-1].start, ticket + 1, blocks[-1].step)
        else:
            blocks.append(range(ticket, ticket + 1))
    return blocks
